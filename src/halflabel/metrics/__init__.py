"""Metrics: pure functions of scores (N, C) and labels (N, C) in {-1, 0, +1}, over the known entries.

0 is unknown and skipped: the score of an unknown entry changes no result (`top_k` and `accuracy`, which look at an
image's whole ranking, say where it does). NaN means that there was nothing to measure, and is left out of means.
Tensors on any device, or NumPy arrays.
"""

from __future__ import annotations

from halflabel.metrics.blockwise import Blockwise, blockwise
from halflabel.metrics.completion import Completion, completion_rates
from halflabel.metrics.intervals import Bootstrap, bootstrap, limits, positives_of_mean, resample
from halflabel.metrics.ranking import (
    GroupMeans,
    Kind,
    average_precision,
    best_thresholds,
    group_means,
    mean_average_precision,
)
from halflabel.metrics.summary import summary
from halflabel.metrics.thresholded import (
    Counts,
    PrecisionRecallF1,
    accuracy,
    calibration_error,
    decision_counts,
    exact_match,
    precision_recall_f1,
)
from halflabel.metrics.wilson import wilson

__all__ = [
    "Blockwise",
    "Bootstrap",
    "Completion",
    "Counts",
    "GroupMeans",
    "Kind",
    "PrecisionRecallF1",
    "accuracy",
    "average_precision",
    "best_thresholds",
    "blockwise",
    "bootstrap",
    "calibration_error",
    "completion_rates",
    "decision_counts",
    "exact_match",
    "group_means",
    "limits",
    "mean_average_precision",
    "positives_of_mean",
    "precision_recall_f1",
    "resample",
    "summary",
    "wilson",
]
