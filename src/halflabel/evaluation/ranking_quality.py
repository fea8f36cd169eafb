"""The quality of a ranking, by which out-of-fold and held-out scores choose strengths, similar images and heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from halflabel.evaluation.ranking import mean_average_precision

_SORTED_ENTRIES = 4_000_000  # at most this many scores are sorted to measure the quality of one choice


def sampling_step(shape: tuple[int, ...]) -> int:
    """Return the distance of the classes that the quality of scores of this shape (N, C) is measured on."""
    return max(1, -(-shape[0] * shape[1] // _SORTED_ENTRIES))


def has_negatives_to_rank(labels: Tensor) -> bool:
    """Return whether known labels can rank scores: at least half as many are absent as present.

    Few negatives would measure little, and those that a person was asked about are the difficult ones.
    """
    return 2 * int((labels < 0).sum()) >= int((labels > 0).sum())


def ranking_quality(scores: Tensor, labels: Tensor) -> float:
    """Return the mean average precision over classes with a known positive and a known negative, or 0.

    With too few known negatives to rank, unknown entries count as negatives: a known positive should rank above most of
    the others, which holds for every method's ranking alike. At most 4 million entries are sorted: of larger tables
    classes are taken at equal distances. Images whose first score is NaN are left out.
    """
    step = sampling_step(scores.shape)
    scored = ~torch.isnan(scores[:, 0])
    scores, labels = scores[scored, ::step], labels[scored, ::step]
    if not has_negatives_to_rank(labels):
        labels = torch.where(labels > 0, 1, -1)
    quality = mean_average_precision(scores, labels)
    return 0.0 if math.isnan(quality) else quality
