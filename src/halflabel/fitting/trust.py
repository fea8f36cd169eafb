"""How far each class trusts the scores from class names: empirical Bayes by out-of-fold scores, for `crossfit`."""

from __future__ import annotations

import torch
from torch import Tensor

from halflabel.evaluation.ranking import has_negatives_to_rank

TRUSTS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5)  # the mean of the named scores is 0, their standard deviation 1
_SPREAD = 0.5  # of the slopes of the classes, relative to the common one
_SHARED_STEPS, _STEPS = 8, 16  # of Newton's method: with one slope for all classes, then in all
_ROUNDS = 100  # of expectation and maximisation


def choose_trust(without: Tensor, gain: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Return the trust (C,) of each class, and that of a class without labels that tell.

    `without` (N, C) are out-of-fold logits without names, `gain` (N, C) their change per unit of trust, by which
    `labels` (N, C) of people become more or less likely. The posterior median is chosen: 0 where it is as likely that
    names do not help. With too few known negatives, unknown counts as absent.
    """
    if not has_negatives_to_rank(labels):
        labels = torch.where(labels > 0, 1, -1)
    tells = (labels > 0).any(0) & (labels < 0).any(0)
    without, gain, labels = (part[:, tells] for part in (without, gain, labels))
    trusts = torch.tensor(TRUSTS, device=without.device)
    likelihood = torch.stack([_log_likelihood(without + trust * gain, labels) for trust in TRUSTS])  # (T, C)
    prior = torch.full((len(trusts), 1), 1 / len(trusts), device=without.device)
    posterior = likelihood
    for _ in range(_ROUNDS):
        posterior = torch.softmax(likelihood + prior.log(), 0)
        prior = (posterior.sum(1, keepdim=True) + 1 / len(trusts)) / (posterior.shape[1] + 1)
    common = _median(prior, trusts)
    chosen = torch.full_like(tells, 0, dtype=trusts.dtype) + common
    chosen[tells] = _median(posterior, trusts)
    return chosen, float(common)


def _median(shares: Tensor, values: Tensor) -> Tensor:
    """Return the median (C,) of distributions (T, C) over rising values (T,), linear between them."""
    above = shares.cumsum(0)
    place = (above < 0.5).sum(0, keepdim=True).clamp(max=len(values) - 1)
    share = ((0.5 - above.gather(0, place)) / shares.gather(0, place) + 1)[0].clamp(0, 1)
    lower = values[(place[0] - 1).clamp(min=0)]
    return lower + share * (values[place[0]] - lower)


def _log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Return per class the log likelihood of ±1 labels, 0 where unknown, by the best curve σ(slope · logit + bias).

    Slopes are near that of all classes: logits of any loss are compared by what they tell apart, not by their size.
    """
    known, present = (labels != 0).to(logits.dtype), (labels > 0).to(logits.dtype)
    slope, bias, common, precision = torch.ones_like(logits[0]), torch.zeros_like(logits[0]), 1.0, 0.0
    for step in range(_STEPS):
        if step >= _SHARED_STEPS:
            common = float(slope.mean()) if step == _SHARED_STEPS else common
            precision = 1 / (_SPREAD * common) ** 2
        probability = torch.sigmoid(slope * logits + bias)
        residual = known * (probability - present)
        weight = known * probability * (1 - probability)
        moment = (weight * logits).sum(0)
        curvature = weight.sum(0) + 1e-3
        slope_gradient = (residual * logits).sum(0) + precision * (slope - common)
        gradient = slope_gradient - moment * residual.sum(0) / curvature
        hessian = (weight * logits.square()).sum(0) + precision - moment.square() / curvature
        if step < _SHARED_STEPS:
            gradient, hessian = gradient.sum(), hessian.sum()
        change = (gradient / hessian.clamp(min=1e-6)).clamp(-0.5 * common, 0.5 * common)
        bias = bias - ((residual.sum(0) - moment * change) / curvature).clamp(-1, 1)
        slope = (slope - change).clamp(0.05, 20)
    margin = slope * logits + bias
    loss = known * (torch.nn.functional.softplus(margin) - present * margin)
    return -loss.sum(0) - precision / 2 * (slope - common).square()
