"""Average precision, and what training chooses by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.errors import UserError
from halflabel.evaluation._inputs import ArrayLike, as_pair

Kind = Literal["sklearn", "voc07", "interpolated"]

_BLOCK_CLASSES = 64  # of which scores are copied at a time
_SORTED_ENTRIES = 4_000_000  # at most this many scores are sorted to measure the quality of one choice


def average_precision(scores: ArrayLike, labels: ArrayLike, kind: Kind = "sklearn") -> Tensor:
    """Return the average precision of each class over its known entries.

    h_i and r_i are the numbers of known positives and of known entries that score at least as much as the i-th of P
    known positives, p_i = h_i / r_i the precision there, and e_i = max of p_j over the j that score at most as much:
      "sklearn"       mean of p_i     no interpolation, as average_precision_score
      "interpolated"  mean of e_i     area under the envelope, PASCAL VOC from 2010 on
      "voc07"         1/11 * sum over t = 0..10 of max of p_i over i with 10 h_i >= t P    11-point, PASCAL VOC 2007
    Tied scores count together, so that the order of images never matters. Any monotone transform of the scores gives
    the same result.

    scores: (N, C) floating; labels: (N, C) in {-1, 0, +1}; 0 is skipped. Returns (C,) float64 on the scores' device,
    NaN where a class has no known positive or no known negative: without negatives every ranking would have AP 1. NaN
    scores raise UserError, also at unknown entries.

    >>> labels = torch.tensor([[1, 0], [-1, -1], [1, -1]], dtype=torch.int8)
    >>> average_precision(torch.tensor([[0.9, 0.1], [0.5, 0.2], [0.3, 0.3]]), labels)
    tensor([0.8333,    nan], dtype=torch.float64)
    """
    if kind not in get_args(Kind):
        raise UserError(f"there is no average precision of the kind {kind!r}", f"use one of {get_args(Kind)}")

    table, known = as_pair(scores, labels)
    values = torch.full((table.shape[1],), math.nan, dtype=torch.float64)
    for c, column, truth in chain.from_iterable(class_blocks(table, known)):
        entries, positives = np.sort(column[truth != 0]), np.sort(column[truth > 0])
        hits, rank = (len(each) - np.searchsorted(each, positives) for each in (positives, entries))
        precision = hits / rank
        if kind == "voc07":  # compared in integers, unlike recall >= 0.3
            values[c] = math.fsum(precision[10 * hits >= level * len(hits)].max() for level in range(11)) / 11
        else:
            values[c] = (np.maximum.accumulate(precision) if kind == "interpolated" else precision).mean()
    return values.to(table.device)


def mean_average_precision(scores: ArrayLike, labels: ArrayLike, kind: Kind = "sklearn") -> float:
    """Return the mean of `average_precision` over the classes with a known positive and a known negative, or NaN."""
    return mean_known(average_precision(scores, labels, kind))


def sampling_step(shape: tuple[int, ...]) -> int:
    """Return the distance of the classes that the quality of scores of this shape (N, C) is measured on."""
    return max(1, -(-shape[0] * shape[1] // _SORTED_ENTRIES))


def has_negatives_to_rank(labels: Tensor) -> bool:
    """Return whether known labels can rank scores: at least half as many are absent as present."""
    return 2 * int((labels < 0).sum()) >= int((labels > 0).sum())


def ranking_quality(scores: Tensor, labels: Tensor) -> float:
    """Return the mean average precision by which training chooses, or 0 where no class has one.

    With too few known negatives to rank, unknown entries count as negatives. At most 4 million entries are sorted: of
    larger tables classes are taken at equal distances. Images whose first score is NaN are left out.
    """
    quality = mean_known(ranking_quality_of_classes(scores, labels))
    return 0.0 if math.isnan(quality) else quality


def ranking_quality_of_classes(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the average precisions whose mean is `ranking_quality`, NaN for classes without one."""
    step = sampling_step(scores.shape)
    scored = ~torch.isnan(scores[:, 0])
    scores, labels = scores[scored, ::step], labels[scored, ::step]
    if not has_negatives_to_rank(labels):
        labels = torch.where(labels > 0, 1, -1)
    return average_precision(scores, labels)


def mean_known(values: Tensor) -> float:
    """Return the mean over the entries that are not NaN; NaN if there are none."""
    return float(values.double().nanmean())


def class_blocks(scores: Tensor, labels: Tensor) -> Iterator[list[tuple[int, NDArray[Any], NDArray[Any]]]]:
    """Yield number, scores (N,) and labels (N,) of classes with a known positive and a known negative, in blocks."""
    for first in range(0, scores.shape[1], _BLOCK_CLASSES):
        columns, truths = (each[:, first : first + _BLOCK_CLASSES].T.contiguous().cpu() for each in (scores, labels))
        columns = columns if columns.dtype == torch.float64 else columns.float()
        block = zip(range(first, scores.shape[1]), columns.numpy(), truths.numpy(), strict=False)
        yield [each for each in block if (each[2] > 0).any() and (each[2] < 0).any()]
