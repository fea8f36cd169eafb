"""Terms: what a method adds to its loss that is not charged entry by entry."""

from __future__ import annotations

from torch import Tensor, nn

from halflabel.labels.table import LabelTable
from halflabel.types import Batch, Output, Targets

__all__ = ["Term"]


class Term(nn.Module):
    """A scalar added to the loss of a step."""

    def start(self, table: LabelTable) -> None:
        """Called once, before training, with the known training labels."""

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say what it adds")
