"""Answers to random questions count by their inclusion weights: 1 / the probability that the question was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.system.intervals import wilson

Floats = NDArray[np.float64]

_NEIGHBOURS = 0.1  # share of the answers whose scores are similar to that of one
_FEWEST_NEIGHBOURS = 2  # on either side


def weighted_share(weight: NDArray[Any], present: NDArray[Any], answers: Any = 1) -> tuple[float, float]:
    """Return the share of present entries, and the effective number of answers that show it (Kish 1965).

        share = Σ w · present / Σ w,    number = (Σ w)² / Σ w²

    Of groups of answers with the same weight, `present` and `answers` are the numbers of present ones and of all.
    """
    total = float((weight * answers).sum())
    return float((weight * present).sum()) / total, total**2 / float((weight**2 * answers).sum())


def share_interval(weight: NDArray[Any], present: NDArray[Any]) -> tuple[float, float, float]:
    """Return the share of present entries with its 95 % interval: that of Wilson for the effective number."""
    share, number = weighted_share(weight, present)
    low, high = wilson(share * number, number)
    return share, float(low), float(high)


def counts_in_curve(weight: NDArray[Any], score: NDArray[Any]) -> Floats:
    """Return what each answer (n,) counts for where a curve of the score is fitted; the sum is the effective number.

        w / mean of w over the answers with similar scores

    The mean is over a tenth of the answers. Such a fit is as unbiased as one by the weights w (Pfeffermann and
    Sverchkov 1999), but weights that differ only as the score does, as those of strata by score, add no variance.
    """
    if not len(weight):
        return np.zeros(0)
    side = max(_FEWEST_NEIGHBOURS, int(len(weight) * _NEIGHBOURS / 2))
    order = np.argsort(score, kind="stable")
    totals = np.concatenate([[0.0], np.cumsum(np.pad(weight[order].astype(np.float64), side, mode="edge"))])
    width = 2 * side + 1
    relative = np.empty(len(weight))
    relative[order] = weight[order] * width / (totals[width:] - totals[:-width])
    return np.asarray(relative * (relative.sum() / np.square(relative).sum()))
