"""From logits to probabilities class by class: classes with few known labels lean on what holds for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassPlatt", "fit_classes"]

Floats = NDArray[np.float64]

_ROUNDS = 12  # of the spread of the classes
_STEPS = 4  # of Newton's method in each
_MOST = 1 << 20  # known entries from which on those of like logits are fitted as one
_BINS = 1024  # of the logits of a class, then


class ClassPlatt(NamedTuple):
    """p = σ(slope_c · bent(slope · x + offset) + offset_c), where bent(z) = low · z below 0 and high · z above."""

    slope: Floats  # (C,) > 0
    offset: Floats  # (C,)
    shared: tuple[float, float] = (1.0, 0.0)  # slope > 0 and offset of all classes
    bend: tuple[float, float] = (1.0, 1.0)  # low, high > 0

    def scores(self, logits: NDArray[Any], column: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """Logits (B, C) -> probabilities (B, C); with `column`, of single entries (n,) of these classes. NaN stays."""
        at: Any = slice(None) if column is None else column
        z = _bent(self.shared[0] * np.asarray(logits, np.float64) + self.shared[1], self.bend)
        return sigmoid(self.slope[at] * z + self.offset[at]).astype(np.float32)


def fit_classes(column: NDArray[Any], logits: NDArray[Any], present: NDArray[np.bool_], classes: int) -> ClassPlatt:
    """One Platt pair per class, drawn towards what fits all classes: more so the less is known of the class.

        z = slope · x + offset and then z' = bent(z), fitted to all known entries;   p = σ((1 + a_c) z' + b_c)
        minus log posterior of a class = Σ_known log loss + a_c² / 2 s_a² + b_c² / 2 s_b²

    The bend lets sure positives and sure negatives have slopes of their own; one logistic curve goes by the many
    negatives alone. The spreads s_a and s_b are fitted to the classes themselves (expectation-maximisation with a
    normal approximation, "empirical Bayes"): where classes are alike, all share one curve, and a class without known
    labels has that of all. Where one sign is missing there is nothing to fit, and p = σ(x).

    column, logits, present: one per known entry (n,). Of more than a million, those of a class in one of 1,024 ranges
    of logits count as so many entries with their mean. Memory: about 60 bytes per entry that is then left, 100 per
    class, and 32 per class and range.
    """
    a, b = np.zeros(classes), np.zeros(classes)
    if present.all() or not present.any():
        return ClassPlatt(a + 1, b)
    if len(logits) > _MOST:
        column, x, target, weight = _grouped(column, logits, present, classes)
    else:
        x, target, weight = np.asarray(logits, np.float64), present.astype(np.float64), np.ones(len(logits))
    slope, offset = _logistic(
        np.stack([x, np.ones_like(x)], 1), target, weight, np.array([1.0, 0.0]), np.array([0.01, 1e-4])
    )
    if slope <= 0:  # the scores rank the known labels backwards: probabilities keep the order of the logits
        return ClassPlatt(a + 1, b)
    z = slope * x + offset
    low, high, _ = _logistic(
        np.stack([np.minimum(z, 0), np.maximum(z, 0), np.ones_like(z)], 1),
        target,
        weight,
        np.array([1.0, 1.0, 0.0]),
        np.ones(3),
    )
    bend = (max(float(low), 0.2), max(float(high), 0.2))
    z = _bent(z, bend)
    spread_a, spread_b = 0.3, 1.0
    seen = np.bincount(column, minlength=classes) > 0

    def summed(values: Floats) -> Floats:
        return np.asarray(np.bincount(column, values, classes), np.float64)

    for _ in range(_ROUNDS):
        for _ in range(_STEPS):
            p = sigmoid((1 + a[column]) * z + b[column])
            off, curve = weight * (p - target), weight * p * (1 - p)
            down_a, down_b = summed(off * z) + a / spread_a**2, summed(off) + b / spread_b**2
            aa, ab, bb = summed(curve * z * z) + 1 / spread_a**2, summed(curve * z), summed(curve) + 1 / spread_b**2
            determinant = aa * bb - ab * ab
            # Steps are cut: far from the answer, where the curve is flat, a whole one may overshoot.
            a -= np.clip((bb * down_a - ab * down_b) / determinant, -0.5, 0.5)
            b -= np.clip((aa * down_b - ab * down_a) / determinant, -1.0, 1.0)
            a = np.maximum(a, -0.8)  # probabilities keep the order of the logits
        spread_a = float(np.sqrt(np.mean((a**2 + bb / determinant)[seen]).clip(0.02**2, 1.0)))
        spread_b = float(np.sqrt(np.mean((b**2 + aa / determinant)[seen]).clip(0.05**2, 9.0)))
    return ClassPlatt(1 + a, b, (float(slope), float(offset)), bend)


def sigmoid(x: NDArray[Any]) -> Floats:
    """1 / (1 + exp(−x)) without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64)))


def _bent(z: Floats, bend: tuple[float, float]) -> Floats:
    return bend[0] * np.minimum(z, 0) + bend[1] * np.maximum(z, 0)


def _grouped(
    column: NDArray[Any], logits: NDArray[Any], present: NDArray[np.bool_], classes: int
) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """(class, mean logit, share present, how many) of the entries of each class and range of logits that has some."""
    low, high = np.quantile(logits[:: 1 + len(logits) // _MOST], (0.001, 0.999)).astype(np.float64)
    # Logits far out have ranges of their own too, but a few that are huge do not widen all others.
    low, high = max(float(logits.min()), 2 * low - high), min(float(logits.max()), 2 * high - low)
    many, summed, positive = np.zeros((3, classes * _BINS))
    for first in range(0, len(logits), _MOST):
        here = slice(first, first + _MOST)
        x = logits[here].astype(np.float64)
        place = np.clip((x - low) * (_BINS / max(high - low, 1e-9)), 0, _BINS - 1).astype(np.int64)
        place += column[here].astype(np.int64) * _BINS
        for into, values in ((many, None), (summed, x), (positive, present[here])):
            into += np.bincount(place, values, len(into))
    some = np.flatnonzero(many)
    count = many[some]
    return some // _BINS, summed[some] / count, positive[some] / count, count


def _logistic(design: Floats, target: Floats, weight: Floats, start: Floats, pull: Floats) -> Floats:
    """Logistic regression by Newton's method, drawn towards `start` with the strength `pull`: (n, k) -> (k,)."""
    weights = start.copy()

    def loss(w: Floats) -> float:
        z = design @ w
        return float(weight @ (np.logaddexp(0, z) - target * z) + 0.5 * np.sum(pull * (w - start) ** 2))

    now = loss(weights)
    for _ in range(50):
        p = sigmoid(design @ weights)
        down = design.T @ (weight * (p - target)) + pull * (weights - start)
        move = np.linalg.solve((design * (weight * p * (1 - p))[:, None]).T @ design + np.diag(pull), down)
        size = 1.0
        while (then := loss(weights - size * move)) > now and size > 1e-6:
            size /= 2
        weights, now = weights - size * move, then
        if float(np.abs(size * move).max()) < 1e-9:
            break
    return weights
