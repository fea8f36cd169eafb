"""The parts of `--tune all`, in the order in which `fitting.fit` calls them; benchmarks/RESULTS.md measures each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from halflabel.evaluation.decisions import calibrate
from halflabel.evaluation.ranking import ranking_quality
from halflabel.features.feature_transform import FeatureTransform
from halflabel.features.heads import Head, NormalisedLinear
from halflabel.fitting.crossfit import MakeMethod, best_strength, to_components
from halflabel.fitting.solver import LinearSolver
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler
from halflabel.system.threads import use_free_cores
from halflabel.types import Batch, Targets, at_least_float32

_START_STRENGTH = 0.3  # of L2, on standardised features: with 0.003 the loss is near 0 before the first step
_START_ITERATIONS = 200
_LABEL_WEIGHT = 0.7  # of a known label, beside the frozen recipe's probability
_SMOOTHING = 0.1  # of labels where more than this share is known
_NEARLY_ALL = 0.9
_LEAST = 1e-4  # probability that a target is away from 0 and 1
_PARTS = 10  # a weight is a number of tenths
_NOISE = 0.12  # of the quality measured on one positive; it falls with the root of their number
_LEAST_WEIGHT = 0.05  # smaller ones are left out: they are not worth a pass through a network
_ENTRIES = 1 << 18  # scores at most that weights are chosen on; of more, classes at equal distances


class GivenTargets(Relabeler):
    """Targets (N, C) in 0 … 1 of all entries, known and unknown. Memory: 4 bytes per entry."""

    words = "soft targets of the frozen recipe"
    is_static = True
    targets: Tensor

    def __init__(self, targets: Tensor) -> None:
        super().__init__()
        self.register_buffer("targets", targets.float(), persistent=False)

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        present = self.targets[batch.index].to(at_least_float32(logits).dtype)
        return Targets(present, 1 - present)


def taught_by(targets: Tensor) -> Method:
    """Return cross-entropy with soft targets (N, C)."""
    return Method(BCE(), GivenTargets(targets))


def soft_targets(table: Table, logits: Tensor, judged: Table) -> Tensor:
    """Return the targets (N, C) of the labels of a table, from out-of-fold logits (N, C) by the frozen recipe.

    Unknown entries have the calibrated probability p; known ones 0.7 of their label and 0.3 of p, or, where nearly
    everything is known, their label smoothed by 0.1. `judged` holds the labels that calibrate p. Uncertain entries keep
    their own target; images that could not be read have no p and count as 0.5, but are never trained on.
    """
    labels = torch.from_numpy(table.dense())
    present = (labels > 0).float()
    guess = calibrate(logits.numpy(), judged.dense()).scores(logits).float().nan_to_num(0.5)
    other, weight = (0.5, 1 - _SMOOTHING) if table.stats.share_known > _NEARLY_ALL else (guess, _LABEL_WEIGHT)
    target = torch.where(labels == 0, guess, weight * present + (1 - weight) * other)
    stated = table.soft_targets(np.arange(len(table)))
    if stated is not None:
        target = torch.where(torch.from_numpy(np.isnan(stated)), target, torch.from_numpy(stated).nan_to_num(0.5))
    return target.clamp(_LEAST, 1 - _LEAST)


def regularised_head(features: Tensor, targets: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Return weights (C, D) and biases (C,) of cross-entropy with a strong L2 penalty; NaN rows are left out.

    mean over images, sum over classes of BCE(V z + b, targets) + strength / 2 · ‖V‖², z the standardised features.
    """
    inside = ~torch.isnan(features).any(1)
    x, wanted = features[inside].to(device), targets[inside].to(device)
    mean, scale = x.mean(0), x.std(0) + 1e-3
    z, classes = (x - mean) / scale, wanted.shape[1]
    weight = torch.zeros(classes, z.shape[1], device=device, requires_grad=True)
    share = wanted.mean(0).clamp(_LEAST, 1 - _LEAST)
    bias = torch.logit(share).clone().requires_grad_()
    how = {"max_iter": _START_ITERATIONS, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS([weight, bias], **how)  # type: ignore[arg-type]

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = classes * binary_cross_entropy_with_logits(z @ weight.T + bias, wanted)
        loss = loss + _START_STRENGTH / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with use_free_cores(), torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        own = weight / scale
        return own.cpu(), (bias - own @ mean).cpu()


def refit_head(
    features: Tensor,
    table: Table,
    make_method: MakeMethod,
    held_out: NDArray[np.int64],
    *,
    evaluation: Table,
    blocks: Sequence[int] | None = None,
    device: str = "cpu",
) -> tuple[NormalisedLinear, Tensor]:
    """Fit a linear head to features (N, D), NaN rows for unreadable images, without the held-out images.

    Returns the head, and its logits (M, C) of the held-out images. These choose the strength by their labels in
    `evaluation`: out-of-fold scores of a network that was tuned on the other labels would be too good. `blocks` are
    those of the pooled vector of a network; without them the features may be any numbers.
    """
    inside = ~torch.isnan(features).any(1)
    inside[torch.from_numpy(held_out)] = False
    labels = torch.from_numpy(evaluation.subset(held_out).dense()).to(device)
    fits: dict[float, tuple[Tensor, Tensor, Tensor]] = {}

    with use_free_cores():
        rows = np.flatnonzero(inside.numpy())
        transform = FeatureTransform.fit(features[inside], blocks=blocks, of_backbone=blocks is not None, device=device)
        components, directions, variance = to_components(transform, features, torch.from_numpy(rows))
        judged = transform(features[torch.from_numpy(held_out)].to(device)) @ directions
        solver = LinearSolver(make_method(), components, table.subset(rows), variance=variance)

        def quality(strength: float) -> float:
            solver.fit(strength)
            fits[strength] = solver.score(judged), solver.weight.clone(), solver.bias.clone()
            return ranking_quality(fits[strength][0], labels)

        strength = best_strength(quality)[0]
    logits, weight, bias = fits[strength]
    head = NormalisedLinear(transform, len(table.classes))
    head.linear.weight.data = weight @ directions.T
    head.linear.bias.data = bias
    return head.cpu().eval(), logits.cpu()


@dataclass(frozen=True)
class Member:
    name: str
    head: Head
    logits: Tensor
    is_frozen: bool = False  # whether it sees the frozen backbone


@dataclass(frozen=True)
class Mix:
    """x = Σ_m weight_m · x_m, and the logits of held-out images by shares that other images chose."""

    share: list[float]  # of each member, in units of its spread; they sum to 1
    weight: list[float]
    logits: Tensor  # (M, C)


def combine(members: Sequence[Member], labels: Tensor, fold: NDArray[np.int8], *, single: bool = False) -> Mix:
    """Choose the weights of members on known labels (M, C) of held-out images, `fold` (M,) of these.

    Each member's logits are divided by their spread, which no label tells. The logits of each fold are combined by
    shares that the other folds choose. Where these logits do not rank the labels better than those of the frozen
    recipe, the last member, it has all the weight. `single`: the frozen backbone is used alone or not at all.
    """
    frozen = members[-1].logits
    readable = torch.stack([~member.logits.isnan().any(1) for member in members]).all(0)
    spreads = [float(each.logits[readable].var(0, correction=0).mean().sqrt().clamp(min=1e-6)) for each in members]
    mean = sum(spreads) / len(spreads)  # so that x is about as large as the members are
    scaled = [mean / spread * member.logits for member, spread in zip(members, spreads, strict=True)]
    grid = [
        shares
        for shares in itertools.product(range(_PARTS + 1), repeat=len(members))
        if sum(shares) == _PARTS and not (single and 0 < shares[-1] < _PARTS)
    ]
    held, mixed = torch.from_numpy(fold), torch.full_like(frozen, torch.nan)
    for number in np.unique(fold):
        outside = (held == int(number)) & readable
        rows = readable & ~outside
        mixed[outside] = sum_of(_choose([each[rows] for each in scaled], labels[rows], grid), scaled)[outside]
    if ranking_quality(mixed, labels) <= ranking_quality(frozen, labels):
        only = [0.0] * (len(members) - 1) + [1.0]
        return Mix(only, only, frozen)
    share = _choose([each[readable] for each in scaled], labels[readable], grid)
    weight = [part * mean / spread for part, spread in zip(share, spreads, strict=True)]
    return Mix(share, weight, mixed)


def _choose(logits: Sequence[Tensor], labels: Tensor, grid: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the shares that suit some images: a mean over the grid that favours those that rank the labels best."""
    step = max(1, labels.numel() // _ENTRIES)
    scores, known = [each[:, ::step] for each in logits], labels[:, ::step]
    shares = torch.tensor(grid, dtype=torch.float64) / _PARTS
    quality = [ranking_quality(sum_of(row, scores), known) for row in shares.tolist()]
    noise = _NOISE / max(1, int((known > 0).sum())) ** 0.5
    share = torch.softmax(torch.tensor(quality, dtype=torch.float64) / noise, 0) @ shares
    share = torch.where(share < _LEAST_WEIGHT, 0, share)
    chosen: list[float] = (share / share.sum()).tolist()
    return chosen


def sum_of(weights: Sequence[float], scores: Sequence[Tensor]) -> Tensor:
    """Return Σ weight · scores, without those whose weight is 0."""
    used = [(weight, score) for weight, score in zip(weights, scores, strict=True) if weight]
    total = used[0][0] * used[0][1]
    for weight, score in used[1:]:
        total = total + weight * score
    return total
