"""Average precision, its means over classes and groups, what training chooses by, and thresholds with the best F1.

All are computed from the *cuts* of a class: go through its known entries by descending score, tied scores together, and
at each step with a new positive note how many entries (rank) and how many positives (hits) have at least that score.
Steps without a new positive only lower the precision at the same recall, and no metric here needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.evaluation._inputs import ArrayLike, as_pair, as_tensor

Kind = Literal["sklearn", "voc07", "interpolated"]

# Entries of a class block. Each takes up to about 100 bytes (masks, and one cut if all entries are positive). Larger
# blocks exceed the processor's cache; a GPU needs larger ones to be busy.
_CPU_ENTRIES = 1 << 20
_GPU_ENTRIES = 1 << 23
_SORTED_ENTRIES = 4_000_000  # at most this many scores are sorted to measure the quality of one choice


class Cuts(NamedTuple):
    """The thresholds of c classes at which positives enter, as flat arrays by class and descending score.

    row (K,) the class of each cut; hits, rank (K,) the positives and the known entries with score >= `score` (K,);
    before (K,) the hits of the class's previous cut, 0 at its first; positives (c,) all known positives.
    """

    row: Tensor
    hits: Tensor
    before: Tensor
    rank: Tensor
    score: Tensor
    positives: Tensor


class GroupMeans(NamedTuple):
    """Means per group of classes, G1 (fewest annotations) first, and over all; NaN where no class has a value."""

    groups: Tensor
    all: float


def average_precision(scores: ArrayLike, labels: ArrayLike, kind: Kind = "sklearn") -> Tensor:
    """Return the average precision of each class over its known entries.

    With hits h_k, rank r_k at the k-th distinct score from the top, P known positives, precision p_k = h_k / r_k,
    recall h_k / P and envelope e_k = max of p_j over j >= k:
      "sklearn"       sum over k of (h_k - h_(k-1)) / P * p_k     no interpolation, as average_precision_score
      "interpolated"  sum over k of (h_k - h_(k-1)) / P * e_k     area under the envelope, PASCAL VOC from 2010 on
      "voc07"         1/11 * sum over t = 0..10 of max of p_k over k with 10 h_k >= t P    11-point, PASCAL VOC 2007
    Tied scores enter together, so that the order of images never matters. Any monotone transform of the scores gives
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
    return _per_class(table, known, partial(_area, kind=kind)).masked_fill_(~(known < 0).any(0), torch.nan)


def mean_average_precision(scores: ArrayLike, labels: ArrayLike, kind: Kind = "sklearn") -> float:
    """Return the mean of `average_precision` over the classes with a known positive and a known negative, or NaN."""
    return mean_known(average_precision(scores, labels, kind))


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

    By it out-of-fold and held-out scores choose strengths, similar images and heads. With too few known negatives to
    rank, unknown entries count as negatives: a known positive should rank above most of the others, which holds for
    every method's ranking alike. At most 4 million entries are sorted: of larger tables classes are taken at equal
    distances. Images whose first score is NaN are left out.
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


def best_thresholds(scores: ArrayLike, labels: ArrayLike) -> Tensor:
    """Return per class the threshold t with the highest F1 of "present where score >= t" over known entries.

    F1 at a cut = 2 hits / (rank + P). t is one of the class's scores; of equal F1 the highest t is taken. A class
    without a known positive or without a known negative gets 0.5. Choose thresholds on other data than those that
    metrics are reported on.

    scores, labels: (N, C) as in `average_precision`. Returns (C,) float64.
    """
    table, known = as_pair(scores, labels)
    return _per_class(table, known, _best_f1).masked_fill_(~(known < 0).any(0), 0.5)


