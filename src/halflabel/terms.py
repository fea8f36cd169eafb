"""Terms: what a method adds to its loss that is not charged entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from halflabel.labels.table import LabelTable
from halflabel.losses import widen
from halflabel.types import Batch, Output, Targets

__all__ = ["Entropy", "ExpectedPositives", "Term", "entropy", "estimate_positives"]


class Term(nn.Module):
    """A scalar added to the loss of a step."""

    def start(self, table: LabelTable) -> None:
        """Called once, before training, with the known training labels."""

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say what it adds")


def entropy(logits: Tensor) -> Tensor:
    """Binary entropy of each score: H = −p log p − (1 − p) log(1 − p), any shape, in nats.

    From logits: H = softplus(a) − a·σ(a) with a = −|x|, for H is even and both parts are ≥ 0 there: no digit is lost at
    either end, and dH/dx = −x p (1 − p) stays finite.
    """
    a = -logits.abs()
    return softplus(a) - a * torch.sigmoid(a)


class Entropy(Term):
    """weight/(B·C) · Σ H(p) over the entries that nothing is charged for (pos = neg = 0). Negative: maximise."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        logits = widen(output.logits)
        free = (targets.pos == 0) & (targets.neg == 0)
        return self.weight * (entropy(logits) * free).sum() / max(logits.numel(), 1)


class ExpectedPositives(Term):
    """Expected-positive regulariser: ((1/B Σ_i Σ_c p_ic − k) / C)². Cole 2021 (EPR).

    k is the number of positives per image, all classes together; `positives` 0 = `estimate_positives` of the training
    labels.
    """

    def __init__(self, positives: float = 0.0) -> None:
        super().__init__()
        self.positives = positives
        self.k = positives

    def start(self, table: LabelTable) -> None:
        self.k = self.positives or estimate_positives(table)

    def penalty(self, logits: Tensor) -> Tensor:
        """(B, C) logits -> scalar."""
        scores = torch.sigmoid(widen(logits))
        return ((scores.sum(1).mean() - self.k) / logits.shape[1]) ** 2

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        return self.penalty(output.logits)


def estimate_positives(table: LabelTable) -> float:
    """Positives per image, as far as known labels tell.

    With known negatives: Σ_c positives_c / known_c, right where labels are missing at random. With positives only, or
    with more of them than of negatives though there are unknown labels (as when some were asked about afterwards), they
    are not: then the mean number of known positives of a labelled image, a lower bound (1 for single positives).
    """
    stats = table.stats()
    if stats.negatives.sum() >= stats.positives.sum() or not stats.unknown.any():
        return float((stats.positives / (stats.positives + stats.negatives).clip(1)).sum())
    return stats.positives_per_labelled_image
