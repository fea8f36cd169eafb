"""What a run directory says of itself, gathered for its page: labels, log, and what was measured on held-out images."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.provenance import training_and_evaluation_tables
from halflabel.labels.table import LabelTable
from halflabel.runs.folder import RunFolder
from halflabel.system.html import count, percent

__all__ = ["Facts", "Measured", "gather", "is_comparison", "is_study"]


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores of the H held-out images that could be read, what is known of them, and what that gave.

    Labels that a model made are not counted among what is known.
    """

    images: NDArray[np.int64]  # (H,) their numbers in the label table
    scores: NDArray[np.float32]  # (H, C) calibrated
    labels: NDArray[np.int8]  # (H, C)
    thresholds: NDArray[np.float64]  # (C,)
    overall: dict[str, float]
    per_class: list[dict[str, Any]]  # one per class, in the table's order
    protocol: str

    @property
    def known(self) -> int:
        """The number of known entries."""
        return int((self.labels != 0).sum())

    @property
    def knows_absence(self) -> bool:
        """Whether anything is known to be absent: without that neither ranking nor calibration can be judged."""
        return bool((self.labels < 0).any())

    @property
    def where(self) -> str:
        """On what all this was measured, in words."""
        of = self.labels.size
        return (
            f"Measured on the {count(len(self.images))} held-out images, which training did not see: "
            f"{count(self.known)} of their {count(of)} entries are known ({percent(self.known, of)})."
        )


@dataclass(frozen=True, eq=False)
class Facts:
    """One run; `measured` is None while it is unfinished, or where no images were held out."""

    name: str
    config: dict[str, Any]
    table: LabelTable
    training: NDArray[np.int64]  # image numbers
    log: list[dict[str, Any]]
    measured: Measured | None
    env: dict[str, Any]
    made: dict[str, Any]  # when training ended, and by which version; empty in older runs
    unreadable: int
    finished: bool


def gather(run: RunFolder) -> Facts:
    """Read a run; one that is unfinished has labels, settings and the log so far."""
    table, judged = training_and_evaluation_tables(run.read_rows())
    return Facts(
        name=run.folder.resolve().name,
        config=run.read_config(),
        table=table,
        training=_training(run, table),
        log=run.read_log(),
        measured=_measured(run, judged) if run.predictions.exists() else None,
        env=run.read_env(),
        made=run.read_completion(),
        unreadable=run.count_bad_images(),
        finished=run.weights.exists(),
    )


def is_comparison(folder: Path) -> bool:
    """Whether `halflabel compare` wrote this folder."""
    return _what(folder) == "comparison"


def is_study(folder: Path) -> bool:
    """Whether `halflabel study` wrote this folder; an earlier version called that a comparison too."""
    return _what(folder) == "study" or (_what(folder) == "comparison" and (folder / "study.json").exists())


def _what(folder: Path) -> str | None:
    """What kind of folder it says it is, where it holds several runs."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    what = found.get("what") if isinstance(found, dict) else None
    return what if isinstance(what, str) else None


def _training(run: RunFolder, table: LabelTable) -> NDArray[np.int64]:
    if not run.split.exists():  # it is unfinished
        return np.arange(len(table))
    part = run.split_of(table.images)
    if (part < 0).any():
        raise UserError(f"{run.folder} does not say of all its images which were trained on", "train again")
    return np.flatnonzero(part == 0)


def _numbers(run: RunFolder, table: LabelTable, names: Names) -> NDArray[np.int64]:
    at = table.images.index(names.array)
    if (at < 0).any():
        raise UserError(f"{run.folder} holds images that its labels do not name", "train again")
    return at


def _measured(run: RunFolder, table: LabelTable) -> Measured:
    names, classes, scores = run.read_predictions()
    if classes != list(table.classes):
        raise UserError(f"{run.predictions} is of other classes than the run's labels", "train again")
    images = _numbers(run, table, names)
    readable = ~np.isnan(scores).any(axis=1)
    images, scores = images[readable], scores[readable]
    cuts, metrics = run.read_thresholds(), run.read_metrics()
    protocol = str(metrics.pop("protocol", ""))
    rows = {row.get("class"): row for row in run.read_per_class()}
    return Measured(
        images=images,
        scores=scores,
        labels=table.rows(images),
        thresholds=np.array([_number(cuts.get(name)) for name in classes]),
        overall={name: _number(value) for name, value in metrics.items()},
        per_class=[_line(name, rows.get(name, {})) for name in classes],
        protocol=protocol,
    )


def _line(name: str, row: dict[str, str]) -> dict[str, Any]:
    numbers = ("present", "absent", "AP", "AP_low", "AP_high", "threshold", "precision", "recall")
    return {"class": name, **{key: _number(row.get(key)) for key in numbers}}


def _number(value: Any) -> float:
    """A number as JSON or CSV has it; what is missing is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
