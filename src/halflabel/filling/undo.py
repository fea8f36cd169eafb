"""Undo a fill: remove or retract the rows of a model, and no others."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
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
    numbers = _find_sources(rows, source, run)
    is_theirs = np.isin(rows.source, numbers)
    holding = rows.holding()
    decided = holding[is_theirs[holding]]
    entries = np.unique(rows.image[is_theirs].astype(np.int64) * len(rows.classes) + rows.column[is_theirs])
    names = tuple(rows.sources[number] for number in numbers.tolist())
    result = UndoResult(names, int(is_theirs.sum()), len(entries) - len(decided))
    if retract:
        nothing = np.zeros(len(decided), np.int8), np.full(len(decided), np.nan, np.float32)
        retractions = replace(rows.select(decided), value=nothing[0], score=nothing[1])
        long.write(rows.append(retractions), path)
        return result._replace(rows=len(decided))
    if is_csv:
        _write_other_lines(path, names)
    else:
        long.write(rows.select(np.flatnonzero(~is_theirs)), path)
    return result


def _write_other_lines(path: Path, sources: tuple[str, ...]) -> None:
    """Write a CSV file without the lines of some sources; the other lines keep their bytes."""
    sheet, text = CsvTable(path), path.read_bytes().decode()
    stays = pc.invert(pc.is_in(sheet.column("source"), pa.array(sources))).to_pylist()
    lines_above = sum(bool(fields) for _, fields in raw_records(text, sheet.delimiter)) - len(stays)
    is_kept = chain(repeat(True, lines_above), stays)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        for line, fields in raw_records(text, sheet.delimiter):
            if not fields or next(is_kept):  # blank lines stay
                file.write(line.encode())


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
