"""Calibration where only positives are known: the probability that a class is present, from which labels were given.

All models assume that p rises with the logit x of a class along a logistic curve, and that the labels that were given
are a random sample of the present ones. The shape of p then shows how many present labels were not given. Imports no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.calibration import Calibration, sigmoid

Floats = NDArray[np.float64]

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(8)
_MAX_ENTRIES = 100_000  # logits that the choice of one label per image is fitted on
_CANDIDATES = 64  # most likely classes of an image among which its label was chosen
_SINGLE = 0.95  # share of labelled images with one positive from which on it was chosen; reviews add a few more
_BINS = 1024  # of the logits in the fit of given labels
_MOST_ENTRIES = 4_000_000  # of larger tables, images at equal distances are used
_BEND_SPREAD = 0.25  # of log bend before labels are seen: a bend and the share of given labels trade off
_WIDEST = (1.0, 99.0)  # percentiles between which the bins lie, widened by their distance


def fit_positives_only(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit the calibration by `fit_chosen_labels` where nearly all labelled images have one positive, else the other.

    Images have at least as many present classes as were given, which a poor model alone does not tell.
    """
    positives = (labels > 0).sum(1)
    is_single = _is_single(positives, labels.shape[1])
    calibration = (fit_chosen_labels if is_single else fit_given_labels)(logits, labels)
    labelled = (positives > 0) & ~np.isnan(logits).any(1)
    fewest = float(positives[labelled].mean()) if labelled.any() else 0.0
    if calibration.known and fewest < labels.shape[1]:
        least = match_positives_per_image(logits[labelled], calibration, fewest)
        calibration = calibration._replace(offset=max(calibration.offset, least.offset))
    return calibration


