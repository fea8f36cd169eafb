"""The data of a training step: batches, model outputs, targets, and the scores that methods relabel by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

__all__ = ["Batch", "Output", "Sweep", "Targets", "at_least_float32"]


@dataclass(frozen=True, slots=True)
class Batch:
    """B training images with their known labels; labels that a method fills in are never part of it."""

    index: Tensor  # (B,) int64, image numbers in the training table
    # Each (B, 3, H, W) uint8 images, or cached (B, D) features or (B, D, h, w) maps. With several processes each
    # holds a part of the B images, and the model returns the outputs of all B.
    views: tuple[Tensor, ...]
    labels: Tensor  # (B, C) int8 in {−1, 0, +1}
    soft: Tensor | None = None  # (B, C) targets of uncertain labels, which are 0 in `labels`; NaN elsewhere


class Output(NamedTuple):
    """The output of a model for B images."""

    logits: Tensor  # (B, C)
    features: Tensor  # (B, D)
    maps: Tensor | None = None  # (B, C, h, w) class maps, from heads that score positions
    members: Tensor | None = None  # (K, B, C) logits of each member, from ensemble heads
    per_class: Tensor | None = None  # (B, C, D') features of each class, from heads that attend to each class


class Targets(NamedTuple):
    """Weights of the positive and the negative loss per entry: loss = pos · ℓ⁺(x) + neg · ℓ⁻(x)."""

    pos: Tensor  # (B, C) ≥ 0
    neg: Tensor  # (B, C) ≥ 0


class Sweep(NamedTuple):
    """One pass over the training set in evaluation mode, in the order of the training table.

    Memory: 4·(C + D) bytes per image, and 8·C more with passes; tables of 256 MB or more are in scratch files.
    """

    logits: Tensor  # (N, C) float32; NaN for images that could not be read
    features: Tensor  # (N, D) float32; (N, 0) if the relabeler needs none
    mean: Tensor | None = None  # (N, C) over the dropout passes, if the relabeler asked for them
    spread: Tensor | None = None  # (N, C) standard deviation over the passes (divisor: their number)


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32, so that sums over many entries and large logits stay exact and finite."""
    return values.float() if values.element_size() < 4 else values
