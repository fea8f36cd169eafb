"""Evaluation: what scores are worth, measured on known labels, with the protocol named."""

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
from halflabel.metrics.calibration import Platt

__all__ = ["Evaluation", "Judge", "evaluate"]

GROUPED = 10  # classes from which on they are also judged in five groups


@dataclass(frozen=True)
class Evaluation:
    """Metrics over all classes, and one line per class with its interval and the evidence behind it."""

    overall: dict[str, float]
    per_class: list[dict[str, Any]]
    protocol: str

    def less(self, made: int) -> Evaluation:
        """The same, whose protocol says that so many labels made by a model did not count."""
        note = f"; {made} labels that a model made are not counted" if made else ""
        return replace(self, protocol=self.protocol + note)


def _with_negatives(labels: Tensor) -> Tensor:
    """The labels of classes of which something is known to be absent; the others as if nothing were known."""
    return torch.where((labels < 0).any(0), labels, 0)


class Judge:
    """Measures validation logits after each epoch; "select" is what the best epoch is chosen by.

    With known negatives that is the mAP over known entries. Where only positives are known every ranking of the known
    entries is perfect, so unknown entries are then counted as absent: biased, but it still ranks epochs, and it uses no
    hidden truth.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.assumes_absent = not bool((labels < 0).any())

    def __call__(self, logits: Tensor) -> dict[str, float]:
        readable = ~torch.isnan(logits).any(1)
        labels = self.labels[readable]
        if self.assumes_absent:
            labels = torch.where(labels > 0, 1, -1).to(torch.int8)
        value = metrics.mean_average_precision(logits[readable], _with_negatives(labels))
        return {"assumed_mAP" if self.assumes_absent else "mAP": value, "select": value}


def evaluate(
    logits: Tensor,
    labels: Tensor,
    classes: Names,
    *,
    thresholds: Tensor | float = 0.5,
    platt: Platt | None = None,
    annotations: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Measure logits (N, C) against labels (N, C): known entries only, images that could not be read left out.

    Where nothing of a class is known to be absent, every ranking of its known entries is perfect: it has no AP and is
    left out of mAP. If that is so of all classes, no decision can be a false alarm either: all but recall is then NaN,
    and the protocol says so. `thresholds` are one for all classes or one per class, (C,). With the number of known
    training labels per class in `annotations` (C,), mAP is also given for five equal groups of classes, G1 (fewest) to
    G5.
    """
    readable = ~torch.isnan(logits).any(1)
    logits, labels = logits[readable], labels[readable]
    scores = (platt or Platt()).scores(logits)
    overall = metrics.summary(scores, labels, thresholds)
    ranked = _with_negatives(labels)
    intervals = metrics.bootstrap(logits, ranked, n=400)
    overall["mAP"] = intervals.mean  # of logits, as all AP here: probabilities near 1 round to ties
    overall["mAP_low"], overall["mAP_high"] = intervals.mean_low, intervals.mean_high
    if annotations is not None and len(classes) >= GROUPED:
        groups = metrics.group_means(intervals.ap, annotations).groups.tolist()
        overall |= {f"G{number}": value for number, value in enumerate(groups, 1)}
    overall["images"] = float(len(labels))
    counts = metrics.decision_counts(scores, labels, thresholds)
    cut = np.broadcast_to(np.asarray(thresholds), (len(classes),))
    per_class: list[dict[str, Any]] = [
        {
            "class": name,
            "present": int((labels[:, c] > 0).sum()),
            "absent": int((labels[:, c] < 0).sum()),
            "AP": float(intervals.ap[c]),
            "AP_low": float(intervals.ap_low[c]),
            "AP_high": float(intervals.ap_high[c]),
            "threshold": float(cut[c]),
            "precision": float(counts.precision[c]),
            "recall": float(counts.recall[c]),
        }
        for c, name in enumerate(classes)
    ]
    left_out = int((~readable).sum())
    protocol = (
        f"known entries only; {int((labels != 0).sum())} of {labels.numel()} entries known; "
        f"AP non-interpolated, tied scores together; {sum(not math.isnan(row['AP']) for row in per_class)} of "
        f"{len(classes)} classes have a known positive and a known negative; 95 % intervals from 400 resamples of the "
        f"images, wider where known positives are few; present or absent by "
        + (f"one threshold of {thresholds:g}" if isinstance(thresholds, int | float) else "each class's own threshold")
    )
    if not bool((labels < 0).any()):
        recall = counts.hits.double() / counts.positives  # NaN where nothing is known at all
        overall = dict.fromkeys(overall, math.nan) | {"images": overall["images"]}
        overall |= {"CR": float(recall.nanmean()), "OR": float(counts.hits.sum() / counts.positives.sum())}
        overall["classes"] = float((counts.positives > 0).sum())
        per_class = [row | {"recall": float(recall[c])} for c, row in enumerate(per_class)]
        protocol += "; nothing is known to be absent here, so only recall can be measured: label some negatives"
    if left_out:
        protocol += f"; {left_out} of these {len(readable)} images could not be read and are left out"
    return Evaluation(overall, per_class, protocol)
