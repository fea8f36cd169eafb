"""What flows through a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

__all__ = ["Batch", "DropoutPasses", "Output", "Sweep", "Targets", "at_least_float32"]


@dataclass(frozen=True, slots=True)
class Batch:
    """B training images: what is known of them, never what is guessed."""

    index: Tensor  # (B,) int64, image numbers in the training table
    # Each (B, 3, H, W) uint8 images, or cached (B, D) features or (B, D, h, w) maps; of several processes each has some
    # of the B, and the model, given them, says what all have.
    views: tuple[Tensor, ...]
    labels: Tensor  # (B, C) int8 in {−1, 0, +1}


class Output(NamedTuple):
    """What a model says of B images."""

    logits: Tensor  # (B, C)
    features: Tensor  # (B, D)
    maps: Tensor | None = None  # (B, C, h, w) class maps, from heads that score places
    members: Tensor | None = None  # (K, B, C) logits of each member, from heads that are ensembles
    per_class: Tensor | None = None  # (B, C, D') features of each class, from heads that look for each by itself


class Targets(NamedTuple):
    """How much to charge for "present" and for "absent", per entry: loss = pos · ℓ⁺(x) + neg · ℓ⁻(x)."""

    pos: Tensor  # (B, C) ≥ 0
    neg: Tensor  # (B, C) ≥ 0


@dataclass(frozen=True, slots=True)
class DropoutPasses:
    """DropoutPasses of the head with its dropout on, which a sweep adds for those who ask how sure the model is."""

    count: int
    of: Literal["logit", "score"] = "logit"  # what mean and spread are taken of


class Sweep(NamedTuple):
    """One pass over the training set in evaluation mode, in the order of the training table.

    Memory: 4·(C + D) bytes per image, and 8·C more with passes; each table of 256 MB or more in a scratch file.
    """

    logits: Tensor  # (N, C) float32; NaN for images that could not be read
    features: Tensor  # (N, D) float32; (N, 0) where a relabeler wants none
    mean: Tensor | None = None  # (N, C) over the passes, where a relabeler asked for them
    spread: Tensor | None = None  # (N, C) their standard deviation (divisor: their count)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32, so that sums over many entries and large logits stay exact and finite."""
    return values.float() if values.element_size() < 4 else values
