"""The interval of a share, for all who count: it needs no torch, and `metrics` has it too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Ends", "wilson"]


class Ends(NamedTuple):
    """Where an interval begins and ends."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def wilson(part: ArrayLike, whole: ArrayLike, z: float = 1.959964) -> Ends:
    """The Wilson interval of a share of `part` in `whole`, two-sided at 95 % unless told otherwise.

        (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n),    p = part / whole, n = whole

    part, whole: counts of one shape, or that broadcast; NaN where nothing was counted. With z = 1.645 each end holds
    by itself at 95 %.

    >>> [round(float(end), 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    n = np.where(whole > 0, whole, np.nan)
    share = part / n
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Ends(np.maximum((middle - half) / scale, 0.0), np.minimum((middle + half) / scale, 1.0))
