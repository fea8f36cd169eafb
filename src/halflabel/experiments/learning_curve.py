"""The learning curve: a power law through what some shares of the labels give, and what it says of twice as many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.experiments.result import Interval, TaskScore
from halflabel.system.rng import uniform

__all__ = ["Backtest", "Extrapolation", "Law", "extrapolate", "fit_law"]

_EXPONENTS = np.geomspace(0.05, 3.0, 48)
_NEAR = np.geomspace(0.92, 1 / 0.92, 33)
_AHEAD = (1.1, 1.25, 1.5, 2.0)  # times the labels there are


class Law(NamedTuple):
    """mAP = a − b · share^(−c), b ≥ 0, a ≤ 1; arrays (R,) where several curves were fitted."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    c: NDArray[np.float64]

    def at(self, share: float) -> NDArray[np.float64]:
        return np.asarray(self.a - self.b * share**-self.c)


class Backtest(NamedTuple):
    """The gain of the last doubling as foretold from the smaller shares alone, and as measured.

    The interval is where a gain measured with as much noise is to be expected.
    """

    foretold: Interval
    measured: float

    @property
    def held(self) -> bool:
        return self.foretold.low <= self.measured <= self.foretold.high


class Extrapolation(NamedTuple):
    """The law through the curve, and what it says of twice the labels."""

    law: tuple[float, float, float]  # a, b, c
    curve: tuple[tuple[float, float, float, float], ...]  # share, fitted mAP, low, high; up to twice the labels
    gain: Interval  # of twice the labels, in mAP
    backtest: Backtest | None
    ahead: tuple[tuple[float, float, float, float], ...] = ()  # times the labels, the gain of these, low, high


def extrapolate(found: Mapping[float, Mapping[int, TaskScore]]) -> Extrapolation:
    """From share -> seed -> scores, all labels (1.0) among the shares: the law, and the gain of twice the labels.

    The interval comes from curves drawn anew: the test images' bootstrap, and noise with the seeds' pooled spread.
    """
    share = np.array(list(found))
    means, drawn = _drawn(list(found.values()))
    law, laws = fit_law(share, means[None]), fit_law(share, drawn)
    backtest = None
    half = share <= 0.5
    if half.sum() >= 3 and 0.5 in found:
        before, befores = fit_law(share[half], means[None, half]), fit_law(share[half], drawn[:, half])
        one, half_way = np.argmax(share == 1), np.argmax(share == 0.5)
        measured = float(means[one] - means[half_way])
        foretold = before.at(1.0) - before.at(0.5)
        # What is measured is uncertain too, so the interval is that of the foretold less the measured gain.
        missed = befores.at(1.0) - befores.at(0.5) - (drawn[:, one] - drawn[:, half_way])
        backtest = Backtest(_interval(foretold, missed + measured), measured)
    curve = [(at, *_interval(law.at(at), laws.at(at))) for at in np.geomspace(share.min(), 2.0, 40).tolist()]
    ahead = {to: _interval(law.at(to) - law.at(1.0), laws.at(to) - laws.at(1.0)) for to in _AHEAD}
    return Extrapolation(
        (float(law.a[0]), float(law.b[0]), float(law.c[0])),
        tuple(curve),
        ahead[2.0],
        backtest,
        tuple((to, *gain) for to, gain in ahead.items()),
    )


def fit_law(share: NDArray[np.float64], value: NDArray[np.float64]) -> Law:
    """Least squares of value = a − b · share^(−c) with b ≥ 0 and a ≤ 1; share (B,), value (R, B).

    For each of many exponents the best a and b have a closed form; of these the best exponent is taken, and those
    near it are tried once more.
    """
    law, best = Law(*(np.zeros(len(value)) for _ in Law._fields)), np.full(len(value), np.inf)
    for exponent in _EXPONENTS:
        best = _improve(law, best, np.full(len(value), exponent), share, value)
    middle = law.c.copy()
    for factor in _NEAR:
        best = _improve(law, best, middle * factor, share, value)
    return law


def _improve(
    law: Law, best: NDArray[np.float64], c: NDArray[np.float64], share: NDArray[np.float64], value: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Take over the exponents (R,) that fit better than `best`, the squared error so far; returns the new one."""
    z = share ** -c[:, None]
    centred = z - z.mean(1, keepdims=True)
    b = np.maximum(-(value * centred).sum(1) / (centred**2).sum(1), 0.0)
    a = value.mean(1) + b * z.mean(1)
    over = a > 1
    b = np.where(over, np.maximum(((1 - value) * z).sum(1) / (z**2).sum(1), 0.0), b)
    a = np.where(over, 1.0, a)
    error = ((a[:, None] - b[:, None] * z - value) ** 2).sum(1)
    better = error < best
    for part, new in zip(law, (a, b, c), strict=True):
        part[better] = new[better]
    return np.asarray(np.minimum(best, error))


def _drawn(found: Sequence[Mapping[int, TaskScore]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over seeds (B,), and as they might have come out with other test images and other seeds (R, B)."""
    values = [np.array([one.mAP for one in by_seed.values()]) for by_seed in found]
    means = np.array([one.mean() for one in values])
    images = np.stack([np.mean([one.replicates for one in by_seed.values()], 0) for by_seed in found], 1)
    freedom = sum(len(one) - 1 for one in values)
    # Pooled over the shares: three seeds alone say little of their spread.
    spread = math.sqrt(sum(((one - one.mean()) ** 2).sum() for one in values) / freedom) if freedom else 0.0
    normal = _normal(len(images), len(values) + freedom)
    noise = normal[:, : len(values)] * spread
    if freedom:  # the spread itself is known from few runs only: χ² is a sum of squares of normal numbers
        noise *= np.sqrt(freedom / (normal[:, len(values) :] ** 2).sum(1, keepdims=True))
    return means, means + images - np.nanmean(images, 0) + noise / np.sqrt([len(one) for one in values])


def _normal(rows: int, columns: int) -> NDArray[np.float64]:
    """Normal numbers (rows, columns), each a function of its place alone (Box and Muller 1958)."""
    row, column = np.arange(rows)[:, None], np.arange(columns)[None]
    radius = np.sqrt(-2 * np.log1p(-uniform(0, row, column, 0)))
    return np.asarray(radius * np.cos(2 * math.pi * uniform(0, row, column, 1)))


def _interval(point: NDArray[np.float64], drawn: NDArray[np.float64]) -> Interval:
    value = float(point[0])
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return Interval(value, min(float(low), value), max(float(high), value))
