"""Evaluation of scores on known labels, with a description of the protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from halflabel import metrics
from halflabel.evaluation._inputs import row_blocks
from halflabel.evaluation.calibration import Calibration, fit_correction
from halflabel.evaluation.decisions import Decisions, fit_decisions
from halflabel.evaluation.intervals import rate_limits
from halflabel.evaluation.registry import Shown, own_metrics, shown_metrics
from halflabel.evaluation.scores import Scores
from halflabel.evaluation.thresholded import Counts, rate_residuals, rates
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.split import group_numbers
from halflabel.labels.table import Table, are_nearly_all_positive
from halflabel.system import memory

RESAMPLES = 400  # of the images, for intervals
# Known positives that a class needs where scores are out of fold: of two, the model that scored one knew one other.
# Measured on three sets (benchmarks/stated_f1.py): the AP of classes with one is 28 to 66 points too low.
FEWEST_OUT_OF_FOLD = 3
_LEAST_SLOPE = 0.05  # probabilities keep the order of the logits
_DRAWS = 40  # of slope and offset, for intervals


@dataclass(frozen=True)
class Evaluation:
    """Metrics over all classes, and one row per class with its interval and its number of known labels."""

    overall: dict[str, float]
    per_class: list[dict[str, Any]]
    protocol: str
    images: str = ""  # how many were new, how many the model was trained on, and what scored these

    def noting_excluded(self, count: int, *, with_answers: bool = False) -> Evaluation:
        """Return a copy whose protocol says that `count` labels made by a model, or answers, were not used."""
        kind = "labels made by a model or asked for in a review" if with_answers else "labels made by a model"
        note = f"; {count} {kind} are not used" if count else ""
        return replace(self, protocol=self.protocol + note)

    def __repr__(self) -> str:
        return f"<evaluation: {', '.join(f'{shown.title} {shown.with_interval}' for shown in self.lines())}>"

    def lines(self) -> list[Shown]:
        """Return title, value, interval and note of each metric over all classes, as all commands and pages show it."""
        return shown_metrics(self.overall)


class ValidationMetric:
    """Computes the metric of validation logits after each epoch; `select` picks the best epoch; higher is better.

    It is the mAP over known entries. If only positives are known, unknown entries count as absent: biased, but it
    still ranks epochs.
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
    groups: Sequence[object] | NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
) -> tuple[Decisions, Evaluation]:
    """Calibrate scores, choose thresholds (`fit_decisions`) and measure both (`measure`) on labels of their images.

    scores: by models that did not see these labels, for the classes of the labels. Of `Labels`, those for evaluation
    are used, and answers to random questions correct the probabilities. With `decisions` nothing is fitted. Where
    answers are all that is known, precision, recall and F1 are those that the probabilities fitted to them expect.
    """
    labels = Labels.of(labels)
    rows, is_fitted, is_asked = labels.images.index(scores.images.array), decisions is None, labels.is_asked
    table, control = labels.evaluation.subset(rows), None if labels.control is None else labels.control[rows]
    logits, known = torch.from_numpy(scores.logits), torch.from_numpy(table.dense())
    if decisions is None:
        decisions = fit_decisions(
            logits, known, control=control, positives_per_image=positives_per_image, is_asked=is_asked
        )
    evaluation = measure(
        logits,
        known,
        table.classes,
        decisions,
        groups=groups,
        resamples=resamples,
        fewest=FEWEST_OUT_OF_FOLD if scores.kind == "out-of-fold" else 1,
        asked=control if is_asked else None,
    )
    if is_fitted:  # a model says how good it is itself: by enough labels, or not at all
        behind = [row["present"] for row in evaluation.per_class if row["recall"] == row["recall"]]
        evaluation.overall["positives"] = float(labels.unchosen.stats.positives.sum() if is_asked else sum(behind))
    with_answers = labels.people.known > labels.evaluation.known
    excluded = labels.training.subset(rows).known - table.known
    return decisions, evaluation.noting_excluded(excluded, with_answers=with_answers)


