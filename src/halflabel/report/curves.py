"""Numbers behind the charts: reliability, and thinning of long curves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.system.intervals import wilson

Floats = NDArray[np.float64]


class Reliability(NamedTuple):
    """Per bin of score: entries, mean score, share present and its 95 % interval; NaN where a bin is empty."""

    entries: NDArray[np.int64]  # (bins,)
    score: Floats
    present: Floats
    low: Floats
    high: Floats


def reliability(scores: NDArray[Any], labels: NDArray[Any], bins: int = 10) -> Reliability:
    """Compute mean score and share present over known entries, in equal bins of score.

    The interval is Wilson's, which assumes independent entries; entries of one image are not quite independent.
    scores, labels: (N, C); bin b holds b/bins ≤ score < (b+1)/bins, the last bin also 1.
    """
    known = labels != 0
    score, present = scores[known].astype(np.float64), labels[known] > 0
    number = np.minimum((score * bins).astype(np.int64), bins - 1)
    entries, score_sum, hits = (np.bincount(number, weight, bins) for weight in (None, score, present))
    with np.errstate(invalid="ignore", divide="ignore"):
        return Reliability(entries, score_sum / entries, hits / entries, *wilson(hits, entries))


def thin(x: Floats, y: Floats, most: int = 80) -> tuple[Floats, Floats]:
    """Keep at most `most` points, both ends included, spaced evenly along the curve so that no bend is lost."""
    if len(x) <= most:
        return x, y
    length = np.append(0.0, np.cumsum(np.hypot(_relative(np.diff(x), x), _relative(np.diff(y), y))))
    chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], most)).clip(0, len(x) - 1))
    return x[chosen], y[chosen]


def _relative(steps: Floats, values: Floats) -> Floats:
    """Divide steps by the range of the values."""
    return steps / (float(np.ptp(values)) or 1.0)
