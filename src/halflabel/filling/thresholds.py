"""Thresholds per class from which fills reach a precision, with a confidence bound.

Works on counts per class and per bin of probability, so it costs the same for a thousand images and for ten million.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.inclusion import weighted_share
from halflabel.system.intervals import lower_bound

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

BINS = 400
_REACH = 10.0  # logits of probabilities beyond ±10 share the outermost bins
_SLICES = 4  # slices of the filled range of probabilities, for weights
_LEVELS = 40
_SHARES = (0.8, 0.1, 0.1)  # shares of the allowed error, for the three starts
_SHRINK = 20.0  # pseudo-count that shrinks the precision of a class towards its mean probability
_CLASS_SIGMAS, _CLASS_SHARE = 5.0, 0.25  # standard errors and deviations by which known labels of a class differ


def bin_of(p: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the bin of each probability, 0 … BINS − 1, equally wide in logits; −1 for NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log(p) - np.log1p(-np.asarray(p, np.float64))
    bins = np.floor((np.clip(x, -_REACH, _REACH) + _REACH) * (BINS / (2 * _REACH)))
    return np.where(np.isnan(bins), -1, np.minimum(bins, BINS - 1)).astype(np.int64)


def bin_logits() -> Floats:
    """Return the logit in the middle of each bin (BINS,)."""
    return np.asarray((np.arange(BINS) + 0.5) * (2 * _REACH / BINS) - _REACH)


class BinCounts(NamedTuple):
    """Numbers of entries by class and bin of P(present), all (C, BINS).

    Memory: 40 bytes per class and bin, 16 kB per class.
    """

    unknown: Floats  # entries that may be filled
    summed: Floats  # the sum of their probabilities
    present: Floats  # known positives
    absent: Floats  # known negatives
    whole: Floats  # all entries, known, derived or unknown, of which the known ones should be a random sample

    @classmethod
    def zeros(cls, classes: int) -> BinCounts:
        return cls(*(np.zeros((classes, BINS)) for _ in range(5)))

    def add(
        self, p: NDArray[np.float32], unknown: NDArray[np.bool_], known: NDArray[np.int8], unbiased: NDArray[np.bool_]
    ) -> None:
        """Add a block: probabilities, entries that may be filled and labels to evaluate on (B, C).

        `unbiased` (B,) are images to fill whose scores compare with those of known entries: no model learned from them.
        """
        classes = self.unknown.shape[0]
        cell = bin_of(p) + np.arange(classes) * BINS
        readable = ~np.isnan(p)
        for total, chosen, weights in (
            (self.unknown, unknown, None),
            (self.summed, unknown, p),
            (self.present, known > 0, None),
            (self.absent, known < 0, None),
            (self.whole, (known != 0) | unbiased[:, None], None),
        ):
            mask = chosen & readable
            weight = None if weights is None else weights[mask]
            total += np.bincount(cell[mask], weight, total.size).reshape(total.shape)


class FillDecision(NamedTuple):
    """The thresholds for one sign, present or absent, and their expected precision. Values per class are (C,)."""

    cut: Ints  # the first bin of P(right) that is filled; BINS for none
    filled: Ints  # unknown entries that will be filled
    estimate: Floats  # estimated precision of the fills, NaN where none
    low: Floats  # lower bound from the known labels of the class alone, NaN without any in the filled range
    known_labels: int  # known labels in the filled ranges before any class was tightened
    precision: float  # of all fills together, estimated on these known labels
    bound: float  # lower confidence bound of the precision

    @classmethod
    def nothing(cls, classes: int) -> FillDecision:
        """Return the decision to fill nothing."""
        nan = np.full(classes, np.nan)
        return cls(np.full(classes, BINS), np.zeros(classes, np.int64), nan, nan, 0, np.nan, np.nan)


def choose_thresholds(counts: BinCounts, *, positive: bool, target: float, confidence: float = 0.9) -> FillDecision:
    """Choose thresholds per class so that, with the given confidence, fills of one sign reach the precision `target`.

    With q = P(right) and a level L, class c fills all entries from the smallest threshold at which the mean q of its
    unknown entries is at least L. Only the level is chosen: the lowest one ≥ target at which the lower confidence bound
    of the precision, over the known entries in the filled ranges of all classes, is ≥ target. Levels are tested from
    three starts, each downwards until the first failure, with 80, 10 and 10 % of the allowed error (fixed-sequence
    testing; Angelopoulos 2021, "Learn then Test"). Known entries are weighted to represent the unknown ones, and the
    bound is that of Clopper and Pearson at the effective sample size (Korn and Graubard 1998).

    A class whose known labels contradict the target (binomial probability of 1/20 or less, or an estimate below it)
    gets a stricter level, or is not filled. The overall precision and bound are those before it, so that no choice made
    on the same labels inflates them. Each entry filled as absent must by itself be absent with probability ≥ target:
    positives of a rare class would pass an average. Each filled as present is present with probability ≥ 1/2.

    Guaranteed over all classes if the known labels are a random sample of the entries with similar class and
    probability, and scored by models that were not trained on them; per class only where `low` reaches the target.
    """
    side = _SignCounts.of(counts, positive)
    cuts = side.cuts(target)
    tests = [side.test(cut) for cut in cuts]
    allowed = 1 - confidence
    # The first start is the level with the highest expected bound by the probabilities alone, without the labels.
    expected_bounds = [
        lower_bound(each.promised * each.size, (1 - each.promised) * each.size, allowed) for each in tests
    ]
    best = int(np.argmax(expected_bounds))
    chosen = -1
    for number, share in zip((best, best + (_LEVELS - best) // 4, best + (_LEVELS - best) // 2), _SHARES, strict=True):
        while number >= 0 and tests[number].bound(share * allowed) >= target:
            chosen = number if chosen < 0 else min(chosen, number)
            number -= 1
    if chosen < 0:
        return FillDecision.nothing(len(counts.unknown))
    cut = cuts[chosen]
    for stricter in [*cuts[chosen + 1 :], np.full_like(cut, BINS)]:
        contradicted = side.contradicted(cut, target)
        if not contradicted.any():
            break
        cut = np.where(contradicted, np.maximum(cut, stricter), cut)
    right, wrong = side.inside(cut)
    with np.errstate(invalid="ignore"):
        low = np.where(right + wrong > 0, lower_bound(right, wrong, allowed), np.nan)
    return FillDecision(
        cut,
        (side.unknown * _from(cut)).sum(1).astype(np.int64),
        side.estimate(cut),
        low,
        int(sum(part.sum() for part in side.inside(cuts[chosen]))),
        tests[chosen].right,
        tests[chosen].bound(allowed),
    )


def random_answers_needed(counts: BinCounts, *, positive: bool, target: float, confidence: float) -> int | None:
    """Return how many more labels of random unknown entries would let fills of one sign reach `target`, to 2 digits.

    Assumes that these are right as often as the known labels of the same range. None where even labels of all unknown
    entries would not be enough.
    """
    side = _SignCounts.of(counts, positive)
    sizes = np.arange(1, 20_001)
    fewest = np.inf
    for cut in side.cuts(target):
        test = side.test(cut)
        if test.right <= target:
            continue
        bounds = lower_bound(test.right * sizes, (1 - test.right) * sizes, _SHARES[0] * (1 - confidence))
        if not (bounds >= target).any():
            continue
        inside = float((side.unknown * _from(cut)).sum())
        missing = max(float(sizes[bounds >= target][0]) - test.size, 1)
        fewest = min(fewest, missing * float(side.unknown.sum()) / inside)
    return int(float(f"{fewest:.1e}")) if fewest <= side.unknown.sum() else None


class _Test(NamedTuple):
    """Input of a lower bound: effective number of known entries, weighted share of right ones, expected share."""

    size: float
    right: float
    promised: float

    def bound(self, allowed: float) -> float:
        return float(lower_bound(self.right * self.size, (1 - self.right) * self.size, allowed))


class _SignCounts(NamedTuple):
    """Bin counts for one sign, with bins in ascending order of q = P(right)."""

    unknown: Floats
    summed: Floats
    right: Floats
    wrong: Floats
    positive: bool

    @classmethod
    def of(cls, counts: BinCounts, positive: bool) -> _SignCounts:
        if positive:
            return cls(counts.unknown, counts.summed, counts.present, counts.absent, positive)
        flip = np.s_[:, ::-1]
        rest = counts.unknown - counts.summed
        return cls(counts.unknown[flip], rest[flip], counts.absent[flip], counts.present[flip], positive)

    def cuts(self, target: float) -> list[Ints]:
        """Return for each level the first bin (C,) from which the mean q of unknown entries is at least the level.

        Levels go from the target to almost 1, equidistant in logits. Bins of present entries begin at 1/2, those of
        absent ones at the target.
        """
        low = np.log(target / (1 - target))
        levels = 1 / (1 + np.exp(-np.linspace(low, low + 4, _LEVELS)))
        above = np.cumsum(self.unknown[:, ::-1], 1)[:, ::-1]
        mean = np.divide(np.cumsum(self.summed[:, ::-1], 1)[:, ::-1], above, out=np.zeros_like(above), where=above > 0)
        mean[:, : int(bin_of(np.array([0.5 if self.positive else target]))[0]) + (not self.positive)] = 0
        return [np.where((mean >= level).any(1), (mean >= level).argmax(1), BINS).astype(np.int64) for level in levels]

    def inside(self, cut: Ints) -> tuple[Floats, Floats]:
        """Return per class the number of known entries in the filled range, right and wrong."""
        return (self.right * _from(cut)).sum(1), (self.wrong * _from(cut)).sum(1)

    def estimate(self, cut: Ints) -> Floats:
        """Return per class the estimated precision of its fills; NaN without fills."""
        mask = _from(cut)
        filled = (self.unknown * mask).sum(1)
        mean = np.divide((self.summed * mask).sum(1), filled, out=np.full(len(cut), np.nan), where=filled > 0)
        right, wrong = self.inside(cut)
        return np.asarray((right + _SHRINK * mean) / (right + wrong + _SHRINK))

    def contradicted(self, cut: Ints, target: float) -> NDArray[np.bool_]:
        """Return the classes (C,) whose known labels contradict the target."""
        from scipy.stats import binom

        right, wrong = self.inside(cut)
        unlikely = (binom.cdf(right, right + wrong, target) < 0.05) & (right + wrong > 0)
        result: NDArray[np.bool_] = unlikely | (self.estimate(cut) < target)
        return result

    def test(self, cut: Ints) -> _Test:
        mask = _from(cut)
        unknown, known = self.unknown * mask, (self.right + self.wrong) * mask
        if not known.any() or not unknown.any():
            return _Test(0.0, 0.0, 0.0)
        weight = _weights(unknown, known)
        share, size = weighted_share(weight, self.right * mask, known)
        promised = float((self.summed * mask).sum() / unknown.sum())
        return _Test(size, share, promised)


def _weights(unknown: Floats, known: Floats) -> Floats:
    """Return the weight of a known entry (C, BINS): the unknown entries it represents, by slice, then by class.

    A class with few known entries has about the weight of the others, so that a small count does not inflate it.
    """
    by_bin = unknown.sum(0)
    part = np.minimum(np.cumsum(by_bin) / by_bin.sum() * _SLICES, _SLICES - 1e-9).astype(np.int64)
    unknown_by_slice, known_by_slice = np.bincount(part, by_bin, _SLICES), np.bincount(part, known.sum(0), _SLICES)
    rate = by_bin.sum() / known.sum()
    by_slice = (unknown_by_slice + 10 * rate) / (known_by_slice + 10)
    expected = (known * by_slice[part]).sum(1)
    by_class = (unknown.sum(1) + 10 * rate) / (expected + 10 * rate)
    return np.asarray(by_class[:, None] * by_slice[part])


def _from(cut: Ints) -> Mask:
    """Return the bins (C, BINS) from the cut of each class on."""
    return np.asarray(np.arange(BINS) >= cut[:, None])


def compare_known(counts: BinCounts, repetition: float) -> tuple[float, float, Mask]:
    """Return how far the scores of known entries differ from those of all entries of their class, and how sure that is.

    A two-sample test of known and unknown entries, of how sure (|x|) and how likely (x) the logits x are: of both, the
    larger mean difference in standard deviations, and that divided by its standard error. Known entries of an image are
    alike: they count as fewer, by the `repetition` that `image_repetition` measures. The mask (C,) says which classes
    differ by themselves.
    """
    known = counts.present + counts.absent
    number, size, x = known.sum(1), np.maximum(counts.whole.sum(1), 1), bin_logits()
    results, differs = [(0.0, 0.0)], np.zeros(len(known), bool)
    for values in (np.abs(x), x):
        mean = (counts.whole @ values / size)[:, None]
        spread = (counts.whole * (values - mean) ** 2).sum(1) / size
        difference = (known * (values - mean)).sum(1)
        variance = number * spread * (1 - number / size) * repetition
        scale = np.sqrt(number * (number * spread))
        differs |= (np.abs(difference) > _CLASS_SIGMAS * np.sqrt(variance)) & (
            np.abs(difference) > _CLASS_SHARE * scale
        )
        if variance.sum() > 0:
            total = float(difference.sum())
            scale_of_all = float(np.sqrt(number.sum() * (number * spread).sum()))
            results.append((total / scale_of_all, total / float(variance.sum()) ** 0.5))
    return *max(results, key=lambda result: abs(result[1])), differs


def image_repetition(counts: BinCounts, p: NDArray[np.floating], known: NDArray[np.int8]) -> float:
    """Return the design effect of images: by how much more the sum over images varies than that of single entries.

    p, known: probabilities and labels of a sample of images (B, C), of whose known entries only those count.
    """
    mean = counts.whole @ np.abs(bin_logits()) / np.maximum(counts.whole.sum(1), 1)
    bins = bin_of(p)
    difference = np.where((known != 0) & (bins >= 0), np.abs(bin_logits())[bins] - mean, 0.0)
    single = float((difference**2).sum())
    return max(float((difference.sum(1) ** 2).sum()) / single, 1.0) if single else 1.0
