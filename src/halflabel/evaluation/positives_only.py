"""Calibration where mostly positives are known: the probability that a class is present, from which labels were given.

All models assume a logistic curve, and that the given labels are a random sample of the present ones: the shape of the
curve then shows how many were not given. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.calibration import BINS, Calibration, logit_cells, sigmoid

Floats = NDArray[np.float64]

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(8)
_MAX_ENTRIES = 100_000  # logits that the choice of one label per image is fitted on
_CANDIDATES = 64  # most likely classes of an image among which its label was chosen
_SINGLE = 0.95  # share of labelled images with one positive from which on it was chosen; reviews add a few more
_NOT_SINGLE = 0.85  # share up to which it was not; in between both models count
_MOST_ENTRIES = 4_000_000  # of larger tables, images at equal distances are used
# Spreads before labels are seen of log slope, offset, log bend, and the log odds of the share of given labels, which
# trades off with the bend.
_CHOSEN_SPREADS = np.array([1.0, 3.0, 0.5])
_GIVEN_SPREADS = np.array([1.0, 3.0, 0.25, 2.0])
_TILT_SCALE = 0.2  # of the tilt of known negatives before they are seen
_MOST_GIVEN = 0.95  # share of the present labels that were given
_WIDEST = (1.0, 99.0)  # percentiles between which the bins lie, widened by their distance


def fit_positives_only(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit by `fit_chosen_labels` where nearly all labelled images have one positive, else by `fit_given_labels`.

    Images have at least as many present classes as were given, which a poor model alone does not tell.
    """
    positives = (labels > 0).sum(1)
    weight = _weight_of_single(positives, labels.shape[1])
    calibration = fit_given_labels(logits, labels) if weight < 1 else fit_chosen_labels(logits, labels)
    if 0 < weight < 1:
        calibration = calibration.towards(fit_chosen_labels(logits, labels), weight, labels.shape[1])
    labelled = (positives > 0) & ~np.isnan(logits).any(1)
    fewest = float(positives[labelled].mean()) if labelled.any() else 0.0
    if calibration.known and fewest < labels.shape[1]:
        least = match_positives_per_image(logits[labelled], calibration, fewest)
        calibration = calibration._replace(offset=max(calibration.offset, least.offset))
    return calibration


