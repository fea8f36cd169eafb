"""The numbers behind the page's pictures: precision and recall, reliability, what is thin enough to draw."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.metrics.wilson import wilson

__all__ = ["Curve", "Reliability", "precision_recall", "reliability", "thin"]

Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """Precision and recall of "present where score ≥ cut", from the highest cut down."""

    recall: Floats  # (K,)
    precision: Floats  # (K,)
    cut: Floats  # (K,)


class Reliability(NamedTuple):
    """Per bin of score: entries, their mean score, the share that is present and its 95 % interval; NaN if empty."""

    entries: NDArray[np.int64]  # (bins,)
    score: Floats
    present: Floats
    low: Floats
    high: Floats


def precision_recall(scores: NDArray[Any], labels: NDArray[Any]) -> Curve:
    """Precision and recall at every distinct score of the known entries; both 1-D, labels in {−1, 0, +1}.

    precision = hits / rank, recall = hits / P, with hits and rank the positives and the known entries with score ≥ cut.
    Empty without a known positive.
    """
    known = labels != 0
    score, present = scores[known].astype(np.float64), labels[known] > 0
    if not present.any():
        return Curve(*(np.zeros(0) for _ in Curve._fields))
    order = np.argsort(-score, kind="stable")
    score, hits = score[order], np.cumsum(present[order])
    ends = np.append(score[1:] != score[:-1], True)
    return Curve((hits / hits[-1])[ends], (hits / np.arange(1, len(hits) + 1))[ends], score[ends])


def reliability(scores: NDArray[Any], labels: NDArray[Any], bins: int = 10) -> Reliability:
    """Mean score against the share that is present, over known entries in equal bins of score.

    The interval is Wilson's, which takes the entries as independent; several of one image are not quite.
    scores, labels: (N, C); bin b holds b/bins ≤ score < (b+1)/bins, the last one also 1.
    """
    known = labels != 0
    score, present = scores[known].astype(np.float64), labels[known] > 0
    number = np.minimum((score * bins).astype(np.int64), bins - 1)
    entries, scored, hits = (np.bincount(number, weight, bins) for weight in (None, score, present))
    with np.errstate(invalid="ignore", divide="ignore"):
        return Reliability(entries, scored / entries, hits / entries, *wilson(hits, entries))


def thin(x: Floats, y: Floats, most: int = 80) -> tuple[Floats, Floats]:
    """At most `most` of the points, ends kept, evenly along the curve's length, so that no bend is lost."""
    if len(x) <= most:
        return x, y
    width = np.append(0.0, np.cumsum(np.hypot(_unit(np.diff(x), x), _unit(np.diff(y), y))))
    chosen = np.unique(np.searchsorted(width, np.linspace(0, width[-1], most)).clip(0, len(x) - 1))
    return x[chosen], y[chosen]


def _unit(steps: Floats, values: Floats) -> Floats:
    return steps / (float(np.ptp(values)) or 1.0)
