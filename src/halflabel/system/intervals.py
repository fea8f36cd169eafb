"""Confidence intervals of a share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv


class IntervalEnds(NamedTuple):
    """The lower and the upper end of intervals."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def wilson(part: Any, whole: Any, z: float = 1.959964) -> IntervalEnds:
    """Return the Wilson interval of the share of `part` in `whole`, two-sided at 95 % by default.

        (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n),    p = part / whole, n = whole

    part, whole: counts that broadcast; NaN where nothing was counted. With z = 1.645 each end alone holds at 95 %.
    """
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    n = np.where(whole > 0, whole, np.nan)
    share = part / n
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return IntervalEnds(np.maximum((middle - half) / scale, 0.0), np.minimum((middle + half) / scale, 1.0))


def lower_bound(right: Any, wrong: Any, allowed: float) -> NDArray[np.float64]:
    """Return the lower Clopper-Pearson bound of the share of right ones, wrong with at most the allowed probability.

    >>> round(float(lower_bound(19, 1, 0.05)), 3)
    0.784
    """
    right, wrong = np.asarray(right, np.float64), np.asarray(wrong, np.float64)
    return np.where(right > 0, betaincinv(np.where(right > 0, right, 1.0), wrong + 1, allowed), 0.0)
