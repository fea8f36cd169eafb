"""Take back what a model filled, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats import long
from halflabel.labels.provenance import MODEL_PREFIX, RULE_SOURCE
from halflabel.labels.rows import Rows
from halflabel.labels.table import last_of_each

__all__ = ["Undone", "undo", "without"]


class Undone(NamedTuple):
    """What became of the file."""

    sources: tuple[str, ...]  # whose rows were taken back
    rows: int  # rows removed, or retracting rows added
    kept: int  # entries of these sources that somebody has answered since; their answers stay


def undo(path: Path, *, source: str | None = None, run: str | None = None, retract: bool = False) -> Undone:
    """Take back all rows of a source (such as "model:srcr:runs/first" or "rule"), or of every model of a run.

    The rows are removed, so that a file is as it was before they were appended; with `retract` a row with value 0 is
    added for each entry that they still decide, and the history stays. An entry that somebody has answered since keeps
    that answer either way. The file is replaced whole or not at all.
    """
    if path.is_file() and path.suffix != ".parquet":
        from halflabel.labels.formats._csv import first_line

        header = tuple(field.strip() for field in first_line(path).split(","))
        if header != long.COLUMNS:
            raise LabelError(
                "not in halflabel's own columns", f"halflabel import {path} OUT.csv, then undo there", path
            )
    rows = formats.read(path, format="long").rows
    number = _sources(rows, source, run)
    after, undone = without(rows, number, retract=retract)
    long.write(after, path)
    return undone


def without(rows: Rows, number: NDArray[np.int64], *, retract: bool = False) -> tuple[Rows, Undone]:
    """Rows less those of some sources (by number), or with retractions of them at the end."""
    theirs = np.isin(rows.source, number)
    hold = rows.holding()
    decided = hold[theirs[hold]]
    entries = last_of_each(rows.image[theirs], rows.column[theirs])
    kept = (int(theirs.sum()) if isinstance(entries, slice) else len(entries)) - len(decided)
    names = tuple(rows.sources[n] for n in number.tolist())
    if not retract:
        stay = np.flatnonzero(~theirs)
        return rows.select(stay), Undone(names, int(theirs.sum()), kept)
    taken = Rows.build(
        rows.images,
        rows.classes,
        rows.image[decided],
        rows.column[decided],
        np.zeros(len(decided), np.int8),
        rows.source[decided],
        None,
        rows.sources,
    )
    return rows.append(taken), Undone(names, len(decided), kept)


def _sources(rows: Rows, source: str | None, run: str | None) -> NDArray[np.int64]:
    """The numbers of the sources meant; none is an error that lists those of models."""
    if (source is None) == (run is None):
        raise UserError("it is not clear whose labels to take back", "give --source model:METHOD:RUN, or the run")
    if source is not None:
        chosen = [n for n, name in enumerate(rows.sources) if name == source]
    else:
        ending = f":{Path(str(run)).as_posix()}"
        chosen = [n for n, name in enumerate(rows.sources) if name.startswith(MODEL_PREFIX) and name.endswith(ending)]
    used = set(np.unique(rows.source).tolist())
    chosen = [n for n in chosen if n in used]
    if not chosen:
        here = [
            name
            for n, name in enumerate(rows.sources)
            if n in used and (name.startswith(MODEL_PREFIX) or name == RULE_SOURCE)
        ]
        found = f"there are: {', '.join(here)}" if here else "no row here was filled by a model"
        raise UserError(f"no row has the source {source if source is not None else f'model:…:{run}'!r}", found)
    return np.array(chosen, np.int64)
