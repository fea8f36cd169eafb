"""Losses per entry, never reduced, and the ways to reduce them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import softplus

from halflabel.types import Targets

__all__ = ["BCE", "Loss", "Reduce", "over_entries", "over_images", "over_known"]

Reduce = Callable[[Tensor, Targets], Tensor]


class Loss(nn.Module):
    """A pair loss: loss = pos · ℓ⁺(x) + neg · ℓ⁻(x), from logits, in float32 or wider.

    A subclass gives `pair`. Memory: a few (B, C) tensors.
    """

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(ℓ⁺, ℓ⁻) of each logit: (B, C) -> two (B, C)."""
        raise TypeError(f"{type(self).__name__} has no pair form")

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        """The loss of each entry: (B, C) -> (B, C)."""
        present, absent = self.pair(widen(logits))
        return targets.pos * present + targets.neg * absent


class BCE(Loss):
    """Binary cross-entropy: ℓ⁺ = softplus(−x) = −log p, ℓ⁻ = softplus(x) = −log(1 − p)."""

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(-logits), softplus(logits)


def widen(logits: Tensor) -> Tensor:
    """Half precision to float32: sums over many entries and large logits then stay exact and finite."""
    return logits.float() if logits.element_size() < 4 else logits


def over_entries(loss: Tensor, targets: Targets) -> Tensor:
    """Mean over all B·C entries, the unknown ones counted in the divisor."""
    return loss.mean()


def over_images(loss: Tensor, targets: Targets) -> Tensor:
    """Sum over classes, mean over the B images."""
    return loss.sum() / max(len(loss), 1)


def over_known(loss: Tensor, targets: Targets) -> Tensor:
    """Sum divided by the number of entries of the batch that are charged at all (at least 1)."""
    charged = ((targets.pos > 0) | (targets.neg > 0)).sum().clamp(min=1)
    return loss.sum() / charged