def fit_chosen_labels(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit `Calibration` with a bend where each image (N, C) has one known positive, chosen at random among the present.

    Classes are present independently given x. The label of an image is then class c with probability proportional to

        q_c = P(c is present and chosen) = p_c · E[1 / (1 + number of other present classes)]
            = p_c · ∫₀¹ Π_{d ≠ c} (1 − p_d + p_d u) du

    and (slope, offset, bend) maximise the likelihood of the given labels, Σ log(q_given / Σ_c q_c). A label that often
    goes to the second-ranked class means that several classes are present. Without the bend, a method that limits its
    surest scores (label smoothing) has far too high probabilities there.
    """
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    usable = np.flatnonzero(((labels > 0).sum(1) == 1) & ~np.isnan(logits).any(1))
    candidates = min(_CANDIDATES, logits.shape[1])
    usable = usable[:: max(1, math.ceil(len(usable) * candidates / _MAX_ENTRIES))]
    x, given = logits[usable], (labels[usable] > 0).argmax(1)
    if len(usable) < 2 or candidates < 2:
        return Calibration(assumption=_NOTHING)
    rows = np.arange(len(x))
    chosen = x[rows, given]
    x[rows, given] = np.inf  # the given label comes first among the candidates
    x = -np.partition(-x, candidates - 1, axis=1)[:, :candidates]
    place = x.argmax(1)
    x[rows, place] = chosen

    def minus_log_likelihood(parameters: Floats) -> float:
        p = _bent_curve(parameters, x)
        q = p * _chosen_share(p)
        return -float(np.mean(np.log(q[rows, place] / q.sum(1) + 1e-12))) + _prior(parameters)

    slope, offset, bend = _minimise(minus_log_likelihood, [0.0, 0.0, 0.0], [1.0, 1.0, -1.0])
    return Calibration(math.exp(slope), offset, len(usable), _CHOSEN, bend=_bend(bend))


def fit_given_labels(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit `Calibration` with a bend where each present label is known with the same probability c.

    P(label given | x) = c · p, and (slope, offset, bend, c) maximise the likelihood of which entries (N, C) are given.
    The share of given labels levels off at c among the surest entries, which tells c. (Elkan 2008 estimates c as the
    mean of P(given | x) over given labels: too low where classes overlap.) Known negatives are left out. Entries with
    similar logits are fitted as one.
    """
    logits, labels = sample_images(np.asarray(logits)), sample_images(np.asarray(labels))
    usable = (labels >= 0) & ~np.isnan(logits)
    x, given = logits[usable].astype(np.float64), labels[usable] > 0
    if not 0 < given.sum() < len(given):
        return Calibration(assumption=_NOTHING)
    low, high = np.percentile(x, _WIDEST)
    low, high = max(float(x.min()), 2 * low - high), min(float(x.max()), 2 * high - low)
    cell = np.clip((x - low) / max(high - low, 1e-9) * _BINS, 0, _BINS - 1).astype(np.int64)
    count, positives, total = (np.bincount(cell, weights, _BINS) for weights in (None, given, x))
    filled = count > 0
    count, positives, centre = count[filled], positives[filled], total[filled] / count[filled]

    def minus_log_likelihood(parameters: Floats) -> float:
        c = sigmoid(parameters[3:])[0]
        g = np.clip(c * _bent_curve(parameters, centre), 1e-12, 1 - 1e-12)
        likelihood = positives * np.log(g) + (count - positives) * np.log1p(-g)
        bend_prior = parameters[2] ** 2 / (2 * _BEND_SPREAD**2)
        return float(bend_prior - likelihood.sum()) / float(positives.sum()) + _prior(parameters)

    starts = ([0.0, 0.0, 0.0, c] for c in (-2.0, 0.0, 2.0))
    slope, offset, bend, c = _minimise(minus_log_likelihood, *starts)
    share = f"{100 * sigmoid(np.array(c)):.0f} %"
    return Calibration(math.exp(slope), offset, int(given.sum()), f"{_GIVEN}, here {share}", bend=_bend(bend))


def log_odds_of_unknown(positives: NDArray[Any], classes: int, expected_present: float) -> float:
    """Return log P(not given | present), the change of the log odds of p where a label was not given.

    positives: number of known positives per image (N,). If one label per image was chosen among the present ones, at
    most half of the others could have been: log ½. Else the share that was given is the number of given labels divided
    by the expected number of present ones.
    """
    if _is_single(positives, classes):
        return math.log(0.5)
    return math.log(1 - min(0.95, float(positives.sum()) / max(expected_present, 1e-9)))


def _is_single(positives: NDArray[Any], classes: int) -> bool:
    """Whether nearly all labelled images have one known positive, by the number of positives of each image (N,)."""
    return int((positives == 1).sum()) >= _SINGLE * int((positives > 0).sum()) and classes > 1


def match_positives_per_image(
    logits: NDArray[Any], calibration: Calibration, positives_per_image: float
) -> Calibration:
    """Move the offset until images (N, C) have `positives_per_image` present classes on average."""
    import torch

    x = torch.as_tensor(sample_images(np.asarray(logits)), dtype=torch.float64)
    x = x[~torch.isnan(x).any(1)]
    reach = 60.0 + calibration.slope * float(x.abs().max() if len(x) else 0)
    low, high = -reach, reach
    for _ in range(60):
        middle = (low + high) / 2
        is_too_few = float(calibration._replace(offset=middle).scores(x).sum(1).mean()) < positives_per_image
        low, high = (middle, high) if is_too_few else (low, middle)
    assumption = f"images have {positives_per_image:g} present classes on average, as stated"
    return calibration._replace(offset=(low + high) / 2, assumption=assumption)


def sample_images(values: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of a table (N, C) at equal distances that have at most 4 million entries."""
    return values[:: max(1, -(-values.size // _MOST_ENTRIES))]


def expected_f1_threshold(probabilities: NDArray[Any]) -> float:
    """Return the probability from which on calling entries present maximises the expected micro F1; NaN is left out.

    The expected F1 of the k most likely entries is about 2 Σ_{i ≤ k} p_i / (k + Σ p). The optimum is half of its value.
    """
    probabilities = sample_images(probabilities)
    p = np.sort(probabilities[~np.isnan(probabilities)].astype(np.float64))[::-1]
    if not len(p) or not p[0] > 0:
        return 0.5
    f1 = 2 * np.cumsum(p) / (np.arange(1, len(p) + 1) + p.sum())
    return float(f1.max() / 2)


def expected_threshold(probabilities: NDArray[Any], *, precision: float = 0.0, recall: float = 0.0) -> float:
    """Return the lowest threshold with this expected precision, or the highest one with this expected recall.

    Of the k most likely entries, Σ_{i ≤ k} p_i are expected to be present; NaN is left out. A precision that not even
    the surest entry reaches gives 1: nothing is called present.
    """
    p = np.sort(probabilities[~np.isnan(probabilities)].astype(np.float64))[::-1]
    hits = np.cumsum(p)
    if recall:
        return float(p[min(int(np.searchsorted(hits, recall * hits[-1])), len(p) - 1)]) if len(p) else 0.0
    enough = np.flatnonzero(hits / np.arange(1, len(p) + 1) >= precision)
    return float(p[enough[-1]]) if len(enough) else 1.0


_NOTHING = "nothing is known that probabilities could be fitted to"
_CHOSEN = "the one label of an image was chosen at random among its present classes"
_GIVEN = "each present label had the same chance of being given"


def _bent_curve(parameters: Floats, x: Floats) -> Floats:
    """Return p at the logits x, by the logarithm of the slope, the offset and the logarithm of the bend."""
    z = math.exp(parameters[0]) * x + parameters[1]
    return sigmoid(np.minimum(z, 0) + _bend(parameters[2]) * np.maximum(z, 0))


def _bend(logarithm: float) -> float:
    """Return the bend, at most 1: the surest scores may be less sure than the curve says.

    Labels hardly tell how much surer than it they are: free fits found up to 2.3 where hidden labels of VOC said 1.
    """
    return math.exp(min(logarithm, 0.0))


def _chosen_share(p: Floats) -> Floats:
    """E[1 / (1 + number of other present classes)] of each class, (N, C) -> (N, C), by Gauss-Legendre quadrature."""
    share = np.zeros_like(p)
    for node, weight in zip((_NODES + 1) / 2, _NODE_WEIGHTS / 2, strict=True):
        factor = np.log1p(-p * (1 - node))
        share += weight * np.exp(factor.sum(1, keepdims=True) - factor)
    return share


def _prior(parameters: Floats) -> float:
    """A weak pull to slope 1, offset 0 and no bend: separable labels must not drive the slope to infinity."""
    return 1e-4 * float(parameters[0] ** 2 + np.sum(parameters[2:] ** 2)) + 1e-5 * float(parameters[1] ** 2)


def _minimise(function: Callable[[Floats], float], *starts: list[float]) -> list[float]:
    from scipy.optimize import minimize  # imported late: predicting does not need it

    options = {"maxiter": 400, "xatol": 0.01, "fatol": 1e-6}
    results = []
    for start in starts:
        simplex = np.array(start) + np.concatenate([np.zeros((1, len(start))), np.eye(len(start))])
        results.append(minimize(function, start, method="Nelder-Mead", options=options | {"initial_simplex": simplex}))
    return [float(value) for value in min(results, key=lambda result: float(result.fun)).x]
