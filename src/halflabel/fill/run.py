"""From a run and its labels to a file of filled rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.fill.ending import check_ending
from halflabel.fill.plan import Filling, Tally, plan
from halflabel.labels.formats import long
from halflabel.labels.names import Names
from halflabel.labels.provenance import MODEL_PREFIX, training_and_evaluation_tables
from halflabel.labels.rows import Rows
from halflabel.labels.rules import Rules, read_rules
from halflabel.runs.crossfit import score_run
from halflabel.runs.folder import RunFolder

__all__ = ["fill_run", "model_source", "write_filled"]


def model_source(run: RunFolder, method: str) -> str:
    """What a row says of who filled it: model, method and run."""
    return f"{MODEL_PREFIX}{method}:{run.folder.as_posix()}"


def fill_run(
    run: RunFolder,
    images: Path,
    *,
    labels: Rows | None = None,
    precision: float = 0.95,
    confidence: float = 0.9,
    rules: Path | None = None,
    folds: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
    deciding: Callable[[int, int], None] | None = None,
) -> Filling:
    """Decide how to complete the run's own labels, or `labels`: other ones of the run's classes, of any images.

    Other labels join those of the run, and win over them, for training heads and as evidence; only their images are
    filled. Rows that a model filled earlier (source "model:…"), the run's own among them, stay as they are and count
    as no evidence: neither for thresholds nor for the heads. Nor does, in a later fill, what rules make of them here.
    `progress` is told of images whose features are made, `deciding` of those whose scores are looked at.
    """
    run.check_finished()
    own = run.read_rows()
    config = run.read_config()
    found: Rules | None = read_rules(rules, own.classes) if rules is not None else None
    known = _align(own if labels is None else own.append(labels), own.classes).drop_overridden()
    table, judged = training_and_evaluation_tables(known)
    asked = np.ones(len(table), bool)
    if labels is not None:
        # The run's other images are evidence too; what is filled are the images asked for.
        asked[:] = False
        asked[table.images.index(labels.images.array)] = True
    scores = score_run(run, images, judged, folds=folds, progress=progress, say=say)
    return plan(
        scores,
        known,
        asked=asked,
        precision=precision,
        confidence=confidence,
        rules=found,
        source=model_source(run, str(config["method"])),
        progress=deciding,
    )


def write_filled(
    filling: Filling, path: Path, *, base: Rows | None = None, progress: Callable[[int, int], None] | None = None
) -> Tally:
    """Write the filled rows as they come, CSV or Parquet by the name; with `base`, these rows first: a whole file.

    Without a base the file can be appended to the label file, less its first line: the last row wins. One block of
    rows is in memory at a time.
    """
    check_ending(path)
    tally = filling.tally()

    def parts() -> Iterator[Any]:
        if base is not None:
            silent = np.bincount(base.image, minlength=len(base.images)) == 0
            yield from long.declared("class", base.classes)
            yield from long.declared("image", base.images.take(np.flatnonzero(silent)))
            yield from long.blocks(base)
        done = 0
        for rows in filling.blocks(tally):
            yield from long.blocks(rows)
            done += len(rows.images)
            if progress is not None:
                progress(done, len(filling.asked))

    long.write_blocks(parts(), path)
    return tally


def _align(rows: Rows, classes: Names) -> Rows:
    """The rows over the run's classes; foreign classes are refused."""
    at = classes.index(rows.classes.array)
    if (at < 0).any():
        missing = rows.classes[int(np.flatnonzero(at < 0)[0])]
        raise UserError(
            f"the labels have a class {missing!r} that the run was not trained on",
            "train with it, or leave its rows out",
        )
    return replace(rows, classes=classes, column=at.astype(np.int32)[rows.column])
