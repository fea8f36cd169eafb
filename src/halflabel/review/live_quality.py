"""What a live review knows of its model: probabilities, precision and mAP with intervals, labels that can be decided.

Only random control answers correct the probabilities and measure the model. Answers to questions that the model picked
are no random sample: they are trained on, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.calibration import Calibration, fit_correction
from halflabel.evaluation.inclusion import share_interval
from halflabel.evaluation.positives_only import expected_f1_threshold
from halflabel.review.live_questions import EntryAnswer

_LEAST_SLOPE = 0.05  # probabilities keep the order of the logits
_DRAWS = 40  # of slope and offset, for the interval of mAP
_MAX_ENTRIES = 400_000  # entries that mAP is estimated on


def fit_probabilities(z: NDArray[Any], controls: Sequence[EntryAnswer]) -> Calibration:
    """Correct calibrated logits (N, C) by control answers: a logistic regression that few answers change little."""
    readable = [item for item in controls if not np.isnan(z[item.image, item.column])]
    x = np.array([z[item.image, item.column] for item in readable], np.float64)
    present = np.array([item.value > 0 for item in readable], np.bool_)
    fitted = fit_correction(x, present, np.array([item.weight for item in readable]))
    return fitted._replace(slope=max(fitted.slope, _LEAST_SLOPE))


@dataclass(frozen=True)
class Quality:
    """The state of the model after so many answers; intervals hold with 95 %."""

    answers: int
    controls: int
    threshold: float
    precision: tuple[float, float, float] | None  # of what is called present: estimate, low, high; by controls
    mean_average_precision: tuple[float, float, float]
    decided: int  # unknown entries with a probability of being present that is high or low enough
    unknown: int
    per_class: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def measure(
    z: NDArray[Any],
    calibration: Calibration,
    labels: NDArray[np.int8],
    controls: Sequence[EntryAnswer],
    *,
    answers: int,
    precision: float = 0.95,
) -> Quality:
    """Measure the model from calibrated out-of-fold logits (N, C), known labels (N, C) and control answers."""
    p = calibration.scores(z)
    unknown = (labels == 0) & ~np.isnan(p)
    threshold = expected_f1_threshold(p)
    # As in `fill`, nothing is decided of a class without a known positive.
    sure = unknown & ((p >= precision) | (p <= 1 - precision)) & (labels > 0).any(0)
    expected = np.where(labels == 0, np.nan_to_num(p), labels > 0)
    columns = zip((labels > 0).sum(0), (labels < 0).sum(0), sure.sum(0), unknown.sum(0), expected.sum(0), strict=True)
    per_class = [
        {"present": int(yes), "absent": int(no), "decided": int(n), "unknown": int(left), "expected": float(total)}
        for yes, no, n, left, total in columns
    ]
    return Quality(
        answers=answers,
        controls=len(controls),
        threshold=threshold,
        precision=_precision(p, controls, threshold),
        mean_average_precision=_expected_map(z, calibration, labels),
        decided=int(sure.sum()),
        unknown=int(unknown.sum()),
        per_class=per_class,
    )


def _precision(p: NDArray[Any], controls: Sequence[EntryAnswer], threshold: float) -> tuple[float, float, float] | None:
    """The share of present among control answers that the model calls present now, each with its weight."""
    called = [item for item in controls if p[item.image, item.column] >= threshold]
    if not called:
        return None
    return share_interval(np.array([item.weight for item in called]), np.array([item.value > 0 for item in called]))


def _expected_map(z: NDArray[Any], calibration: Calibration, labels: NDArray[np.int8]) -> tuple[float, float, float]:
    """Expected mAP if entries are present with their probabilities, and what other calibrations would make of it.

    AP of a class with the images in the order of their logits: Σ_k p_k · (1 + Σ_{j < k} p_j) / k / Σ_k p_k.
    """
    step = max(1, -(-z.size // _MAX_ENTRIES))
    rows = np.flatnonzero(~np.isnan(z).any(1))[::step]
    order = np.argsort(-z[rows], axis=0, kind="stable")
    x, known = np.take_along_axis(z[rows], order, 0), np.take_along_axis(labels[rows], order, 0)
    rank = np.arange(1, len(rows) + 1)[:, None]

    def mean_average_precision(plausible: Calibration) -> float:
        p = np.where(known == 0, plausible.scores(x), known > 0).astype(np.float64)
        before = np.cumsum(p, axis=0) - p
        total = p.sum(0)
        return float(np.mean((p * (1 + before) / rank).sum(0) / np.maximum(total, 1e-12)))

    draws = [
        mean_average_precision(Calibration(max(slope, _LEAST_SLOPE), offset))
        for slope, offset in calibration.draws(_DRAWS).tolist()
    ]
    low, high = np.percentile(draws, (2.5, 97.5)).tolist()
    return mean_average_precision(calibration), float(low), float(high)
