"""Evaluation of scores on known labels, with a description of the protocol."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import metrics
from halflabel.labels.names import Names
from halflabel.metrics.calibration import Platt, fit_platt

__all__ = ["Evaluation", "ValidationMetric", "evaluate", "fit_decisions"]

GROUPED = 10  # from this number of classes on, mAP is also computed for five groups of classes


@dataclass(frozen=True)
class Evaluation:
    """Metrics over all classes, and one row per class with its interval and its number of known labels."""

    overall: dict[str, float]
    per_class: list[dict[str, Any]]
    protocol: str

    def noting_excluded(self, count: int) -> Evaluation:
        """Return a copy whose protocol says that `count` labels made by a model were not used."""
        note = f"; {count} labels made by a model are not used" if count else ""
        return replace(self, protocol=self.protocol + note)


class ValidationMetric:
    """Computes the metric of validation logits after each epoch; `select` picks the best epoch; higher is better.

    With known negatives it is the mAP over known entries. If only positives are known, every ranking of the known
    entries is perfect, so unknown entries then count as absent: biased, but it still ranks epochs, and it needs no
    hidden labels.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.assumes_absent = not bool((labels < 0).any())

    def __call__(self, logits: Tensor) -> dict[str, float]:
        readable = ~torch.isnan(logits).any(1)
        labels = self.labels[readable]
        if self.assumes_absent:
            labels = torch.where(labels > 0, 1, -1).to(torch.int8)
        value = metrics.mean_average_precision(logits[readable], labels)
        return {"assumed_mAP" if self.assumes_absent else "mAP": value, "select": value}


def fit_decisions(logits: Tensor, labels: Tensor) -> tuple[Platt, Tensor]:
    """Fit how a run decides: the calibration, and for each class the probability (C,) from which on it is present.

    logits (N, C): scores by models that did not see these labels; NaN rows are images that could not be read. Without
    any known negative the thresholds are 0.5.
    """
    platt = fit_platt(logits, labels)
    if not bool((labels < 0).any()):
        return platt, torch.full((labels.shape[1],), 0.5)
    readable = ~torch.isnan(logits).any(1)
    return platt, metrics.shrunk_thresholds(platt.scores(logits)[readable], labels[readable]).float()


def evaluate(
    logits: Tensor,
    labels: Tensor,
    classes: Names,
    *,
    thresholds: Tensor | float = 0.5,
    platt: Platt | None = None,
    annotations: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Evaluate logits (N, C) on labels (N, C): known entries only, without images that could not be read.

    A class without known negatives has no AP and is left out of mAP, because every ranking of its known entries is
    perfect. If no class has known negatives, no decision can be a false positive either: all metrics but recall are
    NaN, and the protocol says so. `thresholds` is one value for all classes or one per class, (C,). With the number of
    known training labels per class in `annotations` (C,), mAP is also computed for five groups of classes, from G1
    (fewest labels) to G5.
    """
    readable = ~torch.isnan(logits).any(1)
    logits, labels = logits[readable], labels[readable]
    scores = (platt or Platt()).scores(logits)
    overall = metrics.summary(scores, labels, thresholds)
    intervals = metrics.bootstrap(logits, labels, n=400)
    overall["mAP"] = intervals.mean  # from logits, like every AP: probabilities near 1 round to ties
    overall["mAP_low"], overall["mAP_high"] = intervals.mean_low, intervals.mean_high
    if annotations is not None and len(classes) >= GROUPED:
        groups = metrics.group_means(intervals.ap, annotations).groups.tolist()
        overall |= {f"G{number}": value for number, value in enumerate(groups, 1)}
    overall["images"] = float(len(labels))
    counts = metrics.decision_counts(scores, labels, thresholds)
    threshold_of = np.broadcast_to(np.asarray(thresholds), (len(classes),))
    per_class: list[dict[str, Any]] = [
        {
            "class": name,
            "present": int((labels[:, c] > 0).sum()),
            "absent": int((labels[:, c] < 0).sum()),
            "AP": float(intervals.ap[c]),
            "AP_low": float(intervals.ap_low[c]),
            "AP_high": float(intervals.ap_high[c]),
            "threshold": float(threshold_of[c]),
            "precision": float(counts.precision[c]),
            "recall": float(counts.recall[c]),
        }
        for c, name in enumerate(classes)
    ]
    unreadable = int((~readable).sum())
    protocol = (
        f"known entries only; {int((labels != 0).sum())} of {labels.numel()} entries known; "
        f"AP non-interpolated, tied scores together; {sum(not math.isnan(row['AP']) for row in per_class)} of "
        f"{len(classes)} classes have a known positive and a known negative; 95 % intervals from 400 resamples of the "
        f"images, wider where known positives are few; present or absent by "
        + (f"one threshold of {thresholds:g}" if isinstance(thresholds, int | float) else "the threshold of each class")
    )
    if not bool((labels < 0).any()):
        recall = counts.hits.double() / counts.positives  # NaN for a class without known positives
        overall = dict.fromkeys(overall, math.nan) | {"images": overall["images"]}
        overall |= {"CR": float(recall.nanmean()), "OR": float(counts.hits.sum() / counts.positives.sum())}
        overall["classes"] = float((counts.positives > 0).sum())
        per_class = [row | {"recall": float(recall[c])} for c, row in enumerate(per_class)]
        protocol += "; no label is known to be absent, so only recall can be measured: label some negatives"
    if unreadable:
        protocol += f"; {unreadable} of these {len(readable)} images could not be read and are left out"
    return Evaluation(overall, per_class, protocol)
