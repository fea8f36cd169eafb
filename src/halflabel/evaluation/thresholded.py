"""Metrics of decisions against known labels: present or absent, by a threshold or by the top k of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.evaluation._inputs import ArrayLike, as_labels, as_pair, as_tensor, row_blocks
from halflabel.evaluation.ranking import mean_average_precision, mean_known


class Counts(NamedTuple):
    """Counts of known entries per class, each (C,) int64: true positives, predicted positives, positives, negatives.

    Rates are NaN for a class without a known positive or without a known negative: there is nothing to find, or no
    possible false alarm, and predicting "present" everywhere would be perfect.
    """

    hits: Tensor
    predicted: Tensor
    positives: Tensor
    negatives: Tensor

    @property
    def precision(self) -> Tensor:
        """hits / predicted (C,): 0 with nothing predicted."""
        return self._share(self.hits, self.predicted)

    @property
    def recall(self) -> Tensor:
        """hits / positives (C,)."""
        return self._share(self.hits, self.positives)

    @property
    def f1(self) -> Tensor:
        """2 hits / (predicted + positives) (C,)."""
        return self._share(2 * self.hits, self.predicted + self.positives)

    @property
    def judged(self) -> Tensor:
        """Classes with a known positive and a known negative: bool (C,)."""
        return (self.positives > 0) & (self.negatives > 0)

    def _share(self, part: Tensor, whole: Tensor) -> Tensor:
        return (part.double() / whole.clamp(min=1)).masked_fill_(~self.judged, torch.nan)


class PrecisionRecallF1(NamedTuple):
    """Precision, recall and F1 averaged over the `classes` that are judged (C-, macro) and overall (O-, micro)."""

    CP: float
    CR: float
    CF1: float
    OP: float
    OR: float
    OF1: float
    macro_f1: float
    micro_f1: float
    classes: int


class Completion(NamedTuple):
    """Rates of filled-in labels, each in [0, 1]; NaN where nothing can be counted."""

    tp_rate: float
    tn_rate: float
    accuracy: float
    label_proportion: float


def precision_recall_f1(
    scores: ArrayLike, labels: ArrayLike, thresholds: float | ArrayLike = 0.5, *, top_k: int | None = None
) -> PrecisionRecallF1:
    """Precision, recall and F1 of decisions over known entries (Durand 2019, supplementary A.3).

    Per class c: P_c = hits_c / predicted_c, R_c = hits_c / positives_c, F1_c = 2 hits_c / (predicted_c + positives_c).
      CP, CR, macro_f1   means of P_c, R_c, F1_c over the classes with a known positive and a known negative
      CF1                2 CP CR / (CP + CR), which is not macro_f1
      OP, OR, OF1        the same from hits, predicted and positives summed over all classes; micro_f1 = OF1
    The precision of a class with nothing predicted is 0 (some papers leave such a class out, which rewards predicting
    nothing), and CF1 is 0 where CP and CR are. Without any known positive or any known negative, all are NaN.

    Arguments and decisions as in `decision_counts`.
    """
    return rates(decision_counts(scores, labels, thresholds, top_k=top_k))


def rates(counts: Counts) -> PrecisionRecallF1:
    """Compute precision, recall and F1 from the counts of each class: see `precision_recall_f1`."""
    total = Counts(*(column.sum(0, keepdim=True) for column in counts))
    cp, cr, of1 = mean_known(counts.precision), mean_known(counts.recall), float(total.f1)
    return PrecisionRecallF1(
        CP=cp,
        CR=cr,
        CF1=0.0 if cp + cr == 0 else 2 * cp * cr / (cp + cr),
        OP=float(total.precision),
        OR=float(total.recall),
        OF1=of1,
        macro_f1=mean_known(counts.f1),
        micro_f1=of1,
        classes=int(counts.judged.sum()),
    )


def decision_counts(
    scores: ArrayLike, labels: ArrayLike, thresholds: float | ArrayLike = 0.5, *, top_k: int | None = None
) -> Counts:
    """Count hits, predicted, positives and negatives of each class over known entries.

    scores, labels: (N, C); labels in {-1, 0, +1}, 0 skipped. An entry is predicted present where score >= threshold,
    one number or (C,), rounded to the scores' type; or, with `top_k`, where it is among the k highest scores of its
    image, equal scores by lower class index. The top k is taken among all classes, known or not.
    """
    table, known = as_pair(scores, labels)
    counts = torch.zeros(len(Counts._fields), table.shape[1], dtype=torch.int64, device=table.device)
    for rows, decided in _decisions(table, thresholds, top_k):
        present, absent = known[rows] > 0, known[rows] < 0
        parts = (decided & present, decided & (present | absent), present, absent)
        counts += torch.stack([part.sum(0) for part in parts])
    return Counts(*counts)


def rate_residuals(
    scores: ArrayLike, labels: ArrayLike, thresholds: float | ArrayLike, counts: Counts
) -> dict[str, Tensor]:
    """Return how much each image (N,) moves OP, OR, micro_f1 and macro_f1; the sum over all images is 0.

    A rate is R = Σ a / Σ b over images. The sum of its linearisation (Taylor), (a_i − R b_i) / Σ b, has about the
    variance of R. Of macro_f1 it is the mean over the classes that are judged. `counts` are those of these decisions.
    """
    table, known = as_pair(scores, labels)
    hits, predicted, positives = (part.double() for part in counts[:3])
    both, judged = predicted + positives, counts.judged.double()
    micro, of_class = (2 * hits.sum() / both.sum()).expand_as(hits), 2 * hits / both.clamp(min=1)
    share = judged / (both.clamp(min=1) * judged.sum())
    none, one = torch.zeros_like(hits), torch.ones_like(hits)
    weights = {  # of hits, of predicted and of positives, by class
        "OP": (one / predicted.sum(), one * hits.sum() / predicted.sum() ** 2, none),
        "OR": (one / positives.sum(), none, one * hits.sum() / positives.sum() ** 2),
        "micro_f1": (2 / both.sum() * one, micro / both.sum(), micro / both.sum()),
        "macro_f1": (2 * share, of_class * share, of_class * share),
    }
    of_hits, of_predicted, of_positives = (torch.stack(part, 1) for part in zip(*weights.values(), strict=True))
    residuals = of_hits.new_zeros(len(table), len(weights))
    for rows, decided in _decisions(table, thresholds, None):
        present, called = (known[rows] > 0).double(), (decided & (known[rows] != 0)).double()
        residuals[rows] = (present * called) @ of_hits - called @ of_predicted - present @ of_positives
    return dict(zip(weights, residuals.T, strict=True))


def exact_match(
    scores: ArrayLike, labels: ArrayLike, thresholds: float | ArrayLike = 0.5, *, top_k: int | None = None
) -> float:
    """Return the 0-1 exact match: the share of images whose known entries are all right (Durand 2019, eq. 16).

    Images without a known entry are left out; NaN if none is left. Arguments and decisions as in `decision_counts`.
    """
    table, known = as_pair(scores, labels)
    right = images = 0
    for rows, decided in _decisions(table, thresholds, top_k):
        labelled = known[rows] != 0
        wrong = labelled & (decided != (known[rows] > 0))
        counted = labelled.any(1)
        images += int(counted.sum())
        right += int((counted & ~wrong.any(1)).sum())
    return _ratio(right, images)


def accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of images whose highest score is that of their one positive; for single-label data.

    The highest score is taken among all classes, known or not; of equal scores, that of the lower class index. Images
    without a positive are left out; an image with two positives raises UserError. scores, labels: (N, C).
    """
    table, known = as_pair(scores, labels)
    present = known > 0
    number = present.sum(1)
    if bool((number > 1).any()):
        image = int((number > 1).nonzero()[0])
        raise UserError(
            f"image {image} has {int(number[image])} positives",
            "accuracy is for single-label data: use mean_average_precision or precision_recall_f1",
        )
    right = present.gather(1, table.argmax(1, keepdim=True)).sum() if present.any() else 0
    return _ratio(int(right), int(number.sum()))


