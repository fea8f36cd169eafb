"""Numbers behind the charts: reliability, score histograms, and thinning of long curves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halflabel.errors import UserError
from halflabel.system.intervals import wilson

Floats = NDArray[np.float64]


class Reliability(NamedTuple):
    """Per bin of score: entries, mean score, share present and its 95 % interval; NaN where a bin is empty."""

    entries: NDArray[np.int64]  # (bins,)
    score: Floats
    present: Floats
    low: Floats
    high: Floats


class ScoreHistograms(NamedTuple):
    """Number of entries per bin of score, by known label."""

    edges: Floats  # (bins + 1,)
    present: NDArray[np.int64]  # (bins,)
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]


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


def probability_histograms(scores: ArrayLike, labels: ArrayLike, bins: int = 50) -> ScoreHistograms:
    """Count entries per bin of score, split into known present, known absent and unknown (Wang 2023, figure 5).

    scores (N, C) in [0, 1], NaN for unread images; labels (N, C) in {−1, 0, +1}.
    """
    scores, labels = check_scores(scores, labels)
    edges = np.linspace(0, 1, bins + 1)
    read = ~np.isnan(scores)
    counts = [np.histogram(scores[read & (labels == value)], edges)[0].astype(np.int64) for value in (1, -1, 0)]
    return ScoreHistograms(edges, *counts)


def check_scores(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int8]]:
    """Return scores and labels as (N, C) arrays; refuse other shapes and scores outside [0, 1]."""
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.shape != labels.shape or scores.ndim != 2:
        raise UserError(
            f"scores have shape {scores.shape}, labels {labels.shape}", "give both as images × classes, in one order"
        )
    outside = (scores < 0) | (scores > 1)
    if outside.any():
        raise UserError(f"{scores[outside].flat[0]:g} is not a score", "give scores in [0, 1]: the sigmoid of logits")
    return scores, labels.astype(np.int8)


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