def fit_chosen_labels(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit a curve with a bend where each image (N, C) has one known positive, chosen at random among the present.

    Classes are present independently given x. The label of an image is then class c with probability proportional to

        q_c = P(c is present and chosen) = p_c · E[1 / (1 + number of other present classes)]
            = p_c · ∫₀¹ Π_{d ≠ c} (1 − p_d + p_d u) du

    and (slope, offset, bend) maximise the likelihood of the given labels, Σ log(q_given / Σ_c q_c). Without the bend, a
    method that limits its surest scores (label smoothing) has far too high probabilities there.
    """
    is_single = (labels > 0).sum(1) == 1
    counts = _LogitCounts.of(logits, labels)
    images = max(int(is_single[:: _sampling_step(labels)].sum()), 1)
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    usable = np.flatnonzero(is_single & ~np.isnan(logits).any(1))
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
        likelihood = float(np.mean(np.log(q[rows, place] / q.sum(1) + 1e-12)))
        return _prior(parameters, _CHOSEN_SPREADS) / images - likelihood

    def share_given(parameters: Floats) -> float:
        expected = (counts.present + counts.absent + counts.unknown) @ _bent_curve(parameters, counts.centre)
        return min(_MOST_GIVEN, float(counts.present.sum() / expected))

    starts = [0.0, 0.0, 0.0], [1.0, 1.0, -1.0]
    slope, offset, bend = _fit_with_negatives(minus_log_likelihood, images, counts, share_given, *starts)
    return Calibration(math.exp(slope), offset, len(usable), _CHOSEN, bend=math.exp(bend))


def fit_given_labels(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit a curve with a bend where each present label is known with the same probability c.

    P(label given | x) = c · p, and (slope, offset, bend, c) maximise the likelihood of which entries (N, C) are given.
    The share of given labels levels off at c among the surest entries, which tells c. (Elkan 2008 estimates c as the
    mean of P(given | x) over given labels: too low where classes overlap.)
    """
    counts = _LogitCounts.of(logits, labels)
    positives, others = float(counts.present.sum()), counts.absent + counts.unknown
    if not positives or not others.any():
        return Calibration(assumption=_NOTHING)

    def minus_log_likelihood(parameters: Floats) -> float:
        g = np.clip(_share_given(parameters) * _bent_curve(parameters, counts.centre), 1e-12, 1 - 1e-12)
        likelihood = counts.present @ np.log(g) + others @ np.log1p(-g)
        return float(_prior(parameters, _GIVEN_SPREADS) - likelihood) / positives

    starts = ([0.0, 0.0, 0.0, c] for c in (-2.0, 0.0, 2.0))
    best = _fit_with_negatives(minus_log_likelihood, positives, counts, _share_given, *starts)
    slope, offset, bend, _ = best
    share = f"{100 * _share_given(np.array(best)):.0f} %"
    return Calibration(math.exp(slope), offset, int(positives), f"{_GIVEN}, here {share}", bend=math.exp(bend))


class _LogitCounts(NamedTuple):
    """Numbers of entries in ranges of logits (K,), of at most 4 million entries."""

    centre: Floats  # the mean logit of the range
    standardised: Floats  # by the mean and the standard deviation of all logits
    present: Floats
    absent: Floats
    unknown: Floats

    @classmethod
    def of(cls, logits: NDArray[Any], labels: NDArray[Any]) -> _LogitCounts:
        """Count logits and labels (N, C); NaN is left out."""
        logits, labels = sample_images(np.asarray(logits)), sample_images(np.asarray(labels))
        readable = ~np.isnan(logits)
        x, known = logits[readable].astype(np.float64), labels[readable]
        if not len(x):
            return cls(*np.zeros((5, 0)))
        cell = logit_cells(x, *np.percentile(x, _WIDEST))
        entries = np.bincount(cell, minlength=BINS)
        filled, parts = entries > 0, (x, known > 0, known < 0, known == 0)
        total, present, absent, unknown = (np.bincount(cell, part, BINS)[filled].astype(np.float64) for part in parts)
        centre = total / entries[filled]
        return cls(centre, (centre - x.mean()) / (x.std() + 1e-9), present, absent, unknown)


def _fit_with_negatives(
    loss: Callable[[Floats], float],
    scale: float,
    counts: _LogitCounts,
    share_given: Callable[[Floats], float],
    *starts: list[float],
) -> list[float]:
    """Minimise a loss of positives, a mean over `scale` labels, plus that of known negatives.

        P(known absent | x) = σ(level + tilt · x̄) · (1 − p),    x̄ the standardised logit
        loss = −log P(known absent | not given as present, x) of the others, + prior
        prior = |tilt| / 0.2 + min(n⁻ / n⁺, 1) · (log c − log σ(level))² / 2

    The tilt keeps p where people were asked about the likely classes: such negatives tell how they were chosen, but not
    how many likely entries are absent. Present and absent labels are taken to be known about equally often, c and
    σ(level), unless labels say otherwise.
    """
    negatives, unknown = float(counts.absent.sum()), float(counts.unknown.sum())
    if not negatives or not unknown:
        return _minimise(loss, scale, *starts)
    balance = min(negatives / float(counts.present.sum()), 1.0)

    def both(parameters: Floats) -> float:
        level, tilt = parameters[-2:]
        p, c = _bent_curve(parameters, counts.centre), share_given(parameters)
        known = np.clip(sigmoid(level + tilt * counts.standardised) * (1 - p) / (1 - c * p), 1e-12, 1 - 1e-12)
        likelihood = counts.absent @ np.log(known) + counts.unknown @ np.log1p(-known)
        inequality = math.log(max(c, 1e-12)) + np.logaddexp(0, -level)
        prior = math.hypot(tilt, 0.01) / _TILT_SCALE + 0.5 * balance * inequality**2
        return loss(parameters[:-2]) - float(likelihood - prior) / scale

    return _minimise(both, scale, *([*start, math.log(negatives / unknown), 0.0] for start in starts))[:-2]


def trust_in_known(present: float, absent: float, entries: float) -> float:
    """Return how far unknown entries are taken to be like the known ones, from 0 to 1, by numbers of labels.

    max(n⁻ / n⁺ − 1, n⁻ / (entries − n⁺))
    """
    share = absent / (entries - present) if entries > present else 1.0
    return min(max(absent / max(present, 1) - 1, share), 1.0)


def log_odds_of_unknown(positives: NDArray[Any], negatives: int, classes: int, expected_present: float) -> float:
    """Return log P(unknown | present) − log P(unknown | absent): the change of the log odds of p where none is known.

    positives: number of known positives per image (N,); negatives: that of all known negatives. The share that was
    given is the number of given labels divided by the expected number of present ones, or ½ if one label per image was
    chosen. There is no change as far as unknown entries are taken to be like the known ones.
    """
    present, entries = float(positives.sum()), float(len(positives) * classes)
    given = min(_MOST_GIVEN, present / max(expected_present, 1e-9))
    asked = min(_MOST_GIVEN, negatives / max(entries - expected_present, 1e-9))
    given += _weight_of_single(positives, classes) * (0.5 - given)
    return (1 - trust_in_known(present, negatives, entries)) * (math.log1p(-given) - math.log1p(-asked))


def _weight_of_single(positives: NDArray[Any], classes: int) -> float:
    """Return how far one label per image was chosen, by the number of positives of each image (N,)."""
    single = int((positives == 1).sum()) / max(int((positives > 0).sum()), 1) if classes > 1 else 0.0
    return min(max((single - _NOT_SINGLE) / (_SINGLE - _NOT_SINGLE), 0.0), 1.0)


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
    return values[:: _sampling_step(values)]


def _sampling_step(values: NDArray[Any]) -> int:
    return max(1, -(-values.size // _MOST_ENTRIES))


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
    """Return the lowest threshold with this expected precision (1: none), or the highest with this expected recall."""
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
    """Return p at the logits x, by the logarithm of the slope, the offset and the logarithm of the bend, at most 0."""
    z = math.exp(parameters[0]) * x + parameters[1]
    return np.clip(sigmoid(np.minimum(z, 0) + math.exp(parameters[2]) * np.maximum(z, 0)), 1e-12, 1 - 1e-12)


def _share_given(parameters: Floats) -> float:
    """Return the share of present labels that were given, by its log odds after the parameters of the curve."""
    return float(sigmoid(parameters[3]))


def _chosen_share(p: Floats) -> Floats:
    """E[1 / (1 + number of other present classes)] of each class, (N, C) -> (N, C), by Gauss-Legendre quadrature."""
    share = np.zeros_like(p)
    for node, weight in zip((_NODES + 1) / 2, _NODE_WEIGHTS / 2, strict=True):
        factor = np.log1p(-p * (1 - node))
        share += weight * np.exp(factor.sum(1, keepdims=True) - factor)
    return share


def _prior(parameters: Floats, spreads: Floats) -> float:
    """Return the negative logarithm of a normal prior with these spreads around 0: a few labels settle nothing."""
    return 0.5 * float(np.sum((parameters / spreads) ** 2))


def _minimise(function: Callable[[Floats], float], scale: float, *starts: list[float]) -> list[float]:
    """Return the best parameters from several starts, of a mean over `scale` labels; equal optima are averaged."""
    from scipy.optimize import minimize  # imported late: predicting does not need it

    limits = [(-8.0, 8.0), (None, None), (None, 0.0), *[(None, None)] * (len(starts[0]) - 3)]
    options = {"maxiter": 300, "ftol": 1e-12, "gtol": 1e-7}
    results = [minimize(function, start, method="L-BFGS-B", bounds=limits, options=options) for start in starts]
    value = np.array([result.fun for result in results])
    mean = np.average([result.x for result in results], axis=0, weights=np.exp(scale * (value.min() - value)))
    return [float(parameter) for parameter in mean]
