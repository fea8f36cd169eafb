"""The quality of a ranking, by which out-of-fold and held-out scores choose strengths, similar images and heads."""

from __future__ import annotations

import torch
from torch import Tensor

_SORTED_ENTRIES = 4_000_000  # at most this many scores are sorted to measure the quality of one choice


def sampling_step(shape: tuple[int, ...]) -> int:
    """Return the distance of the classes that the quality of scores of this shape (N, C) is measured on."""
    return max(1, -(-shape[0] * shape[1] // _SORTED_ENTRIES))


def has_negatives_to_rank(labels: Tensor) -> bool:
    """Return whether known labels can rank scores: at least half as many are absent as present.

    Few negatives would measure little, and those that a person was asked about are the difficult ones. A ranking does
    not depend on their share, so they may be fewer than `evaluation.calibration.has_negatives_to_calibrate` asks for.
    """
    return 2 * int((labels < 0).sum()) >= int((labels > 0).sum())


def ranking_quality(scores: Tensor, labels: Tensor) -> float:
    """Return the mean average precision over classes with a known positive, on known entries.

    With too few known negatives to rank, unknown entries count as negatives: a known positive should rank above most of
    the others, which holds for every method's ranking alike. At most 4 million entries are sorted: of larger tables
    classes are taken at equal distances. Images whose first score is NaN are left out.
    """
    step = sampling_step(scores.shape)
    scored = ~torch.isnan(scores[:, 0])
    scores, labels = scores[scored, ::step], labels[scored, ::step]
    scores, labels = scores.T.contiguous(), labels.T.contiguous()  # sorting along rows is faster
    positive = labels > 0
    counted = labels != 0 if has_negatives_to_rank(labels) else torch.ones_like(positive)
    order = torch.sort(scores.masked_fill(~counted, -torch.inf), dim=1, descending=True, stable=True)[1]
    hits = positive.gather(1, order)
    precision = hits.cumsum(1) / counted.gather(1, order).cumsum(1).clamp(min=1)
    positives = positive.sum(1)
    average = (precision * hits).sum(1) / positives.clamp(min=1)
    measurable = (positives > 0) & (positives < counted.sum(1))
    return float(average[measurable].mean()) if bool(measurable.any()) else 0.0
