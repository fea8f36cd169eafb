"""Which probabilities are sure enough: thresholds per class whose fills are as precise as asked, with a margin.

Works on counts per class and per bin of probability, so it costs the same for a thousand images and for ten million.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS", "Counts", "Side", "bin_of", "choose"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 400
_REACH = 10.0  # logits of probabilities beyond ±10 share the outermost bins
_SLICES = 4  # of the filled range of probabilities, for weights
_LEVELS = 40
_SHARES = (0.8, 0.1, 0.1)  # of the error allowed, for the three starts
_SHRINK = 20.0  # known labels that a class's own precision is drawn to its probabilities with


def bin_of(p: NDArray[np.floating]) -> NDArray[np.int64]:
    """The bin of each probability, 0 … BINS − 1, equally wide in logits; NaN has bin −1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log(p) - np.log1p(-np.asarray(p, np.float64))
    place = np.floor((np.clip(x, -_REACH, _REACH) + _REACH) * (BINS / (2 * _REACH)))
    return np.where(np.isnan(place), -1, np.minimum(place, BINS - 1)).astype(np.int64)


class Counts(NamedTuple):
    """Entries by class and bin of P(present), all (C, BINS): unknown ones with their summed probability, known ones
    by their label. Memory: 32 bytes per class and bin, 13 kB per class."""

    unknown: Floats
    summed: Floats
    present: Floats
    absent: Floats

    @classmethod
    def zeros(cls, classes: int) -> Counts:
        return cls(*(np.zeros((classes, BINS)) for _ in range(4)))

    def add(self, p: NDArray[np.float32], unknown: NDArray[np.bool_], known: NDArray[np.int8]) -> None:
        """Count a block: probabilities, what is to be filled, and labels to judge by, each (B, C)."""
        classes = self.unknown.shape[0]
        place = bin_of(p) + np.arange(classes) * BINS
        readable = ~np.isnan(p)
        for into, chosen, weights in (
            (self.unknown, unknown, None),
            (self.summed, unknown, p),
            (self.present, known > 0, None),
            (self.absent, known < 0, None),
        ):
            mask = chosen & readable
            into += np.bincount(place[mask], None if weights is None else weights[mask], into.size).reshape(into.shape)


class Side(NamedTuple):
    """What was decided for one sign. Everything per class has shape (C,)."""

    cut: Ints  # the first bin of P(right) that is filled; BINS = none
    filled: Ints  # unknown entries that the cut fills
    estimate: Floats  # estimated precision of the fills, NaN where none
    low: Floats  # lower bound from the class's own known labels alone, NaN where it has none in the filled range
    tested: Ints  # known labels in the filled range
    right: Ints  # of these, with this sign
    judged: int  # known labels in the filled ranges before any class was tightened
    precision: float  # of all fills together, estimated on these
    bound: float  # its lower confidence bound
    level: float  # the mean probability that every class's fills were asked to reach; NaN where nothing is filled
    tightened: NDArray[np.bool_]  # classes whose own labels spoke against the common level


