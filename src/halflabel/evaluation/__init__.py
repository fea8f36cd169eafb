"""Metrics: pure functions of scores (N, C) and labels (N, C) in {-1, 0, +1}, over the known entries.

0 means unknown and is skipped: the score of an unknown entry changes no result (`top_k` and `accuracy`, which look at
the whole ranking of an image, say where it does). NaN means that there was nothing to measure, and is left out of
means. Inputs are tensors on any device, or NumPy arrays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halflabel.evaluation.intervals import bootstrap, limits, positives_of_mean, resample
    from halflabel.evaluation.ranking import (
        Kind,
        average_precision,
        best_thresholds,
        group_means,
        mean_average_precision,
    )
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
    "Kind",
    "accuracy",
    "average_precision",
    "best_thresholds",
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
]

# `calibration` is used where torch, which takes seconds to import, is not needed.
_MODULES = ("intervals", "ranking", "thresholded")


def __getattr__(name: str) -> Any:
    """Import an exported name from its module on first use."""
    if name in __all__:
        for module in _MODULES:
            members = import_module(f"{__name__}.{module}")
            if hasattr(members, name):
                value = globals()[name] = getattr(members, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
