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
from halflabel.evaluation.scores import Kind
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.system.format import group_digits, percent

FEW_POSITIVES = 5  # with fewer known positives, the AP of a class is mostly luck
_NUMBERS = ("present", "absent", "AP", "AP_low", "AP_high", "threshold", "precision", "recall")


@dataclass(frozen=True, eq=False)
class HeldOutResults:
    """Scores, labels of people and metrics of the H held-out images that could be read."""

    classes: Names
    images: NDArray[np.int64]  # (H,) indices in the label table
    scores: NDArray[np.float32]  # (H, C) calibrated
    labels: NDArray[np.int8]  # (H, C)
    thresholds: NDArray[np.float64]  # (C,)
    overall: dict[str, float]
    per_class: dict[str, NDArray[np.float64]]  # (C,) each; NaN where there is none
    kind: Kind
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

    @property
    def has_few_positives(self) -> NDArray[np.bool_]:
        """Whether a class has an AP (C,), but one measured by so few known positives that it says little."""
        present = self.per_class["present"]
        return np.isfinite(self.per_class["AP"]) & (present > 0) & (present < FEW_POSITIVES)

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
        images = f"the {group_digits(len(self.images))} held-out images, which training did not see"
        if self.kind == "out-of-fold":
            images = f"all {group_digits(len(self.images))} images, each scored by models that did not see its labels"
        return (
            f"Measured on {images}: {group_digits(self.known)} of their {group_digits(self.labels.size)} entries are "
            f"known ({percent(self.known, self.labels.size)})."
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
        return self.held_out is not None and self.held_out.kind == "out-of-fold"


def read_run_facts(run: RunFolder) -> RunFacts:
    """Read a run; an unfinished one has labels, settings and the log so far."""
    labels = run.read_rows()
    return RunFacts(
        name=run.folder.resolve().name,
        config=run.read_config(),
        table=labels.training,
        training=np.flatnonzero(run.split_of(labels.images) == 0),
        log=run.read_log(),
        held_out=_read_held_out(run, labels.people),
        env=run.read_object("env.json"),
        made=run.read_object("made.json"),
        unreadable=len(run.read_csv("bad_images.csv")),
        finished=run.weights.exists(),
    )


def is_comparison(folder: Path) -> bool:
    """Return whether `compare` or `study` wrote a folder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("what") == "comparison"


def _read_held_out(run: RunFolder, table: Table) -> HeldOutResults | None:
    metrics, scores = run.read_object("metrics.json"), run.read_scores()
    if not metrics or scores is None:  # unfinished, or nothing was held out
        return None
    if scores.classes != table.classes:
        raise UserError(f"{run.stored_scores} has other classes than the run's labels", "train again")
    images, probabilities = table.images.index(scores.images.array), scores.probabilities(run.read_calibration())
    if (images < 0).any():
        raise UserError(f"{run.folder} holds images that its labels do not name", "train again")
    readable = ~np.isnan(probabilities).any(axis=1)
    images = images[readable]
    thresholds, protocol = run.read_thresholds(), str(metrics.pop("protocol", ""))
    rows = {row.get("class"): row for row in run.read_csv("per_label.csv")}
    return HeldOutResults(
        classes=table.classes,
        images=images,
        scores=probabilities[readable],
        labels=table.rows(images),
        thresholds=np.array([_to_float(thresholds.get(name)) for name in table.classes]),
        overall={name: _to_float(value) for name, value in metrics.items()},
        per_class={
            number: np.array([_to_float(rows.get(name, {}).get(number)) for name in table.classes])
            for number in _NUMBERS
        },
        kind=scores.kind,
        protocol=protocol,
        assumption=run.read_calibration().assumption,
    )


def _to_float(value: Any) -> float:
    """Convert a number read from JSON or CSV; a missing one is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