def group_means(values: ArrayLike, counts: ArrayLike, groups: int = 5) -> GroupMeans:
    """Return the means of `values` over equal groups of classes by number of annotations (Huynh 2020, section 4.5).

    Classes are sorted by `counts`, ascending and stable, and cut into groups whose sizes differ by at most one (larger
    ones first). NaN values are left out of their group's mean and of the mean over all.

    values: (C,); counts: (C,) annotations per class in the training set. Returns groups (groups,) float64, and all.

    >>> group_means(np.array([0.1, 0.5, np.nan, 0.3]), np.array([9, 1, 2, 5]), groups=2)
    GroupMeans(groups=tensor([0.5000, 0.2000], dtype=torch.float64), all=0.3)
    """
    per_class, annotations = as_tensor(values).to(torch.float64), as_tensor(counts)
    if per_class.ndim != 1 or per_class.shape != annotations.shape:
        raise UserError(
            f"values have the shape {tuple(per_class.shape)} and counts {tuple(annotations.shape)}",
            "give one value and one count per class",
        )
    if groups < 1:
        raise UserError(f"{groups} groups are not possible", "use at least 1")
    order = annotations.argsort(stable=True).to(per_class.device)
    means = [mean_known(part) for part in per_class[order].tensor_split(groups)]
    return GroupMeans(torch.tensor(means, dtype=torch.float64), mean_known(per_class))


def mean_known(values: Tensor) -> float:
    """Return the mean over the entries that are not NaN; NaN if there are none."""
    return float(values.double().nanmean())


