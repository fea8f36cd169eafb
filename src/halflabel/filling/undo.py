"""Undo a fill: remove or retract the rows of a model, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats import long
from halflabel.labels.formats._csv import first_line, raw_records
from halflabel.labels.formats._sheets import CsvTable
from halflabel.labels.formats.long import COLUMNS
from halflabel.labels.labels import MODEL_PREFIX, RULE_SOURCE, WEIGHT_COLUMN, Labels
from halflabel.labels.table import last_of_each
from halflabel.system.files import atomic_write


class UndoResult(NamedTuple):
    """The number of rows that `undo` changed."""

    sources: tuple[str, ...]  # the sources of the rows
    rows: int  # rows removed, or retracting rows added
    answered_since: int  # entries of these sources with a later answer of somebody else; the answers stay


def undo(path: Path, *, source: str | None = None, run: str | None = None, retract: bool = False) -> UndoResult:
    """Undo all rows of a source (such as "model:srcr:runs/first" or "rule"), or of every model of a run.

    The rows are removed, which restores the file as it was before they were appended. With `retract` they stay, and a
    row with value 0 is added for each entry that they still decide. Later answers stay in both cases. The file is
    replaced atomically.
    """
    is_csv = path.is_file() and path.suffix != ".parquet"
    if is_csv:
        header = tuple(field.strip() for field in first_line(path).split(","))
        if header not in (COLUMNS, (*COLUMNS, WEIGHT_COLUMN)):
            raise LabelError(
                "not in the columns of halflabel", f"halflabel import {path} OUT.csv, then undo there", path
            )
    rows = formats.read(path, format="long").rows
    remaining, result = remove_sources(rows, _find_sources(rows, source, run), retract=retract)
    if is_csv and not retract:
        _write_other_lines(path, result.sources)
    else:
        long.write(remaining, path)
    return result


def _write_other_lines(path: Path, sources: tuple[str, ...]) -> None:
    """Write a CSV file without the lines of some sources; the other lines keep their bytes."""
    sheet = CsvTable(path)
    stays = pc.invert(pc.is_in(sheet.column("source"), pa.array(sources))).to_numpy(zero_copy_only=False)
    data = path.read_bytes()
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    ends = ends if data.endswith(b"\n") else np.append(ends, len(data))
    if len(ends) != 1 + len(stays):  # blank lines, or line ends in names
        records = [(len(text.encode()), fields) for text, fields in raw_records(data.decode(), sheet.delimiter)]
        ends = np.cumsum([size for size, _ in records])
        is_row = np.array([bool(fields) for _, fields in records])
        stays_all = np.ones(len(records), bool)
        stays_all[np.flatnonzero(is_row)[-len(stays) :]] = stays
    else:
        stays_all = np.append(True, stays)
    # Runs of lines that stay, or go.
    last = np.append(np.flatnonzero(np.diff(stays_all)), len(stays_all) - 1)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        for begin, end, stay in zip([0, *ends[last[:-1]]], ends[last], stays_all[last], strict=True):
            if stay:
                file.write(memoryview(data)[begin:end])


def remove_sources(
    rows: Labels, source_numbers: NDArray[np.int64], *, retract: bool = False
) -> tuple[Labels, UndoResult]:
    """Return the rows without those of some sources, or with retractions of them at the end."""
    is_theirs = np.isin(rows.source, source_numbers)
    holding = rows.holding()
    decided = holding[is_theirs[holding]]
    entries = last_of_each(rows.image[is_theirs], rows.column[is_theirs])
    count = int(is_theirs.sum())
    answered_since = (count if isinstance(entries, slice) else len(entries)) - len(decided)
    names = tuple(rows.sources[number] for number in source_numbers.tolist())
    if not retract:
        return rows.select(np.flatnonzero(~is_theirs)), UndoResult(names, count, answered_since)
    nothing = np.zeros(len(decided), np.int8)
    retractions = replace(rows.select(decided), value=nothing, score=np.full(len(decided), np.nan, np.float32))
    return rows.append(retractions), UndoResult(names, len(decided), answered_since)


def _find_sources(rows: Labels, source: str | None, run: str | None) -> NDArray[np.int64]:
    """Return the numbers of the matching sources; if there are none, the error lists the sources of models."""
    if (source is None) == (run is None):
        raise UserError("it is not clear which labels to undo", "give ‹source=model:METHOD:RUN›, or the run")
    used = {n: rows.sources[n] for n in np.unique(rows.source).tolist()}
    ending = f":{Path(str(run)).as_posix()}"
    of_run = {name for name in used.values() if name.startswith(MODEL_PREFIX) and name.endswith(ending)}
    chosen = [n for n, name in used.items() if (name == source if run is None else name in of_run)]
    if not chosen:
        model_sources = [name for name in used.values() if name.startswith(MODEL_PREFIX) or name == RULE_SOURCE]
        fix = f"use one of: {', '.join(model_sources)}" if model_sources else "no row was filled by a model"
        raise UserError(f"no row has the source {source if source is not None else f'model:…:{run}'!r}", fix)
    return np.array(chosen, np.int64)
