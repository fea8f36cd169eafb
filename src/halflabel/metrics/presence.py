"""How likely unknown entries are present, from scores and known labels, for tables beyond main memory too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.table import LabelTable

__all__ = ["Presence", "blocks", "is_fair"]

_MOST_FITTED = 1_000_000
_ENTRIES = 1 << 20  # looked at at a time


def is_fair(labels: NDArray[Any]) -> bool:
    """Whether known labels can calibrate scores: at least as many negatives as positives are known.

    Where people mostly note what they see, known entries are mostly present and unknown ones mostly absent: a
    probability fitted on the known ones is far too high for the others.
    """
    return int((labels < 0).sum()) >= max(int((labels > 0).sum()), 1)


class Presence(NamedTuple):
    """The probability that an unknown entry is present, of scores: (N, C) -> (N, C); NaN for unread images.

    Where the known labels are a fair sample (c = 0 here), the calibrated scores themselves. Else (Elkan 2008, eq. 1
    and 3, with s = known to be present and c = P(s | present)):

        g = P(s | x) = σ(a · logit + b), fitted with unknown entries as s = 0;    c = mean of g over s = 1
        P(present | x, not s) = (1 − c)/c · g/(1 − g),    below 1

    c comes out too low where classes overlap, so that this is then an upper estimate: near the truth for a good model,
    far above it for a poor one. Within a class the order does not depend on c.
    """

    slope: float = 1.0
    offset: float = 0.0
    c: float = 0.0
    fair: bool = False

    @classmethod
    def fit(cls, scores: NDArray[Any], table: LabelTable) -> Presence:
        """From scores (N, C) of which some rows at a time are looked at."""
        if is_fair(table.value) or not bool((table.value > 0).any()):
            return cls(fair=is_fair(table.value))

        def rows() -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int8], NDArray[Any]]]:
            for index in blocks(*scores.shape):
                found, labels = scores[index[0] : index[-1] + 1], table.rows(index)
                yield (labels >= 0) & ~np.isnan(found), labels, found

        total = sum(int(fits.sum()) for fits, _, _ in rows())
        stride = max(1, -(-total // _MOST_FITTED))
        x, y, passed = [], [], 0
        for fits, labels, found in rows():
            here = slice(-passed % stride, None, stride)
            x.append(_logit(found[fits][here]))
            y.append(labels[fits][here] > 0)
            passed += int(fits.sum())
        slope, offset = _logistic(np.concatenate(x), np.concatenate(y))
        image, column, value = table.entries()
        said = value > 0
        g = _sigmoid(slope * _logit(np.asarray(scores[image[said], column[said]])) + offset)
        return cls(slope, offset, float(np.clip(np.nanmean(g), 0.05, 0.95)))

    def of(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        if not self.c:
            return scores.astype(np.float64)
        g = _sigmoid(self.slope * _logit(scores) + self.offset)
        # Not cut off at 1: what is likelier still ranks above what is likely.
        return np.minimum((1 - self.c) / self.c * g / np.maximum(1 - g, 1e-12), 1 - 1e-3 * (1 - g))

    def worth(self, q: Any) -> Any:
        """What an answer is worth where nothing is known of its class yet."""
        return q * (1 - q) + q / 4 if self.fair else q


def _logit(scores: NDArray[Any]) -> NDArray[np.float64]:
    inside: NDArray[np.float64] = np.clip(scores.astype(np.float64), 1e-6, 1 - 1e-6)
    return np.log(inside / (1 - inside))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def blocks(images: int, classes: int) -> Iterator[NDArray[np.int64]]:
    """Image numbers, some at a time: tables of all entries would not fit into memory."""
    step = max(1, _ENTRIES // max(classes, 1))
    for first in range(0, images, step):
        yield np.arange(first, min(first + step, images))


def _logistic(x: NDArray[Any], y: NDArray[Any], steps: int = 25) -> tuple[float, float]:
    """(a, b) that make y most likely under σ(a x + b), a ≥ 0, by Newton's method with halving."""
    read = ~np.isnan(x)
    x, y = x[read], y[read].astype(np.float64)
    stride = -(-len(x) // _MOST_FITTED)
    x, y = x[::stride], y[::stride]
    if not len(x) or not 0 < y.sum() < len(y):
        return 1.0, 0.0
    w = np.array([1.0, 0.0])

    def loss(w: NDArray[Any]) -> float:
        z = w[0] * x + w[1]
        return float((np.logaddexp(0, z) - y * z).mean())

    now = loss(w)
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(w[0] * x + w[1], -500, 500)))
        slant = np.array([((p - y) * x).mean(), (p - y).mean()])
        v = p * (1 - p)
        bend = np.array([[(v * x * x).mean(), (v * x).mean()], [(v * x).mean(), v.mean()]]) + 1e-9 * np.eye(2)
        move = np.linalg.solve(bend, slant)
        size = 1.0
        while (then := loss(w - size * move)) > now and size > 1e-4:
            size /= 2
        if then >= now - 1e-12:
            break
        w, now = w - size * move, then
    # Scores that rank backwards stay in their own order: a question list turned upside down helps nobody.
    return (float(w[0]), float(w[1])) if w[0] > 0 else (1.0, 0.0)
