"""Losses that are derived from others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from halflabel.methods.parts.losses import BCE, Loss
from halflabel.methods.parts.terms import Entropy
from halflabel.types import Batch, Output, Targets


class Doubled(BCE):
    """Twice the loss of present labels."""

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        present, absent = super().pair(logits)
        return 2 * present, absent


def test_a_derived_loss_has_a_slope_of_its_own() -> None:
    x = torch.linspace(-3, 3, 7).reshape(1, 7)
    targets = Targets(torch.tensor([[1.0, 0, 1, 0, 1, 0, 0]]), torch.tensor([[0.0, 1, 0, 1, 0, 1, 0]]))
    plain, doubled = (loss.slope(x, targets) for loss in (BCE(), Doubled()))
    torch.testing.assert_close(doubled, plain * (1 + targets.pos))


def test_the_slope_of_smoothed_cross_entropy_is_its_derivative() -> None:
    x, loss = torch.randn(4, 3, dtype=torch.float64), BCE(smoothing=0.2)
    targets = Targets(torch.rand(4, 3, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64))
    torch.testing.assert_close(loss.slope(x, targets), Loss.slope(loss, x, targets))


def test_a_derived_term_must_define_its_slope() -> None:
    with pytest.raises(TypeError, match="define slope"):

        class Other(Entropy):
            def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
                return output.logits.sum()