def measure(
    logits: Tensor,
    labels: Tensor,
    classes: Names,
    decisions: Decisions | None = None,
    *,
    groups: Sequence[object] | NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    fewest: int = 1,
    asked: csr_array | None = None,
) -> Evaluation:
    """Measure logits (N, C) on labels (N, C): known entries only, without images that could not be read.

    A class without known negatives or with less than the `fewest` known positives has no AP and is left out of mAP and
    macro F1, but its entries count in micro F1. If no class has known negatives, all metrics but recall are NaN.
    Without `decisions` the threshold is 0.5. Intervals of AP resample images, or whole `groups` (N,) of them; 0
    `resamples` give none. Labels that were `asked` for at random (N, C), with inclusion weights, estimate all of it.
    """
    calibration, thresholds = decisions or Decisions(Calibration(), torch.full((len(classes),), 0.5))
    readable = torch.cat([torch.zeros(0, dtype=torch.bool), *(~logits[r].isnan().any(1) for r in row_blocks(logits))])
    group = group_numbers(groups, len(labels))[readable.cpu().numpy()]
    if not readable.all():
        logits, labels = logits[readable], labels[readable]
    scores = memory.scratch_zeros(logits.shape, what=f"the scores of {len(logits)} images take")
    for rows in row_blocks(logits):
        scores[rows] = calibration.scores(logits[rows])
    overall = metrics.summary(scores, labels, thresholds)
    overall |= own_metrics(scores, labels, thresholds)
    counts = metrics.decision_counts(scores, labels, thresholds)
    has_few = counts.positives < fewest
    if fewest > 1:  # a class without negatives is not judged
        counts = counts._replace(negatives=counts.negatives.masked_fill(has_few, 0))
        overall |= {name: float(value) for name, value in rates(counts)._asdict().items()}
    intervals = metrics.bootstrap(logits, labels.masked_fill(has_few, 0), n=resamples, groups=group)
    overall["mAP"] = intervals.mean  # from logits, like every AP: probabilities near 1 round to ties
    overall["mAP_low"], overall["mAP_high"] = intervals.mean_low, intervals.mean_high
    overall["images"] = float(len(labels))
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
        "f1": counts.f1.tolist(),
    }
    per_class = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    measured = sum(not math.isnan(row["AP"]) for row in per_class)
    needed = "a known positive" if fewest == 1 else f"{fewest} known positives"
    resampled = f"{resamples} resamples of the {'images' if groups is None else 'groups of images'}"
    protocol = _protocol(labels, thresholds, f"{measured} of {len(classes)} classes have {needed}", resampled)
    if asked is not None:
        z, plausible = calibration.log_odds(logits.double()), _plausible_change(calibration, logits, asked, readable)
        overall = dict.fromkeys(overall, math.nan) | {"images": overall["images"], "classes": float(len(classes))}
        overall |= _expected_rates(scores, labels, thresholds, group, (z, plausible))
        overall["asked_classes"] = float(len(classes))
        del overall["OR"]
        unmeasured = dict.fromkeys(("AP", "AP_low", "AP_high", "precision", "recall", "f1"), math.nan)
        per_class = [row | unmeasured for row in per_class]
        protocol = f"estimated for all entries, by probabilities that {asked.nnz} answers to random questions corrected"
    elif are_nearly_all_positive(labels, labels.numel()):
        recall = counts.hits.double() / counts.positives  # NaN for a class without known positives
        overall = dict.fromkeys(overall, math.nan) | {"images": overall["images"]}
        overall |= {"CR": float(recall.nanmean()), "OR": float(counts.hits.sum() / counts.positives.sum())}
        overall["classes"] = float((counts.positives > 0).sum())
        overall |= _expected_rates(scores, labels, thresholds, group)
        unmeasured = dict.fromkeys(("AP", "AP_low", "AP_high", "precision"), math.nan)
        per_class = [row | unmeasured | {"recall": float(recall[c])} for c, row in enumerate(per_class)]
        count = sum(columns["absent"])
        few = f"only {count} labels are known to be absent" if count else "no label is known to be absent"
        assumption = calibration.assumption or "scores are probabilities"
        protocol += f"; {few}, so recall is measured and precision is estimated, assuming that {assumption}"
    if resamples and asked is None:
        overall |= _rate_intervals(scores, labels, thresholds, counts, overall, group)
    if unreadable := int((~readable).sum()):
        protocol += f"; {unreadable} of these {len(readable)} images could not be read and are left out"
    return Evaluation(overall, per_class, protocol)


