"""Read everything that the page of a run shows from its folder: labels, log, and results on held-out images."""

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
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.system.html import count, percent


@dataclass(frozen=True, eq=False)
class HeldOutResults:
    """Scores, known labels and metrics of the H held-out images that could be read.

    Labels made by a model do not count as known.
    """

    images: NDArray[np.int64]  # (H,) indices in the label table
    scores: NDArray[np.float32]  # (H, C) calibrated
    labels: NDArray[np.int8]  # (H, C)
    thresholds: NDArray[np.float64]  # (C,)
    overall: dict[str, float]
    per_class: list[dict[str, Any]]  # one per class, in the table's order
    protocol: str
    assumption: str = ""  # under which the scores are probabilities, where known labels could not calibrate them

    @property
    def known(self) -> int:
        """Number of known entries."""
        return int((self.labels != 0).sum())

    @property
    def knows_absence(self) -> bool:
        """Whether enough is known to be absent; without it, neither AP nor calibration can be measured."""
        return "estimated_precision" not in self.overall and bool((self.labels < 0).any())

    def estimates_per_class(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the expected precision of the decisions and the expected number of present images, per class (C,).

        Known labels count as certain; scores of unknown ones are taken as probabilities.
        """
        p = np.where(self.labels == 0, self.scores, self.labels > 0).astype(np.float64)
        called = self.scores >= self.thresholds
        with np.errstate(invalid="ignore"):
            return (p * called).sum(0) / called.sum(0), p.sum(0)

    @property
    def description(self) -> str:
        """Which images and labels the results were measured on, in words."""
        entries = self.labels.size
        images = f"the {count(len(self.images))} held-out images, which training did not see"
        if self.protocol.startswith("out-of-fold"):
            images = f"all {count(len(self.images))} images, each scored by models that did not see its labels"
        return (
            f"Measured on {images}: "
            f"{count(self.known)} of their {count(entries)} entries are known ({percent(self.known, entries)})."
        )


@dataclass(frozen=True, eq=False)
class RunFacts:
    """One run; `held_out` is None while the run is unfinished, or where no images were held out."""

    name: str
    config: dict[str, Any]
    table: Table
    training: NDArray[np.int64]  # indices of the training images
    log: list[dict[str, Any]]
    held_out: HeldOutResults | None
    env: dict[str, Any]
    made: dict[str, Any]  # time training ended, and version; may be empty
    unreadable: int
    finished: bool

    @property
    def is_out_of_fold(self) -> bool:
        """Whether all images were trained on, and each was evaluated by a model without its labels."""
        return self.held_out is not None and len(self.training) == len(self.table)


def read_run_facts(run: RunFolder) -> RunFacts:
    """Read a run; an unfinished one has labels, settings and the log so far."""
    labels = run.read_rows()
    return RunFacts(
        name=run.folder.resolve().name,
        config=run.read_config(),
        table=labels.training,
        training=_training_images(run, labels.training),
        log=run.read_log(),
        held_out=_read_held_out(run, labels.people) if run.predictions.exists() else None,
        env=run.read_env(),
        made=run.read_completion(),
        unreadable=len(run.read_csv("bad_images.csv")),
        finished=run.weights.exists(),
    )


def experiment_kind(folder: Path) -> str | None:
    """Return "comparison" or "study" for a folder that `compare` or `study` wrote; None for other folders."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kind = config.get("what") if isinstance(config, dict) else None
    return kind if kind in ("comparison", "study") else None


def _training_images(run: RunFolder, table: Table) -> NDArray[np.int64]:
    if not run.split.exists():  # unfinished
        return np.arange(len(table))
    part = run.split_of(table.images)
    if (part < 0).any():
        raise UserError(f"{run.folder} does not record for all its images which were trained on", "train again")
    return np.flatnonzero(part == 0)


def _image_indices(run: RunFolder, table: Table, names: Names) -> NDArray[np.int64]:
    indices = table.images.index(names.array)
    if (indices < 0).any():
        raise UserError(f"{run.folder} holds images that its labels do not name", "train again")
    return indices


def _read_held_out(run: RunFolder, table: Table) -> HeldOutResults:
    names, classes, scores = run.read_predictions()
    if classes != list(table.classes):
        raise UserError(f"{run.predictions} has other classes than the run's labels", "train again")
    images = _image_indices(run, table, names)
    readable = ~np.isnan(scores).any(axis=1)
    images, scores = images[readable], scores[readable]
    thresholds, metrics = run.read_thresholds(), run.read_metrics()
    protocol = str(metrics.pop("protocol", ""))
    rows = {row.get("class"): row for row in run.read_csv("per_label.csv")}
    return HeldOutResults(
        images=images,
        scores=scores,
        labels=table.rows(images),
        thresholds=np.array([_to_float(thresholds.get(name)) for name in classes]),
        overall={name: _to_float(value) for name, value in metrics.items()},
        per_class=[_class_row(name, rows.get(name, {})) for name in classes],
        protocol=protocol,
        assumption=run.read_calibration().assumption if run.is_calibrated else "",
    )


def _class_row(name: str, row: dict[str, str]) -> dict[str, Any]:
    numbers = ("present", "absent", "AP", "AP_low", "AP_high", "threshold", "precision", "recall")
    return {"class": name, **{key: _to_float(row.get(key)) for key in numbers}}


def _to_float(value: Any) -> float:
    """Convert a number read from JSON or CSV; a missing one is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
