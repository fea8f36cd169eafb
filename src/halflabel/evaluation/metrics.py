"""Metrics: functions of scores (N, C) and labels (N, C) in {-1, 0, +1}, tensors or arrays, over the known entries.

0 means unknown and is skipped. NaN means that there was nothing to measure, and is left out of means.
"""

from halflabel.evaluation.intervals import bootstrap, limits, positives_of_mean, resample
from halflabel.evaluation.ranking import average_precision, mean_average_precision
from halflabel.evaluation.thresholded import (
    accuracy,
    calibration_error,
    completion_rates,
    decision_counts,
    exact_match,
    precision_recall_f1,
    summary,
)

__all__ = [
    "accuracy",
    "average_precision",
    "bootstrap",
    "calibration_error",
    "completion_rates",
    "decision_counts",
    "exact_match",
    "limits",
    "mean_average_precision",
    "positives_of_mean",
    "precision_recall_f1",
    "resample",
    "summary",
]