def _protocol(labels: Tensor, thresholds: Tensor, measured: str, resampled: str) -> str:
    """Say what was measured, by thresholds (C,), and how: how many classes have an AP, and what was resampled."""
    is_one = len(set(thresholds.tolist())) == 1
    return (
        f"known entries only; {int((labels != 0).sum())} of {labels.numel()} entries known; "
        f"AP non-interpolated, tied scores together; {measured} and "
        f"a known negative; 95 % intervals from {resampled}, wider where known positives are few; present or absent by "
        + (f"one threshold of {thresholds[0]:.2g}" if is_one else "the threshold of each class")
    )


def _rate_intervals(
    scores: Tensor,
    labels: Tensor,
    thresholds: Tensor,
    counts: Counts,
    overall: Mapping[str, float],
    group: NDArray[np.int64],
) -> dict[str, float]:
    """Return the ends of the 95 % intervals of precision, recall, micro F1 and macro F1."""
    hits, predicted, positives = (part[counts.judged].double() for part in counts[:3])
    basis = {"OP": float(counts.predicted.sum()), "macro_f1": metrics.positives_of_mean(positives)}
    # Few entries of a class may all be right, or wrong, by chance: four more of the mean quality, as Agresti and Coull.
    f1 = (2 * hits + 4 * overall["macro_f1"]) / (predicted + positives + 4)
    by_chance = float((2 * f1 * (1 - f1) / (predicted + positives)).sum()) / max(len(f1), 1) ** 2
    ends: dict[str, float] = {}
    for name, residual in rate_residuals(scores, labels, thresholds, counts).items():
        positives_behind, least = basis.get(name, float(counts.positives.sum())), by_chance * (name == "macro_f1")
        limits = rate_limits(overall[name], residual, positives_behind, group, least)
        ends |= dict(zip((f"{name}_low", f"{name}_high"), limits, strict=True))
    return ends


def _plausible_change(calibration: Calibration, logits: Tensor, asked: csr_array, readable: Tensor) -> Calibration:
    """Return no change of calibrated log odds, with the covariance that answers to random questions leave.

    logits (M, C) are those of the `readable` (N,) images; `asked` (N, C) holds inclusion weights, negative for no.
    """
    answers = asked[readable.numpy()]
    z = calibration.log_odds(logits[answers.nonzero()].double().numpy(), answers.nonzero()[1])
    change = fit_correction(z, answers.data > 0, np.abs(answers.data))
    return Calibration(known=len(z), covariance=change.covariance)


def _expected_rates(
    scores: Tensor,
    labels: Tensor,
    thresholds: Tensor,
    group: NDArray[np.int64],
    corrected: tuple[Tensor, Calibration] | None = None,
) -> dict[str, float]:
    """Expected precision, recall and micro F1 of the decisions if scores (N, C) are probabilities, with 95 % intervals.

    Known labels count as certain. The intervals come from the spread over groups (N,) of images: they say nothing about
    the probabilities, unless these are `corrected`: log odds (N, C), and a change of them with its covariance.
    """
    called = (scores >= thresholds).double()

    def rates(p: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Numerator and denominator of each rate, per image."""
        p = torch.where(labels == 0, p.double(), (labels > 0).double())
        hits, number, present = (p * called).sum(1), called.sum(1), p.sum(1)
        return {"precision": (hits, number), "recall": (hits, present), "f1": (2 * hits, number + present)}

    values, plausible = {"called_present": float(called.sum(1).mean())}, []
    if corrected is not None:
        log_odds, change = corrected
        for slope, offset in change.draws(_DRAWS).tolist():
            plausible.append(rates(torch.sigmoid(max(slope, _LEAST_SLOPE) * log_odds + offset)))
    for name, (part, whole) in rates(scores).items():
        total = whole.sum()
        value = part.sum() / total
        low, high = rate_limits(float(value), (part - value * whole) / total, float(total), group)
        if plausible:
            drawn = [float(each[name][0].sum() / each[name][1].sum()) for each in plausible]
            low, high = min(low, float(np.quantile(drawn, 0.025))), max(high, float(np.quantile(drawn, 0.975)))
        names = (f"estimated_{name}", f"estimated_{name}_low", f"estimated_{name}_high")
        values |= dict(zip(names, (float(value), low, high), strict=True))
    return values
