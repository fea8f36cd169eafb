"""Ranking losses: sums over all pairs of a positive and a negative, sampled ranks, and unknown labels in pairs."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import Loss, over_images
from halflabel.methods.parts.relabel import Relabeler
from halflabel.types import Batch, Targets, at_least_float32


def hinge_sums(logits: Tensor, neg: Tensor, margin: float, *, closed: bool = False) -> Tensor:
    """Return Σ_k w_k · max(0, margin − x_j + x_k) for every class j of each image, over its negatives k.

    logits (B, C) float; neg (B, C) ≥ 0 are the weights w_k, 0 for entries that are not negatives -> (B, C) float64. A
    pair exactly at the kink has a gradient only if `closed`.

    The negatives of an image are sorted once; those with a loss for j are above x_j − margin, so their sum comes from a
    cumulative sum. Memory O(B·C) and time O(B·C·log C) instead of B·C·C pairs; float64, because cumulative sums cancel.
    """
    x, weight = logits.double(), neg.double()
    key, order = _sorted(x, neg)
    weight = weight.gather(1, order)
    total_weight = _from_right(weight)
    total = _from_right(weight * x.gather(1, order))
    first = torch.searchsorted(key, (x.detach() - margin).contiguous(), right=not closed)
    return total_weight.gather(1, first) * (margin - x) + total.gather(1, first)


def violators(logits: Tensor, neg: Tensor) -> Tensor:
    """Count the negatives k with 1 − x_j + x_k ≥ 0, for every class j: (B, C), (B, C) -> (B, C) int64."""
    x = logits.detach().double()
    key, _ = _sorted(x, neg)
    return key.shape[1] - torch.searchsorted(key, (x - 1).contiguous(), right=False)


def trials(violating: Tensor, negatives: Tensor) -> Tensor:
    """Draw q, the position of the first violator if n negatives, v of them violators, are tried in random order.

    violating, negatives: integers of one shape -> the same shape; n + 1 where no negative violates.

    With a uniform key per negative the first violator has the smallest of v keys, U = 1 − u^(1/v), and each of the
    other n − v comes before it with probability U: q = 1 + Binomial(n − v, U). This has exactly the distribution
    of the draw without replacement, with two random numbers instead of n, from torch's generator of the device.
    """
    satisfied = (negatives - violating).double()
    u = torch.rand(satisfied.shape, dtype=torch.float64, device=satisfied.device)
    smallest = -torch.expm1(u.log() / violating.clamp(min=1))
    before = torch.binomial(satisfied, torch.where(violating > 0, smallest.clamp(0, 1), 1.0))
    return before.long() + 1


def rank_of(trials: Tensor, classes: int, *, rounded: bool = False) -> Tensor:
    """r = ⌊(m − 1) / q⌋ of q trials with m classes (Cevikalp 2019, eq. 3); `rounded` to the nearest, halves up."""
    return (2 * (classes - 1) + trials) // (2 * trials) if rounded else (classes - 1) // trials


def harmonic(rank: Tensor, classes: int) -> Tensor:
    """L(r) = Σ_{i ≤ r} 1/i (Cevikalp 2019, eq. 2), L(0) = 0; float64."""
    steps = torch.arange(classes + 1, dtype=torch.float64, device=rank.device)
    return (1 / steps.clamp(min=1)).masked_fill(steps == 0, 0).cumsum(0)[rank]


def ranking(logits: Tensor, targets: Targets, rank: Tensor, *, s: float, leak: float, kappa: float) -> Tensor:
    """Return the robust ranking loss for given ranks, in the columns of the positives (Cevikalp 2019, eq. 1, 6).

    L_j = Σ_k w_jk · L(r_j) · R(x_j − x_k) + κ (pos_j · R(x_j) + neg_j · R(−x_j))
    R(t) = max(0, 1 − t) − (1 − leak) · max(0, s − t),  w_jk = √(pos_j · neg_k)

    If all weights of an image are s_i, its pairs have weight s_i too; mixed pairs the geometric mean. leak = 0
    is the ramp min(1 − s, max(0, 1 − t)), flat below s; leak = 1 is the hinge.

    logits, targets (B, C); rank (B, C) integers, used where pos > 0 -> (B, C).
    """
    x = logits.double()

    def ramp(t: Tensor) -> Tensor:
        # Not clamp, whose gradient at the kinks differs from eq. 8: it is 0 unless 1 − t > 0 and s − t < 0.
        value = torch.where(t < 1, 1 - t, 0.0)
        return value - (1 - leak) * torch.where(t <= s, s - t, 0.0) if leak < 1 else value

    neg = targets.neg.double().sqrt()
    pairs = hinge_sums(x, neg, 1.0)
    if leak < 1:
        pairs = pairs - (1 - leak) * hinge_sums(x, neg, s, closed=True)
    weight = targets.pos.double().sqrt() * harmonic(rank, logits.shape[1])
    loss = torch.where(targets.pos > 0, weight * pairs, 0.0)
    if kappa:
        loss = loss + kappa * (targets.pos * ramp(x) + targets.neg * ramp(-x))
    return loss.to(at_least_float32(logits).dtype)


class Ranking(Loss):
    """Robust ranking by the ramp, weighted by the rank of each positive: see `ranking` for the formula.

    rank = "sampled" estimates a positive's rank as ⌊(m − 1)/q⌋ with m classes, known or not, and q negatives tried in
    random order until one violates 1 − x_j + x_k ≥ 0; "exact" counts the violators.
    """

    def __init__(
        self, s: float = -0.8, kappa: float = 5.0, leak: float = 0.0, rank: str = "sampled", rounded: bool = False
    ) -> None:
        super().__init__()
        if not -1 < s <= 0:
            raise UserError(f"s is {s:g}", "give a number above −1 and up to 0, such as −0.8")
        self.s = s
        self.kappa = kappa
        self.leak = leak
        self.rank = rank
        self.rounded = rounded

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        wide = at_least_float32(logits)
        rank = violators(wide, targets.neg)
        if self.rank == "sampled":
            image, positive = (targets.pos > 0).nonzero(as_tuple=True)
            tried = trials(rank[image, positive], (targets.neg > 0).sum(1)[image])
            rank[image, positive] = rank_of(tried, wide.shape[1], rounded=self.rounded)
        return ranking(wide, targets, rank, s=self.s, leak=self.leak, kappa=self.kappa)


def ranking_method(loss: Ranking, relabel: Relabeler, **parts: Any) -> Method:
    """Return a method with this loss; if ranks are sampled, a step depends on the order of the images in the batch."""
    method = Method(loss, relabel, reduce=over_images, **parts)
    method.samples = loss.rank == "sampled"
    return method


Rank = Literal["sampled", "exact"]
Unknown = Literal["auto", "ignore", "negative"]  # an option: what unknown labels are taken as


class UnknownAs(Relabeler):
    """Known + → (1, 0), known − → (0, 1); unknown entries of images with a known label → (0, 0) or (0, 1).

    `policy` "ignore" leaves them out, "negative" takes them as absent; "auto" means "negative" if no training label is
    known to be absent (pairs need a negative), else "ignore". Images without any known label are always left out.
    """

    is_static = True

    weight: Tensor

    def __init__(self, policy: str = "auto") -> None:
        super().__init__()
        self.policy = policy
        self.register_buffer("weight", torch.tensor(float(policy == "negative")))

    def start(self, table: Table) -> None:
        if self.policy == "auto":
            self.weight.fill_(float(not (table.value < 0).any()))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        known = batch.labels != 0
        unknown = (~known & known.any(1, keepdim=True)).to(logits.dtype)
        absent = (batch.labels < 0).to(logits.dtype)
        return Targets((batch.labels > 0).to(logits.dtype), absent + self.weight.to(logits.dtype) * unknown)


def _sorted(x: Tensor, neg: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of the negatives of each row in ascending order, with −∞ for other entries, and the order."""
    sort: tuple[Tensor, Tensor] = x.detach().masked_fill(neg <= 0, -torch.inf).sort(1)
    return sort


def _from_right(values: Tensor) -> Tensor:
    """Return the sums of each row from every column to the last: (B, C) -> (B, C + 1), the last 0."""
    return torch.nn.functional.pad(values.flip(1).cumsum(1).flip(1), (0, 1))