def calibration_error(scores: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Return the expected calibration error of probabilities over known entries, in equal bins (Guo 2017, eq. 3).

    ECE = sum over bins b of n_b / n * | share of +1 in b - mean score in b |

    NaN without a known entry. A score of a known entry outside [0, 1] raises UserError. scores, labels: (N, C).
    """
    if bins < 1:
        raise UserError(f"{bins} bins are not possible", "use at least 1")
    table, known = as_pair(scores, labels)
    excess = torch.zeros(bins, dtype=torch.float64, device=table.device)  # of positives over the sum of scores
    entries = 0
    for rows in row_blocks(table):
        labelled = known[rows] != 0
        score = table[rows][labelled].double()
        if score.numel() and (float(score.min()) < 0 or float(score.max()) > 1):
            raise UserError(
                f"scores range from {float(score.min()):g} to {float(score.max()):g}",
                "pass probabilities: apply a sigmoid to the logits",
            )
        number = (score * bins).long().clamp_(max=bins - 1)
        excess += torch.bincount(number, (known[rows][labelled] > 0).double() - score, minlength=bins)
        entries += len(score)
    return float(excess.abs().sum()) / entries if entries else float("nan")


def completion_rates(predicted: ArrayLike, truth: ArrayLike, given: ArrayLike) -> Completion:
    """True positive rate, true negative rate and accuracy of filled-in labels, and the share of entries labelled.

    Over the filled-in entries F (predicted != 0, given = 0) whose truth is known (Durand 2019, tables 2 and 8, which
    do not define the rates):
      tp_rate            of those in F that are truly +1, the share labelled +1
      tn_rate            of those in F that are truly -1, the share labelled -1
      accuracy           of F, the share labelled right
      label_proportion   of all entries, the share labelled: predicted != 0 or given != 0 ("clean + weak labels")
    """
    tables = {"predicted": predicted, "true": truth, "given": given}
    filled, true, clean = (as_labels(table, f"{name} labels") for name, table in tables.items())
    if not filled.shape == true.shape == clean.shape:
        raise UserError(
            f"predicted, true and given labels have the shapes {[tuple(t.shape) for t in (filled, true, clean)]}",
            "give all of them as images by classes, shape (N, C)",
        )
    true, clean = true.to(filled.device), clean.to(filled.device)
    new = (filled != 0) & (clean == 0) & (true != 0)
    right = new & (filled == true)

    def share(known: Tensor) -> float:
        return _ratio(int((right & known).sum()), int((new & known).sum()))

    labelled = int(((filled != 0) | (clean != 0)).sum())
    return Completion(share(true > 0), share(true < 0), share(true != 0), _ratio(labelled, filled.numel()))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def summary(scores: ArrayLike, labels: ArrayLike, thresholds: float | ArrayLike = 0.5) -> dict[str, float]:
    """Return all single-number metrics of probabilities (N, C) against labels (N, C), over known entries."""
    return {
        "mAP": mean_average_precision(scores, labels),
        **{name: float(value) for name, value in precision_recall_f1(scores, labels, thresholds)._asdict().items()},
        "exact_match": exact_match(scores, labels, thresholds),
        "ECE": calibration_error(scores, labels),
    }


def _decisions(scores: Tensor, thresholds: float | ArrayLike, top_k: int | None) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of images with their decisions, bool (n, C)."""
    classes = scores.shape[1]
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k is {top_k}", "ask for at least 1 class per image")
    if isinstance(thresholds, int | float):
        thresholds = torch.tensor(thresholds, dtype=torch.float64)
    limits = as_tensor(thresholds)
    if limits.numel() != 1 and limits.shape != (classes,):
        raise UserError(
            f"thresholds have the shape {tuple(limits.shape)}", f"give one number, or one per class: ({classes},)"
        )
    if bool(limits.isnan().any()):
        raise UserError("a threshold is NaN", "give every class a number, such as 0.5")
    limits = limits.reshape(-1).to(scores)
    for rows in row_blocks(scores):
        yield rows, scores[rows] >= limits if top_k is None else _top(scores[rows], top_k)


def _top(scores: Tensor, k: int) -> Tensor:
    """Return which entries are among the k highest of their row, equal ones by lower class index: bool (n, C)."""
    if k >= scores.shape[1]:
        return torch.ones_like(scores, dtype=torch.bool)
    lowest = scores.topk(k, dim=1).values[:, -1:]
    above, tied = scores > lowest, scores == lowest
    return above | (tied & (tied.cumsum(1) <= k - above.sum(1, keepdim=True)))
