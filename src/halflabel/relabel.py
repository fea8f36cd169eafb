"""Relabelers: from what is known to how much each entry is charged. The only parts of a method that remember."""

from __future__ import annotations

from torch import Tensor, nn

from halflabel.labels.table import LabelTable
from halflabel.types import Batch, Sweep, Targets

__all__ = ["AssumeNegative", "Ignore", "Relabeler"]


class Relabeler(nn.Module):
    """Gives (pos, neg) for a batch. State lives in buffers, so that checkpoint and resume need no code of their own."""

    def start(self, table: LabelTable) -> None:
        """Called once, before training, with the known training labels."""

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        """(B, C) detached logits and what is known -> how much each entry is charged. Epochs count from 1."""
        raise TypeError(f"{type(self).__name__} does not say how to relabel")

    def wants_sweep(self, epoch: int) -> bool:
        """Whether `absorb` is to be called after this epoch; every process must answer alike."""
        return False

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        """Learn from the scores of the whole training set; what it returns goes to the log."""
        return {}


class Ignore(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, 0)."""

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return Targets((batch.labels > 0).to(logits.dtype), (batch.labels < 0).to(logits.dtype))


class AssumeNegative(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, weight)."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        absent = (batch.labels < 0).to(logits.dtype)
        unknown = (batch.labels == 0).to(logits.dtype)
        return Targets((batch.labels > 0).to(logits.dtype), absent + self.weight * unknown)
