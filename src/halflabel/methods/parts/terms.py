"""Terms: scalars that a method adds to its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from halflabel.labels.table import Stats, Table
from halflabel.types import Batch, Output, Targets, at_least_float32


class Term(nn.Module):
    """A scalar added to the loss of a step."""

    def start(self, table: Table) -> None:
        """Receive the known training labels; called once, before training."""

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")


class EntryTerm(Term):
    """A mean over all entries, in which each entry depends on its own logit alone."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forward" in vars(cls) and "slope" not in vars(cls):
            raise TypeError(f"{cls.__name__} defines forward and must define slope too: L-BFGS uses it")

    def slope(self, logits: Tensor, targets: Targets) -> Tensor:
        """Return the derivative of B·C times the term by each logit, (B, C) -> (B, C)."""
        raise TypeError(f"{type(self).__name__} does not define slope")


def entropy(logits: Tensor) -> Tensor:
    """Binary entropy of each score: H = −p log p − (1 − p) log(1 − p), any shape, in nats.

    From logits: H = softplus(a) − a·σ(a) with a = −|x|, because H is even and both parts are ≥ 0 there: precise at
    both ends, and dH/dx = −x p (1 − p) stays finite.
    """
    a = -logits.abs()
    return softplus(a) - a * torch.sigmoid(a)


class Entropy(EntryTerm):
    """weight/(B·C) · Σ H(p) over the entries without a target (pos = neg = 0). A negative weight maximises entropy."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        logits = at_least_float32(output.logits)
        untargeted = (targets.pos == 0) & (targets.neg == 0)
        return self.weight * (entropy(logits) * untargeted).sum() / max(logits.numel(), 1)

    def slope(self, logits: Tensor, targets: Targets) -> Tensor:
        scores = torch.sigmoid(logits)
        untargeted = (targets.pos == 0) & (targets.neg == 0)
        return -self.weight * logits * scores * (1 - scores) * untargeted


class ExpectedPositives(Term):
    """Expected-positive regulariser: ((1/B Σ_i Σ_c p_ic − k) / C)². Cole 2021 (EPR).

    k is the number of positives per image, all classes together; `positives` 0 = `estimate_positives` of the training
    labels.
    """

    def __init__(self, positives: float = 0.0) -> None:
        super().__init__()
        self.positives = positives
        self.k = positives

    def start(self, table: Table) -> None:
        self.k = self.positives or estimate_positives(table)

    def penalty(self, logits: Tensor) -> Tensor:
        """(B, C) logits -> scalar."""
        scores = torch.sigmoid(at_least_float32(logits))
        return ((scores.sum(1).mean() - self.k) / logits.shape[1]) ** 2

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        return self.penalty(output.logits)


class UnknownScores(Term):
    """λ/(B·C) · Σ p^power over the unknown entries."""

    def __init__(self, power: int, strength: float) -> None:
        super().__init__()
        self.power = power
        self.strength = strength

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        scores = torch.sigmoid(at_least_float32(output.logits)).pow(self.power)
        return self.strength * (scores * (batch.labels == 0)).sum() / max(scores.numel(), 1)


def estimate_positives(table: Table) -> float:
    """Estimate the number of positives per image from the known labels.

    If labels are missing at random: Σ_c s_c, s_c = positives_c / known_c. Otherwise (positives only, or single
    positives with some labels that were asked for later): the mean number of known positives of a labelled image, a
    lower bound (1 for single positives).
    """
    stats = table.stats
    if _at_random(table, stats):
        return float(_shares(stats).sum())
    return float(stats.positives.sum()) / max(stats.labelled_images, 1)


def _shares(stats: Stats) -> NDArray[np.float64]:
    return np.asarray(stats.positives / (stats.positives + stats.negatives).clip(1))


def _at_random(table: Table, stats: Stats) -> bool:
    """Whether labels may be missing at random: the number of labelled images without a known positive must be

        at least half of the expected  Σ_i Π_(c known of i) (1 − s_c)

    If fewer than ten are expected, which is too few to decide: whether one in twenty known labels is negative.
    """
    if not stats.negatives.any():
        return False
    labelled = np.flatnonzero(np.diff(table.start))
    with np.errstate(divide="ignore"):
        log_absent = np.log1p(-_shares(stats))[table.column]
    expected = float(np.exp(np.add.reduceat(log_absent, table.start[labelled])).sum())
    if expected < 10:
        return bool(stats.negatives.sum() >= 0.05 * table.known)
    observed = int((np.add.reduceat((table.value > 0).astype(np.int64), table.start[labelled]) == 0).sum())
    return observed >= expected / 2
