"""The numbers of one evaluation, named for logs."""

from __future__ import annotations

from halflabel.metrics._inputs import ArrayLike
from halflabel.metrics.ranking import mean_average_precision
from halflabel.metrics.thresholded import calibration_error, exact_match, precision_recall_f1

__all__ = ["summary"]


def summary(scores: ArrayLike, labels: ArrayLike, thresholds: float | ArrayLike = 0.5) -> dict[str, float]:
    """All single-number metrics of probabilities (N, C) against labels (N, C), over known entries.

    "classes" is the number of classes with a known positive, over which mAP, CP, CR and macro_f1 are averaged.
    """
    return {
        "mAP": mean_average_precision(scores, labels),
        **{name: float(value) for name, value in precision_recall_f1(scores, labels, thresholds)._asdict().items()},
        "exact_match": exact_match(scores, labels, thresholds),
        "ECE": calibration_error(scores, labels),
    }
