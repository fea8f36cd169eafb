"""Learning curve: a power law fitted to the mAP at several shares of the labels, extrapolated to twice the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.comparison.result import Backtest, Growth, Interval, TaskScore
from halflabel.system.rng import uniform

_EXPONENTS = np.geomspace(0.05, 3.0, 48)
_REFINEMENT = np.geomspace(0.92, 1 / 0.92, 33)  # factors of the best exponent
_AHEAD = (1.1, 1.25, 1.5, 2.0)  # factors of the present number of labels


class Law(NamedTuple):
    """mAP = a − b · share^(−c), b ≥ 0, a ≤ 1; arrays (R,), one value per fitted curve."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    c: NDArray[np.float64]

    def at(self, share: float) -> NDArray[np.float64]:
        return np.asarray(self.a - self.b * share**-self.c)


def extrapolate(scores: Mapping[float, Mapping[int, TaskScore]], worth: float = 1.0) -> Growth:
    """Fit the power law to share -> seed -> score, with 1.0 (all labels) among the shares; predict twice the labels.

    The interval comes from resampled curves: the bootstrap of the test images, and noise with the pooled spread over
    seeds.
    """
    share = np.array(list(scores))
    means, drawn = _resampled(list(scores.values()))
    law, laws = fit_law(share, means[None]), fit_law(share, drawn)
    backtest = None
    half = share <= 0.5
    if half.sum() >= 3 and 0.5 in scores:
        half_law, half_laws = fit_law(share[half], means[None, half]), fit_law(share[half], drawn[:, half])
        at_all, at_half = np.argmax(share == 1), np.argmax(share == 0.5)
        measured = float(means[at_all] - means[at_half])
        predicted = half_law.at(1.0) - half_law.at(0.5)
        # The measured gain is uncertain too, so the interval is that of the predicted minus the measured gain.
        error = half_laws.at(1.0) - half_laws.at(0.5) - (drawn[:, at_all] - drawn[:, at_half])
        backtest = Backtest(_interval(predicted, error + measured), measured)
    curve = [
        (point, *_interval(law.at(point), laws.at(point))) for point in np.geomspace(share.min(), 2.0, 40).tolist()
    ]
    ahead = {factor: _interval(law.at(factor) - law.at(1.0), laws.at(factor) - laws.at(1.0)) for factor in _AHEAD}
    return Growth(
        (float(law.a[0]), float(law.b[0]), float(law.c[0])),
        tuple(curve),
        ahead[2.0],
        backtest,
        tuple((factor, *gain) for factor, gain in ahead.items()),
        worth,
    )


def fit_law(share: NDArray[np.float64], value: NDArray[np.float64]) -> Law:
    """Fit value = a − b · share^(−c) by least squares with b ≥ 0 and a ≤ 1; share (B,), value (R, B).

    For a fixed exponent the best a and b have a closed form, so all R curves are fitted at once on a grid of exponents,
    then on a finer grid around the best one; this cannot stop in a local minimum.
    """
    coarse = _best_law(np.tile(_EXPONENTS[:, None], len(value)), share, value)
    return _best_law(coarse.c * _REFINEMENT[:, None], share, value)


def _best_law(c: NDArray[np.float64], share: NDArray[np.float64], value: NDArray[np.float64]) -> Law:
    """Return the best fit of each curve among its exponents c (E, R)."""
    z = share ** -c[..., None]  # (E, R, B)
    centred = z - z.mean(2, keepdims=True)
    b = np.maximum(-(value * centred).sum(2) / (centred**2).sum(2), 0.0)
    a = value.mean(1) + b * z.mean(2)
    b = np.where(a > 1, np.maximum(((1 - value) * z).sum(2) / (z**2).sum(2), 0.0), b)
    a = np.minimum(a, 1.0)
    best = ((a[..., None] - b[..., None] * z - value) ** 2).sum(2).argmin(0), np.arange(len(value))
    return Law(a[best], b[best], c[best])


def _resampled(scores: Sequence[Mapping[int, TaskScore]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means over seeds (B,), and resampled means for other test images and other seeds (R, B)."""
    values = [np.array([score.mAP for score in by_seed.values()]) for by_seed in scores]
    means = np.array([group.mean() for group in values])
    images = np.stack([np.mean([score.replicates for score in by_seed.values()], 0) for by_seed in scores], 1)
    freedom = sum(len(group) - 1 for group in values)
    # Pooled over the shares, because three seeds alone give a poor estimate of the spread.
    spread = math.sqrt(sum(((group - group.mean()) ** 2).sum() for group in values) / freedom) if freedom else 0.0
    normal = _normal(len(images), len(values) + freedom)
    noise = normal[:, : len(values)] * spread
    if freedom:  # the spread is estimated from few runs: divide by a χ² number, a sum of squares of normal numbers
        noise *= np.sqrt(freedom / (normal[:, len(values) :] ** 2).sum(1, keepdims=True))
    return means, means + images - np.nanmean(images, 0) + noise / np.sqrt([len(group) for group in values])


def _normal(rows: int, columns: int) -> NDArray[np.float64]:
    """Return normal random numbers (rows, columns) that depend only on their position (Box and Muller 1958)."""
    row, column = np.arange(rows)[:, None], np.arange(columns)[None]
    radius = np.sqrt(-2 * np.log1p(-uniform(0, row, column, 0)))
    return np.asarray(radius * np.cos(2 * math.pi * uniform(0, row, column, 1)))


def _interval(point: NDArray[np.float64], drawn: NDArray[np.float64]) -> Interval:
    value = float(point[0])
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return Interval(value, min(float(low), value), max(float(high), value))