def choose(counts: Counts, *, positive: bool, target: float, confidence: float = 0.9) -> Side:
    """Thresholds per class so that, with the given confidence, the fills of one sign are at least `target` precise.

    With q = P(right) and a level L, class c fills all entries from the smallest threshold on at which the mean q of its
    unknown entries is L or more. The level is the one number that is chosen: the lowest one ≥ target at which the lower
    confidence bound of the precision, taken over the known entries in the filled ranges of all classes, is ≥ target.
    Levels are tested from three starts, each downwards until the first failure, with 80, 10 and 10 % of the error
    allowed, so that trying many costs nothing (fixed-sequence testing; Angelopoulos 2021, "Learn then Test").

    Known entries are weighted to stand for the unknown ones, by class and by range of probability (one step of raking),
    and the bound is that of Clopper and Pearson at the effective sample size (Korn and Graubard 1998).

    A class whose own known labels speak against the target is raised to a stricter level, or left alone: when they
    would come out so in one of 20 cases or less (binomial), or when its estimated precision is below the target. The
    estimate is the share of right ones among its known entries, drawn to the mean q with the weight of 20 entries.
    This only takes fills away; the overall precision and bound are those before it, so that no choice made on the same
    labels flatters them.

    "Absent" is the usual answer for a rare class: an average would let its positives pass as absent. Therefore each
    entry filled as absent must by itself be absent with probability ≥ target; one filled as present, ≥ 1/2.

    Guaranteed: the precision over all classes, with the confidence, for known labels that are a random sample among
    entries of like class and probability, and scores that did not see them. Per class: only where `Side.low` reaches
    the target; elsewhere the class's probabilities say so, and its few labels do not object.
    """
    side = _Arrays.of(counts, positive)
    floor = int(bin_of(np.array([0.5 if positive else target]))[0])
    if not positive:
        floor += 1  # whole bins at or above the target
    levels = _levels(target)
    cuts = [side.cut(level, floor) for level in levels]
    tests = [side.test(cut) for cut in cuts]
    allowed = 1 - confidence
    # The first start is where the probabilities alone promise the highest bound: labels have no say in it.
    promise = [_lower(test.promised * test.size, test.size, allowed) for test in tests]
    best = int(np.argmax(promise))
    chosen = -1
    for start, share in zip(
        (best, best + (len(levels) - best) // 4, best + (len(levels) - best) // 2), _SHARES, strict=True
    ):
        number = start
        while number >= 0 and tests[number].bound(share * allowed) >= target:
            chosen = number if chosen < 0 else min(chosen, number)
            number -= 1
    nothing = np.full(len(counts.unknown), BINS, np.int64)
    cut = cuts[chosen] if chosen >= 0 else nothing
    tightened = np.zeros(len(cut), bool)
    if chosen >= 0:
        for stricter in [*cuts[chosen + 1 :], nothing]:
            against = side.against(cut, target)
            if not against.any():
                break
            tightened |= against
            cut = np.where(against, np.maximum(cut, stricter), cut)
    before = tests[chosen] if chosen >= 0 else _Test(0.0, 0.0, 0.0)
    level = levels[chosen] if chosen >= 0 else np.nan
    judged = int(sum(part.sum() for part in side.inside(cuts[chosen]))) if chosen >= 0 else 0
    return _describe(side, cut, allowed, level, tightened, before, judged)


class _Test(NamedTuple):
    """A lower bound in the making: effective number of known entries, weighted share of right ones, promised share."""

    size: float
    right: float
    promised: float

    def bound(self, allowed: float) -> float:
        return _lower(self.right * self.size, self.size, allowed)


class _Arrays(NamedTuple):
    """Counts for one sign, bins in ascending order of q = P(right)."""

    unknown: Floats
    summed: Floats
    right: Floats
    wrong: Floats

    @classmethod
    def of(cls, counts: Counts, positive: bool) -> _Arrays:
        if positive:
            return cls(counts.unknown, counts.summed, counts.present, counts.absent)
        flip = np.s_[:, ::-1]
        rest = counts.unknown - counts.summed
        return cls(counts.unknown[flip], rest[flip], counts.absent[flip], counts.present[flip])

    def cut(self, level: float, floor: int) -> Ints:
        """Per class the first bin from which on the mean q of unknown entries is `level` or more, at least `floor`."""
        above = np.cumsum(self.unknown[:, ::-1], 1)[:, ::-1]
        mean = np.divide(np.cumsum(self.summed[:, ::-1], 1)[:, ::-1], above, out=np.zeros_like(above), where=above > 0)
        fine = mean >= level
        fine[:, :floor] = False
        first = np.where(fine.any(1), fine.argmax(1), BINS)
        return first.astype(np.int64)

    def inside(self, cut: Ints) -> tuple[Floats, Floats]:
        """Per class how many known entries lie in the filled range, right and wrong."""
        mask = np.arange(BINS) >= cut[:, None]
        return (self.right * mask).sum(1), (self.wrong * mask).sum(1)

    def estimate(self, cut: Ints) -> Floats:
        """Per class the estimated precision of its fills; NaN where it has none."""
        mask = np.arange(BINS) >= cut[:, None]
        filled = (self.unknown * mask).sum(1)
        mean = np.divide((self.summed * mask).sum(1), filled, out=np.full(len(cut), np.nan), where=filled > 0)
        right, wrong = self.inside(cut)
        return np.asarray((right + _SHRINK * mean) / (right + wrong + _SHRINK))

    def against(self, cut: Ints, target: float) -> NDArray[np.bool_]:
        """Classes (C,) that their own known labels do not bear out."""
        from scipy.stats import binom

        right, wrong = self.inside(cut)
        unlikely = (binom.cdf(right, right + wrong, target) < 0.05) & (right + wrong > 0)
        found: NDArray[np.bool_] = unlikely | (self.estimate(cut) < target)
        return found

    def test(self, cut: Ints) -> _Test:
        mask = np.arange(BINS) >= cut[:, None]
        unknown, known = self.unknown * mask, (self.right + self.wrong) * mask
        if not known.any() or not unknown.any():
            return _Test(0.0, 0.0, 0.0)
        weight = _weights(unknown, known)
        total = float((weight * known).sum())
        size = total**2 / float((weight**2 * known).sum())
        promised = float((self.summed * mask).sum() / unknown.sum())
        return _Test(size, float((weight * self.right * mask).sum()) / total, promised)


def _weights(unknown: Floats, known: Floats) -> Floats:
    """How many unknown entries each known one stands for (C, BINS): by slice of probability, then by class.

    A class with few known entries keeps about the weight of the others, so that its chance count does not blow it up.
    """
    by_bin = unknown.sum(0)
    part = np.minimum(np.cumsum(by_bin) / by_bin.sum() * _SLICES, _SLICES - 1e-9).astype(np.int64)
    of_unknown, of_known = np.bincount(part, by_bin, _SLICES), np.bincount(part, known.sum(0), _SLICES)
    rate = by_bin.sum() / known.sum()
    by_slice = (of_unknown + 10 * rate) / (of_known + 10)
    expected = (known * by_slice[part]).sum(1)
    of_class = (unknown.sum(1) + 10 * rate) / (expected + 10 * rate)
    return np.asarray(of_class[:, None] * by_slice[part])


def _levels(target: float) -> list[float]:
    """From the target up to almost 1, equally far apart in logits."""
    low = np.log(target / (1 - target))
    return [float(x) for x in 1 / (1 + np.exp(-np.linspace(low, low + 4, _LEVELS)))]


def _lower(right: float, size: float, allowed: float) -> float:
    """The lower bound of Clopper and Pearson of a share, wrong with at most the allowed probability."""
    from scipy.stats import beta

    return float(beta.ppf(allowed, right, size - right + 1)) if right > 0 else 0.0


def _describe(
    side: _Arrays,
    cut: Ints,
    allowed: float,
    level: float,
    tightened: NDArray[np.bool_],
    before: _Test,
    judged: int,
) -> Side:
    from scipy.stats import beta

    right, wrong = side.inside(cut)
    size = right + wrong
    with np.errstate(invalid="ignore"):
        low = np.where(size > 0, np.where(right > 0, beta.ppf(allowed, right, wrong + 1), 0.0), np.nan)
    none = before.size == 0
    return Side(
        cut,
        (side.unknown * (np.arange(BINS) >= cut[:, None])).sum(1).astype(np.int64),
        side.estimate(cut),
        low,
        size.astype(np.int64),
        right.astype(np.int64),
        judged,
        np.nan if none else before.right,
        np.nan if none else before.bound(allowed),
        level,
        tightened,
    )