def class_blocks(scores: Tensor) -> list[slice]:
    """Return slices of classes that limit the working memory."""
    images, classes = scores.shape
    entries = _CPU_ENTRIES if scores.device.type == "cpu" else _GPU_ENTRIES
    step = max(1, entries // max(1, images))
    return [slice(start, min(start + step, classes)) for start in range(0, classes, step)]


def sorted_cuts(scores: Tensor, labels: Tensor) -> tuple[Cuts, Tensor, Tensor]:
    """Compute the cuts of a class block by one sort with indices, for any type and device.

    scores, labels: (N, c). Returns the cuts, the images (c, N) from the highest score down, and their labels (c, N).
    """
    ordered, images = scores.T.contiguous().sort(dim=1, descending=True)
    sorted_labels = labels.T.gather(1, images)
    hits = (sorted_labels > 0).cumsum(1)
    ends = torch.ones_like(ordered, dtype=torch.bool)
    ends[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    row, column = ends.nonzero(as_tuple=True)
    reached = hits[row, column]
    before = reached.roll(1)
    before[:1] = 0
    before[1:][row[1:] != row[:-1]] = 0
    entered = reached > before
    row, column, reached, before = row[entered], column[entered], reached[entered], before[entered]
    rank = (sorted_labels != 0).cumsum(1)[row, column]
    cuts = Cuts(row, reached, before, rank, ordered[row, column].double(), hits[:, -1])
    return cuts, images, sorted_labels


def _packed_cuts(scores: Tensor, labels: Tensor) -> Cuts:
    """Compute the cuts of a class block by sorting integers that pack score and label; float32 or narrower, CPU.

    Sorting values is far faster than sorting with indices, and only the label has to stay with the score. Read as an
    integer, the bits of a float increase with it (with the lower bits inverted if negative). The key is

        2 (highest - bits) + [label = +1],     unknown: the largest even number

    so that ascending keys are descending scores, positives come last within ties (where the cut is), unknown entries
    are at the end, and odd keys are positives. Scores that span less than half of all floats, such as probabilities,
    fit into 32 bits.
    """
    images, classes = scores.shape
    # Adding 0 gives -0.0 and 0.0 the same bits, and transposes to classes by images at the same time.
    floats = np.add(scores.float().numpy().T, np.float32(0), order="C")
    table = np.ascontiguousarray(labels.numpy().T)
    bits = floats.view(np.int32)
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)
    lowest, highest = int(bits.min()), int(bits.max())
    narrow = highest - lowest < 2**31 - 1
    keys = (np.int32(highest) - bits).view(np.uint32) if narrow else (highest - bits.astype(np.int64)).view(np.uint64)
    keys <<= 1
    keys |= table > 0
    keys |= np.multiply(table == 0, np.iinfo(keys.dtype).max - 1, dtype=keys.dtype)
    keys.sort(axis=1)

    place = np.flatnonzero((keys & 1).astype(bool))
    key = keys.ravel()[place]
    row = place // images
    positives = np.bincount(row, minlength=classes)
    last = np.ones(len(place), dtype=bool)
    last[:-1] = (key[1:] != key[:-1]) | (row[1:] != row[:-1])
    number = np.flatnonzero(last)
    row, rank = row[number], (place - row * images)[number] + 1
    hits = number + 1 - (positives.cumsum() - positives)[row]
    before = np.zeros_like(hits)
    before[1:] = np.where(row[1:] == row[:-1], hits[:-1], 0)
    cut_bits = (highest - (key[number] >> 1).astype(np.int64)).astype(np.int32)
    cut_bits ^= (cut_bits >> 31) & np.int32(0x7FFFFFFF)
    score = cut_bits.view(np.float32).astype(np.float64)
    return Cuts(*(torch.from_numpy(column) for column in (row, hits, before, rank, score, positives)))


def _per_class(scores: Tensor, labels: Tensor, reduce: Callable[[Cuts], Tensor]) -> Tensor:
    """Apply `reduce` to the cuts of every class, block by block: (C,) float64."""
    images, classes = scores.shape
    if images == 0 or classes == 0:
        none = torch.zeros(0, dtype=torch.int64, device=scores.device)
        positives = torch.zeros(classes, dtype=torch.int64, device=scores.device)
        return reduce(Cuts(none, none, none, none, none.double(), positives))
    is_packed = scores.device.type == "cpu" and scores.dtype != torch.float64
    parts = []
    for block in class_blocks(scores):
        pair = scores[:, block], labels[:, block]
        parts.append(reduce(_packed_cuts(*pair) if is_packed else sorted_cuts(*pair)[0]))
    return torch.cat(parts)


def _area(cuts: Cuts, kind: Kind) -> Tensor:
    """Return average precision (c,): the precision of each cut, or its envelope, weighted by the recall it adds."""
    height = cuts.hits.double() / cuts.rank
    if kind != "sklearn":
        height = _envelope(height, cuts)
    positives = cuts.positives[cuts.row]
    if kind == "voc07":
        # h positives reach the levels t = 0 .. floor(10 h / P); exact in integers, unlike recall >= 0.3.
        levels_before = torch.where(cuts.before > 0, 10 * cuts.before // positives + 1, 0)
        weight, whole = 10 * cuts.hits // positives + 1 - levels_before, torch.full_like(cuts.positives, 11)
    else:
        weight, whole = cuts.hits - cuts.before, cuts.positives
    # Divided once at the end: sums of whole numbers are exact, so that a perfect ranking gives 1, not 1 + 2e-16.
    area = torch.zeros_like(cuts.positives, dtype=torch.float64).index_add_(0, cuts.row, weight * height)
    return (area / whole).masked_fill_(cuts.positives == 0, torch.nan)


def _envelope(precision: Tensor, cuts: Cuts) -> Tensor:
    """Return the highest precision at this or any later cut of the same class: (K,)."""
    if len(precision) == 0:
        return precision
    lengths = cuts.row.bincount(minlength=len(cuts.positives))
    column = torch.arange(len(cuts.row), device=cuts.row.device) - (lengths.cumsum(0) - lengths)[cuts.row]
    table = precision.new_zeros(len(lengths), int(lengths.max()))
    table[cuts.row, column] = precision
    return table.flip(1).cummax(1).values.flip(1)[cuts.row, column]


def _best_f1(cuts: Cuts) -> Tensor:
    """Return the score (c,) of the first cut with the highest F1; 0.5 for a class without positives."""
    f1 = 2 * cuts.hits.double() / (cuts.rank + cuts.positives[cuts.row])
    best = torch.zeros_like(cuts.positives, dtype=torch.float64).scatter_reduce_(0, cuts.row, f1, "amax")
    first = cuts.score.masked_fill(f1 < best[cuts.row], -torch.inf)
    chosen = torch.full_like(best, -torch.inf).scatter_reduce_(0, cuts.row, first, "amax")
    return chosen.masked_fill_(cuts.positives == 0, 0.5)
