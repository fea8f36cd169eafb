"""Confidence intervals: of average precision by the bootstrap, of rates such as F1 by their linearisation."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from halflabel.errors import UserError
from halflabel.evaluation._inputs import ArrayLike, as_pair
from halflabel.evaluation.ranking import average_precision, class_blocks, mean_known
from halflabel.system import memory
from halflabel.system.rng import uniform

_CHUNK_ENTRIES = 1 << 22


class Bootstrap(NamedTuple):
    """Average precision with its interval, per class (C,) float64 and for the mean over classes.

    `replicates` (n,) are the means of all replicates. Two methods scored on the same images with the same seed share
    their draws. Replicates are biased upwards (see `limits`): their quantiles are not an interval.
    """

    ap: Tensor
    ap_low: Tensor
    ap_high: Tensor
    mean: float
    mean_low: float
    mean_high: float
    replicates: Tensor


def bootstrap(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    n: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
) -> Bootstrap:
    """Return average precision ("sklearn") and its mean, with intervals from n replicates of the images.

    A replicate draws N images with replacement (`resample`), the same ones for every class. Drawing an image w times
    gives it the weight w, so that the images are sorted only once:

        AP = sum over positives i of w_i / H * H_i / R_i,
        H_i, R_i = weights of the positives, of all known entries, that score at least as much; H that of all positives

    The interval is that of `limits`, with the variance of the replicates and the bias mean(AP*) - AP; for the mean over
    classes, with those of the replicates' means, and with `positives_of_mean`. Replicates in which a class has no
    positive are left out. A class without a known positive or without a known negative has NaN throughout.

    Images that are not independent, such as those of one patient, are drawn together: `groups` (N,) numbers the group
    of each image.

    scores, labels: (N, C) as in `average_precision`. Memory: N n bytes for the weights, from 256 MB on in a scratch
    file, and 8 n C for the replicates.
    """
    if n < 0 or not 0 < level < 1:
        raise UserError(f"{n} replicates at the level {level} give no interval", "use n >= 0 and 0 < level < 1")
    table, known = as_pair(scores, labels)
    images, classes = table.shape
    values = torch.full((n, classes), torch.nan, dtype=torch.float64)
    step = max(1, min(128, _CHUNK_ENTRIES // max(images, 1)))
    group = np.arange(images) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    weights = memory.scratch_zeros((n, images), torch.uint8, "the replicates take")
    for r in range(0, n, step) if images else ():
        weights[r : r + step] = torch.from_numpy(_weights(group, range(r, min(r + step, n)), seed))
    for block in class_blocks(table, known):
        cuts = {c: _Cuts.of(column, truth) for c, column, truth in block}
        for r in range(0, n, step):
            weight = weights[r : r + step].T.contiguous().float()
            for c, each in cuts.items():
                values[r : r + step, c] = each.precision(weight)
    ap = average_precision(table, known).cpu()
    means = values.nanmean(1)
    positives = ((known > 0) & (known < 0).any(0)).sum(0).cpu()
    low, high = _limits_from_replicates(ap, values, positives, level)
    mean = mean_known(ap)
    effective = ap.new_tensor([positives_of_mean(positives)])
    mean_low, mean_high = _limits_from_replicates(ap.new_tensor([mean]), means[:, None], effective, level)
    return Bootstrap(ap, low, high, mean, float(mean_low), float(mean_high), means)


def limits(
    value: Tensor, variance: Tensor, bias: Tensor, positives: Tensor, quantile: float = 1.96
) -> tuple[Tensor, Tensor]:
    """Return the ends of an interval of (mean) average precision that contains the value and stays within [0, 1].

    A Wilson interval of as many trials as would have that variance, widened where there are few positives P:

        u = variance / (value (1 - value)) + 2 / P²                       one over the trials
        W(c) = (c + z² u / 2 ± z √(c (1 - c) u + z² u² / 4)) / (1 + z² u)
        low  = lower end of W(value - 2 max(bias, 0)),    high = upper end of W(value)

    It estimates the AP on the population that the images come from. Quantiles of replicates miss it on small sets: a
    positive drawn twice ranks before itself, so that replicates are too high, and with one or two positives they hardly
    vary. The AP of few positives is itself too high on average, by about twice the bootstrap's estimate of the bias.
    benchmarks/coverage.py measures how often the interval contains the truth; the factors 2 were chosen there.

    value, variance, bias of the replicates, positives: tensors of one shape; quantile: z.

    >>> import torch
    >>> [round(float(end), 3) for end in limits(*torch.tensor([[0.8], [0.01], [0.02], [10.0]]).double())]
    [0.479, 0.937]
    """
    square = quantile**2
    spread = value * (1 - value)
    per_trial = torch.where(spread > 0, variance / spread, 0.0) + 2 / positives.double() ** 2
    half, whole = square * per_trial / 2, 1 + square * per_trial
    lowered = (value - 2 * bias.clamp(min=0)).clamp(min=0)
    low, high = (
        (centre + half + sign * (2 * half * centre * (1 - centre) + half**2).clamp(min=0).sqrt()) / whole
        for centre, sign in ((lowered, -1), (value, 1))
    )
    # In exact arithmetic the value lies between the ends; rounding may move an end past a value near 0 or 1.
    return torch.minimum(low.clamp(min=0), value), torch.maximum(high.clamp(max=1), value)


def rate_limits(
    value: float, residual: Tensor, positives: float, group: NDArray[np.int64], least_variance: float = 0.0
) -> tuple[float, float]:
    """Return `limits` of a rate from how much each image (N,) moves it; groups (N,) of images are drawn together."""
    number = torch.from_numpy(np.unique(group, return_inverse=True)[1].reshape(-1))
    if not len(number) or positives <= 0:
        return math.nan, math.nan
    sums = torch.zeros(int(number.max()) + 1, dtype=torch.float64).index_add_(0, number, residual.cpu().double())
    variance = sums.square().sum() * len(sums) / max(len(sums) - 1, 1)
    variance = variance.clamp(min=least_variance)
    ends = limits(*torch.tensor([value, float(variance), 0.0, positives], dtype=torch.float64))
    return float(ends[0]), float(ends[1])


def positives_of_mean(positives: Tensor) -> float:
    """Return as how many positives of a single class those of several (C,) count in `limits` of their mean.

    min(Σ_c P_c, √2 C / √(Σ_c 1 / P_c²))     over the classes that have any
    """
    present = positives[positives > 0].double()
    return float(min(present.sum(), 2**0.5 * len(present) / (present**-2).sum().sqrt())) if len(present) else 0.0


def _limits_from_replicates(
    value: Tensor, replicates: Tensor, positives: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    """Return `limits` of values (C,) from their replicates (n, C); NaN replicates are left out."""
    if not len(replicates):
        return torch.full_like(value, torch.nan), torch.full_like(value, torch.nan)
    drawn = (~replicates.isnan()).sum(0)
    mean = replicates.nanmean(0)
    variance = (replicates - mean).square_().nansum(0) / (drawn - 1).clamp(min=1)
    return limits(value, variance, (mean - value).nan_to_num(0), positives, NormalDist().inv_cdf((1 + level) / 2))


def resample(images: int, replicates: range, seed: int = 0) -> NDArray[np.int64]:
    """Return the images that each replicate draws with replacement: (len(replicates), images), by seed and number."""
    which = np.arange(replicates.start, replicates.stop, replicates.step)[:, None]
    return (uniform(seed, which, np.arange(images)[None, :]) * images).astype(np.int64)


def _weights(group: NDArray[np.int64], replicates: range, seed: int) -> NDArray[np.int64]:
    """Return how often each replicate draws the group of each image: (len(replicates), images), far below 256."""
    groups = int(group.max()) + 1
    counts = [np.bincount(drawn, minlength=groups) for drawn in resample(groups, replicates, seed)]
    return np.stack(counts)[:, group]


class _Cuts(NamedTuple):
    """The known entries of a class by descending score, divided where a positive enters; tied scores enter together."""

    images: Tensor  # of the entries down to the last positive
    starts: Tensor  # (K,) of each part
    hits: Tensor  # images of the positives
    hit_starts: Tensor  # (K,)

    @classmethod
    def of(cls, scores: NDArray[Any], labels: NDArray[Any]) -> _Cuts:
        """Sort the scores (N,) of a class."""
        order = np.argsort(-scores, kind="stable")
        order = order[labels[order] != 0]
        hits = order[labels[order] > 0]
        ends = [np.unique(np.searchsorted(-scores[each], -scores[hits], side="right")) for each in (order, hits)]
        starts, hit_starts = (np.append(0, each[:-1]) for each in ends)
        return cls(*map(torch.from_numpy, (order[: ends[0][-1]], starts, hits, hit_starts)))

    def precision(self, weight: Tensor) -> Tensor:
        """Return the average precision (n,) of images with these weights (N, n) float32."""
        ranks = embedding_bag(self.images, weight, self.starts, mode="sum").double().cumsum(0)
        hits = embedding_bag(self.hits, weight, self.hit_starts, mode="sum").double()
        above = hits.cumsum(0)
        # Where nothing is drawn yet there are no hits either: 0 / 1 instead of 0 / 0.
        return (hits * above / ranks.clamp(min=1)).sum(0) / above[-1]
