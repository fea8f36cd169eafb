"""Heads: from a backbone's features or maps to scores per class; and the model that joins the two."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from halflabel.types import Output

__all__ = ["Head", "HeadMaker", "Linear", "Model", "pool"]


def pool(features: Tensor) -> Tensor:
    """Mean over places: (B, D, h, w) -> (B, D); pooled features stay as they are."""
    return features.mean(dim=(2, 3)) if features.ndim == 4 else features


class Head(nn.Module):
    """(B, D) pooled features or (B, D, h, w) maps -> Output."""

    needs_maps = False  # whether pooled features are not enough

    def forward(self, features: Tensor) -> Output:
        raise TypeError(f"{type(self).__name__} does not say how to score")

    def class_maps(self, maps: Tensor) -> Tensor:
        """Evidence per place and class, for pictures: (B, D, h, w) -> (B, C, h, w)."""
        raise TypeError(f"{type(self).__name__} has no class maps")


HeadMaker = Callable[[int, int], Head]  # (D, C) -> head


class Linear(Head):
    """x = W · mean over places of the features + b. Memory: 4·D bytes per class."""

    def __init__(self, channels: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        return Output(self.linear(self.dropout(pooled)), pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        return torch.einsum("cd,bdhw->bchw", self.linear.weight, maps) + self.linear.bias.view(1, -1, 1, 1)


class Model(nn.Module):
    """Backbone and head. Without a backbone it takes what a cache holds: features or maps."""

    def __init__(self, backbone: nn.Module | None, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, view: Tensor) -> Output:
        features = view if self.backbone is None else self.backbone(view)
        output: Output = self.head(features)
        return output
