"""Calibration: from logits to probabilities, fitted on known labels. Imports no torch, for a quick review page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from halflabel.evaluation.inclusion import counts_in_curve
from halflabel.system.validate import check_fields

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]

_EM_ROUNDS = 12  # updates of the spread of the classes
_NEWTON_STEPS = 4  # in each of these rounds
_MAX_STEPS = 50  # of Newton's method in a logistic regression
_MAX_ENTRIES = 1 << 20  # above that, known entries with similar logits are fitted as one
BINS = 1024  # of the logits, then
_PRIOR_SPREAD = np.array([0.2, 0.5])  # of slope and offset, before answers correct probabilities
_LEAST_SLOPE = 0.01  # of a curve: probabilities keep the order of the logits


class Calibration(NamedTuple):
    """p = σ(slope_c · z' + offset_c), with z = slope · x + offset and z' = z, or bend · z above 0 (Platt 1999).

    Fitted on `known` labels. `assumption` says in words under which assumption p holds; "" where the known labels
    include enough negatives. Without `class_slope` and `class_offset` all classes share one curve, p = σ(z').
    """

    slope: float = 1.0
    offset: float = 0.0
    known: int = 0
    assumption: str = ""
    bend: float = 1.0
    class_slope: tuple[float, ...] = ()  # (C,) > 0
    class_offset: tuple[float, ...] = ()  # (C,)
    covariance: tuple[tuple[float, float], ...] = ()  # (2, 2) of slope and offset, where answers correct probabilities

    @classmethod
    def from_json(cls, values: Mapping[str, Any], classes: int) -> Calibration:
        """Read the values of `as_json`; raise ValueError if they are not a calibration of so many classes."""
        numbers = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        calibration = cls(**check_fields(cls, numbers))
        sizes = {len(calibration.class_slope), len(calibration.class_offset)}
        shared = (calibration.slope, calibration.offset, calibration.bend)
        parameters = (*shared, *calibration.class_slope, *calibration.class_offset)
        if sizes not in ({0}, {classes}) or not all(map(math.isfinite, parameters)):
            raise ValueError("the calibration does not fit the classes")
        return calibration

    def as_json(self) -> dict[str, Any]:
        """Return the values that a run and an exported model store."""
        return {name: value for name, value in self._asdict().items() if name != "covariance"}

    @overload
    def scores(self, logits: Tensor) -> Tensor: ...
    @overload
    def scores(self, logits: NDArray[Any], column: NDArray[Any] | None = None) -> NDArray[np.float32]: ...
    def scores(self, logits: Any, column: NDArray[Any] | None = None) -> Any:
        """Logits (…, C) -> probabilities (…, C); with `column`, of single entries (n,) of these classes. NaN stays."""
        z = self.log_odds(logits, column)
        return sigmoid(z).astype(np.float32) if isinstance(z, np.ndarray) else z.sigmoid()

    def log_odds(self, logits: Any, column: NDArray[Any] | None = None) -> Any:
        """Return log p / (1 − p) of the probabilities p that `scores` returns; an array is computed in float64."""
        is_array = isinstance(logits, np.ndarray)
        z = self.slope * (logits.astype(np.float64) if is_array else logits) + self.offset
        if self.bend != 1:
            z = z.clip(max=0) + self.bend * z.clip(min=0)
        if self.class_slope:
            curves = np.array([self.class_slope, self.class_offset])[:, slice(None) if column is None else column]
            slope, offset = curves if is_array else z.new_tensor(curves)
            z = slope * z + offset
        return z

    def corrected(self, slope: float, offset: float, classes: int) -> Calibration:
        """Return the curves with logit p' = slope · logit p + offset."""
        if self.bend == 1 and not self.class_slope:
            return self._replace(slope=slope * self.slope, offset=slope * self.offset + offset)
        class_slope, class_offset = (slope * self._class_curves(classes) + [[0.0], [offset]]).tolist()
        return self._replace(class_slope=tuple(class_slope), class_offset=tuple(class_offset))

    def towards(self, other: Calibration, weight: float, classes: int) -> Calibration:
        """Return a mean of the parameters, of which `weight` is the other's, from 0 to 1; with this assumption."""
        first, second = ([each.slope, each.offset, each.bend] for each in (self, other))
        slope, offset, bend = _mean(first, second, weight)
        mixed = self._replace(slope=slope, offset=offset, bend=bend, known=max(self.known, other.known))
        if not self.class_slope and not other.class_slope:
            return mixed
        class_slope, class_offset = map(tuple, _mean(self._class_curves(classes), other._class_curves(classes), weight))
        return mixed._replace(class_slope=class_slope, class_offset=class_offset)

    def _class_curves(self, classes: int) -> Floats:
        """Return slope and offset of each class (2, C)."""
        return np.array([self.class_slope or np.ones(classes), self.class_offset or np.zeros(classes)])

    def draws(self, count: int) -> Floats:
        """Return pairs of slope and offset that are plausible after the answers, (count, 2)."""
        pair = np.array([self.slope, self.offset])
        if not self.covariance:
            return pair[None]
        return np.random.default_rng(0).multivariate_normal(pair, np.array(self.covariance), count)


def fit_platt(logits: ArrayLike, labels: ArrayLike) -> Calibration:
    """Fit the pair that maximises the likelihood of the known labels (N, C).

    Returns (1, 0) where one sign is missing. The slope is at least 0.01, also where logits rank the labels backwards.
    Targets are (n⁺ + 1)/(n⁺ + 2) and 1/(n⁻ + 2) instead of 1 and 0, as Platt proposes, so that perfectly separated
    labels do not drive the slope to infinity.
    """
    x, truth = np.asarray(logits, np.float64), np.asarray(labels)
    known = (truth != 0) & ~np.isnan(x)
    x, present = x[known], truth[known] > 0
    positives = int(present.sum())
    negatives = len(x) - positives
    if not positives or not negatives:
        return Calibration()
    target = np.where(present, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    slope, offset = _fit_rising(x, target, np.full(len(x), 1 / len(x)), np.zeros(2))
    return Calibration(slope, offset, len(x))


def fit_class_platt(
    column: NDArray[Any], logits: NDArray[Any], present: NDArray[np.bool_], classes: int
) -> Calibration:
    """Fit one Calibration pair per class, shrunk towards the fit of all classes: more so the fewer labels a class has.

        z = slope · x + offset and then z' = bent(z), fitted to all known entries;   p = σ((1 + a_c) z' + b_c)
        minus log posterior of a class = Σ_known log loss + a_c² / 2 s_a² + b_c² / 2 s_b²

    The bend gives confident positives and confident negatives different slopes. The spreads s_a and s_b are fitted to
    the classes (expectation-maximisation with a normal approximation, "empirical Bayes"): where classes are alike, all
    share one curve. Where one sign is missing there is nothing to fit, and p = σ(x).

    column, logits, present: one per known entry (n,). Above a million entries, those of a class in one of 1,024 ranges
    of logits count as one entry with their mean and number.
    """
    a, b = np.zeros(classes), np.zeros(classes)
    known = len(logits)
    if present.all() or not present.any():
        return Calibration(known=known)
    if known > _MAX_ENTRIES:
        column, x, target, weight = _grouped(column, logits, present, classes)
    else:
        x, target, weight = np.asarray(logits, np.float64), present.astype(np.float64), np.ones(known)
    slope, offset = _fit_rising(x, target, weight, np.array([0.01, 1e-4]))
    z = slope * x + offset
    design = np.stack([np.minimum(z, 0), np.maximum(z, 0), np.ones_like(z)], 1)
    low, high, _ = fit_logistic(design, target, weight, np.array([1.0, 1.0, 0.0]), np.ones(3))
    low, high = max(float(low), 0.2), max(float(high), 0.2)
    z = low * np.minimum(z, 0) + high * np.maximum(z, 0)
    spread_a, spread_b = 0.3, 1.0
    has_labels = np.bincount(column, minlength=classes) > 0

    class_sums = partial(np.bincount, column, minlength=classes)
    for _ in range(_EM_ROUNDS):
        for _ in range(_NEWTON_STEPS):
            p = sigmoid((1 + a[column]) * z + b[column])
            residual, curvature = weight * (p - target), weight * p * (1 - p)
            gradient_a, gradient_b = class_sums(residual * z) + a / spread_a**2, class_sums(residual) + b / spread_b**2
            aa = class_sums(curvature * z * z) + 1 / spread_a**2
            ab = class_sums(curvature * z)
            bb = class_sums(curvature) + 1 / spread_b**2
            determinant = aa * bb - ab * ab
            # Steps are limited: far from the optimum, where the curvature is small, a full step may overshoot.
            a -= np.clip((bb * gradient_a - ab * gradient_b) / determinant, -0.5, 0.5)
            b -= np.clip((aa * gradient_b - ab * gradient_a) / determinant, -1.0, 1.0)
            a = np.maximum(a, -0.8)  # probabilities keep the order of the logits
        spread_a = float(np.sqrt(np.mean((a**2 + bb / determinant)[has_labels]).clip(0.02**2, 1.0)))
        spread_b = float(np.sqrt(np.mean((b**2 + aa / determinant)[has_labels]).clip(0.05**2, 9.0)))
    class_slope, class_offset = tuple((low * (1 + a)).tolist()), tuple(b.tolist())
    return Calibration(slope, offset, known, "", high / low, class_slope, class_offset)


def fit_correction(
    log_odds: Floats, present: NDArray[np.bool_], weight: NDArray[Any], *, keep_slope: bool = False
) -> Calibration:
    """Correct log odds (n,) by the answers to these n random questions, with their inclusion weights.

    Logistic regression with a normal prior around no change; the covariance is that of the normal approximation at the
    optimum. `keep_slope`: answers about likely entries alone are no evidence for the unlikely ones.
    """
    design, prior, strength = _with_ones(log_odds), np.array([1.0, 0.0]), 1 / _PRIOR_SPREAD**2
    if keep_slope:
        strength = np.array([1e9, strength[1]])
    count = counts_in_curve(weight, log_odds)
    slope, offset = fit_logistic(design, present.astype(np.float64), count, prior, strength).tolist()
    p = sigmoid(design @ np.array([slope, offset]))
    precision = (design * (count * p * (1 - p))[:, None]).T @ design + np.diag(strength)
    (a, b), (_, c) = np.linalg.inv(precision).tolist()
    return Calibration(slope, offset, len(design), covariance=((a, b), (b, c)))


def describe_answers(p: NDArray[Any], present: NDArray[np.bool_]) -> str:
    """Say what the answers to random questions (n,) show about the probabilities before them (n,)."""
    yes, expected, spread = int(present.sum()), float(np.sum(p)), math.sqrt(float(np.sum(p * (1 - p)))) or 1.0
    deviation = (yes - expected) / spread
    agrees = "agree with" if abs(deviation) < 2 else f"are {'fewer' if deviation < 0 else 'more'} than"
    return f"{yes} of {len(p)} control answers are yes and {agrees} the {expected:.1f} expected before"


def has_as_many_negatives(labels: NDArray[Any]) -> bool:
    """Return whether at least as many known labels are absent as present; else people mostly noted what they saw."""
    return int((labels < 0).sum()) >= max(int((labels > 0).sum()), 1)


def sigmoid(x: NDArray[Any]) -> Floats:
    """1 / (1 + exp(−x)) without overflow."""
    return np.asarray(expit(np.asarray(x, np.float64)))


def fit_logistic(design: Floats, target: Floats, weight: Floats, prior: Floats, strength: Floats) -> Floats:
    """Minimise Σ weight · log loss + ½ Σ strength · (coefficients − prior)²: design (n, k) -> coefficients (k,)."""
    coefficients = prior.copy()
    damping = np.diag(strength + 1e-9)  # the damping keeps a flat curvature invertible

    def loss(w: Floats) -> float:
        z = design @ w
        return float(weight @ (np.logaddexp(0, z) - target * z) + 0.5 * np.sum(strength * (w - prior) ** 2))

    current = loss(coefficients)
    for _ in range(_MAX_STEPS):
        p = sigmoid(design @ coefficients)
        gradient = design.T @ (weight * (p - target)) + strength * (coefficients - prior)
        move = np.linalg.solve((design * (weight * p * (1 - p))[:, None]).T @ design + damping, gradient)
        size = 1.0
        while (after := loss(coefficients - size * move)) > current and size > 1e-6:
            size /= 2
        coefficients, current = coefficients - size * move, after
        if float(np.abs(size * move).max()) < 1e-9:
            break
    return coefficients


def _fit_rising(x: Floats, target: Floats, weight: Floats, strength: Floats) -> tuple[float, float]:
    """Return slope and offset of a logistic regression around (1, 0), with at least the smallest slope."""
    slope, offset = fit_logistic(_with_ones(x), target, weight, np.array([1.0, 0.0]), strength).tolist()
    if not slope >= _LEAST_SLOPE:
        start, fixed = np.array([_LEAST_SLOPE, 0.0]), np.array([1e9, strength[1]])
        slope, offset = fit_logistic(_with_ones(x), target, weight, start, fixed).tolist()
    return slope, offset


def _mean(first: Any, second: Any, weight: float) -> list[Any]:
    mean: list[Any] = ((1 - weight) * np.asarray(first) + weight * np.asarray(second)).tolist()
    return mean


def _with_ones(x: Floats) -> Floats:
    return np.stack([x, np.ones_like(x)], 1)


def _grouped(
    column: NDArray[Any], logits: NDArray[Any], present: NDArray[np.bool_], classes: int
) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """(class, mean logit, share present, number) of the entries in each non-empty range of logits of each class."""
    x = logits.astype(np.float64)
    ends = np.quantile(x[:: 1 + len(x) // _MAX_ENTRIES], (0.001, 0.999))
    cell = logit_cells(x, *ends) + column.astype(np.int64) * BINS
    filled, place = np.unique(cell, return_inverse=True)
    count, total, positives = (np.bincount(place, values) for values in (None, x, present))
    return filled // BINS, total / count, positives / count, count.astype(np.float64)


def logit_cells(x: Floats, low: float, high: float) -> NDArray[np.int64]:
    """Return which of 1,024 equal ranges each logit (n,) is in; two quantiles of the logits limit how wide they are."""
    low, high = max(float(x.min()), 2 * low - high), min(float(x.max()), 2 * high - low)
    return np.clip((x - low) * (BINS / max(high - low, 1e-9)), 0, BINS - 1).astype(np.int64)
