"""Evaluation of scores on known labels, with a description of the protocol."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel import metrics
from halflabel.evaluation._inputs import row_blocks
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions, fit_decisions
from halflabel.evaluation.registry import Shown, own_metrics, shown_metrics
from halflabel.evaluation.scores import Scores
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.split import group_numbers
from halflabel.labels.table import Table, are_nearly_all_positive
from halflabel.system import memory

RESAMPLES = 400  # of the images, for intervals
GROUPED = 10  # from this number of classes on, mAP is also computed for five groups of classes


@dataclass(frozen=True)
class Evaluation:
    """Metrics over all classes, and one row per class with its interval and its number of known labels."""

    overall: dict[str, float]
    per_class: list[dict[str, Any]]
    protocol: str

    def noting_excluded(self, count: int, *, with_answers: bool = False) -> Evaluation:
        """Return a copy whose protocol says that `count` labels made by a model, or answers, were not used."""
        kind = "labels made by a model or asked for in a review" if with_answers else "labels made by a model"
        note = f"; {count} {kind} are not used" if count else ""
        return replace(self, protocol=self.protocol + note)

    def lines(self) -> list[Shown]:
        """Return title, value, interval and note of each metric over all classes, as all commands and pages show it."""
        return shown_metrics(self.overall)


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


def evaluate(
    scores: Scores,
    labels: Labels | Table,
    *,
    decisions: Decisions | None = None,
    positives_per_image: float = 0.0,
    annotations: NDArray[np.int64] | None = None,
    groups: Sequence[object] | NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
) -> tuple[Decisions, Evaluation]:
    """Calibrate scores, choose thresholds (`fit_decisions`) and measure both (`measure`) on labels of their images.

    scores: by models that did not see these labels, for the classes of the labels. Of `Labels`, those for evaluation
    are used, and answers to random questions correct the probabilities. With `decisions` nothing is fitted.
    """
    rows = labels.images.index(scores.images.array)
    table = (labels if isinstance(labels, Table) else labels.evaluation).subset(rows)
    logits, known = torch.from_numpy(scores.logits), torch.from_numpy(table.dense())
    if decisions is None:
        control = None if isinstance(labels, Table) or labels.control is None else labels.control[rows]
        decisions = fit_decisions(logits, known, control=control, positives_per_image=positives_per_image)
    evaluation = measure(
        logits,
        known,
        table.classes,
        decisions,
        annotations=annotations,
        groups=groups,
        resamples=resamples,
    )
    if isinstance(labels, Labels):
        with_answers = labels.people.known > labels.evaluation.known
        excluded = labels.training.subset(rows).known - table.known
        evaluation = evaluation.noting_excluded(excluded, with_answers=with_answers)
    return decisions, evaluation


def measure(
    logits: Tensor,
    labels: Tensor,
    classes: Names,
    decisions: Decisions | None = None,
    *,
    annotations: NDArray[np.int64] | None = None,
    groups: Sequence[object] | NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
) -> Evaluation:
    """Measure logits (N, C) on labels (N, C): known entries only, without images that could not be read.

    A class without known negatives has no AP and is left out of mAP, because every ranking of its known entries is
    perfect. If no class has known negatives, no decision can be a false positive either: all metrics but recall are
    NaN, and the protocol says so. Without `decisions` the threshold is 0.5. With the number of
    known training labels per class in `annotations` (C,), mAP is also computed for five groups of classes, from G1
    (fewest labels) to G5. Intervals resample images, or whole `groups` (N,) of them; 0 `resamples` give none.
    """
    calibration, thresholds = decisions or Decisions(Calibration(), torch.full((len(classes),), 0.5))
    readable = torch.cat([torch.zeros(0, dtype=torch.bool), *(~logits[r].isnan().any(1) for r in row_blocks(logits))])
    group = group_numbers(groups, len(labels))[readable.cpu().numpy()]
    if not readable.all():
        logits, labels = _take_rows(logits, readable), labels[readable]
    scores = memory.scratch_zeros(logits.shape, what=f"the scores of {len(logits)} images take")
    for rows in row_blocks(logits):
        scores[rows] = calibration.scores(logits[rows])
    overall = metrics.summary(scores, labels, thresholds)
    overall |= own_metrics(scores, labels, thresholds)
    intervals = metrics.bootstrap(logits, labels, n=resamples, groups=group)
    overall["mAP"] = intervals.mean  # from logits, like every AP: probabilities near 1 round to ties
    overall["mAP_low"], overall["mAP_high"] = intervals.mean_low, intervals.mean_high
    if annotations is not None and len(classes) >= GROUPED:
        fifths = metrics.group_means(intervals.ap, annotations).groups.tolist()
        overall |= {f"G{number}": value for number, value in enumerate(fifths, 1)}
    overall["images"] = float(len(labels))
    counts = metrics.decision_counts(scores, labels, thresholds)
    columns: dict[str, list[Any]] = {
        "class": list(classes),
        "present": (labels > 0).sum(0).tolist(),
        "absent": (labels < 0).sum(0).tolist(),
        "AP": intervals.ap.tolist(),
        "AP_low": intervals.ap_low.tolist(),
        "AP_high": intervals.ap_high.tolist(),
        "threshold": thresholds.tolist(),
        "precision": counts.precision.tolist(),
        "recall": counts.recall.tolist(),
    }
    per_class = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    measured = sum(not math.isnan(row["AP"]) for row in per_class)
    resampled = f"{resamples} resamples of the {'images' if groups is None else 'groups of images'}"
    protocol = _protocol(labels, thresholds, measured, resampled)
    if are_nearly_all_positive(labels, labels.numel()):
        recall = counts.hits.double() / counts.positives  # NaN for a class without known positives
        overall = dict.fromkeys(overall, math.nan) | {"images": overall["images"]}
        overall |= {"CR": float(recall.nanmean()), "OR": float(counts.hits.sum() / counts.positives.sum())}
        overall["classes"] = float((counts.positives > 0).sum())
        overall |= _estimate_precision(scores, labels, thresholds, group, resamples)
        unmeasured = dict.fromkeys(("AP", "AP_low", "AP_high", "precision"), math.nan)
        per_class = [row | unmeasured | {"recall": float(recall[c])} for c, row in enumerate(per_class)]
        count = sum(columns["absent"])
        few = f"only {count} labels are known to be absent" if count else "no label is known to be absent"
        assumption = calibration.assumption or "scores are probabilities"
        protocol += f"; {few}, so recall is measured and precision is estimated, assuming that {assumption}"
    if unreadable := int((~readable).sum()):
        protocol += f"; {unreadable} of these {len(readable)} images could not be read and are left out"
    return Evaluation(overall, per_class, protocol)


def _protocol(labels: Tensor, thresholds: Tensor, measured: int, resampled: str) -> str:
    """Say what was measured, by thresholds (C,), and how: the number of classes with an AP, and what was resampled."""
    is_one = len(set(thresholds.tolist())) == 1
    return (
        f"known entries only; {int((labels != 0).sum())} of {labels.numel()} entries known; "
        f"AP non-interpolated, tied scores together; {measured} of {len(thresholds)} classes have a known positive and "
        f"a known negative; 95 % intervals from {resampled}, wider where known positives are few; present or absent by "
        + (f"one threshold of {thresholds[0]:.2g}" if is_one else "the threshold of each class")
    )


def _take_rows(table: Tensor, wanted: Tensor) -> Tensor:
    """Return some rows of a table (N, C), in a scratch file if they are large."""
    rows = wanted.nonzero()[:, 0]
    taken = memory.scratch_zeros((len(rows), table.shape[1]), what=f"the logits of {len(rows)} images take")
    for block in row_blocks(taken):
        taken[block] = table[rows[block]]
    return taken


def _estimate_precision(
    scores: Tensor, labels: Tensor, thresholds: Tensor, group: NDArray[np.int64], resamples: int
) -> dict[str, float]:
    """Expected precision, recall and micro F1 of the decisions if scores (N, C) are probabilities.

    Known labels count as certain. The 95 % interval of the precision comes from resamples of the groups (N,) of
    images: it says nothing about the assumption.
    """
    p = torch.where(labels == 0, scores.double(), (labels > 0).double()).cpu().numpy()
    called = (scores >= thresholds).cpu().numpy()
    per_image = np.stack([(p * called).sum(1), called.sum(1), p.sum(1)], 1)  # expected hits, called, expected present
    generator = np.random.default_rng(0)
    images = max(len(p), 1)
    number = np.unique(group, return_inverse=True)[1].reshape(-1)
    per_group = np.stack([np.bincount(number, column) for column in per_image.T], 1)
    drawn = (generator.integers(0, max(len(per_group), 1), len(per_group)) for _ in range(resamples))
    resampled = np.reshape([per_group[groups].sum(0) for groups in drawn], (resamples, 3))
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")  # nothing is called present
        low, high = np.nanpercentile(np.append(resampled[:, 0] / resampled[:, 1], np.nan), (2.5, 97.5))
        hits, count, present = per_image.sum(0)
        return {
            "estimated_precision": float(hits / count),
            "estimated_precision_low": float(low),
            "estimated_precision_high": float(high),
            "estimated_recall": float(hits / present),
            "estimated_f1": float(2 * hits / (count + present)),
            "called_present": float(count / images),
        }
