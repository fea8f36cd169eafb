"""Heads that map images and labels into one vector space; the logit is the inner product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halflabel.features.heads import Head, pool
from halflabel.types import Output


def clip_norm(vectors: Tensor, max_norm: float, dim: int) -> Tensor:
    """Scale vectors along `dim` that are longer than `max_norm` to that length; 0 = no bound."""
    if not max_norm:
        return vectors
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
    return vectors * (max_norm / norm.clamp(min=max_norm))


class Bilinear(Head):
    """x_c = w_c · V f in a space of `dimensions` dimensions; w and V are learned. Weston 2011 (WSABIE).

    Label vectors w_c and the columns of V have ‖·‖ ≤ `norm` (0 = no bound): longer ones are scaled to that length in
    the forward pass, and the gradient passes through the scaling.

    (B, D) or (B, D, h, w) -> logits (B, C). Memory: 4·dimensions bytes per class and per feature, against 4·D per class
    of a linear head: with D = 2,048, C = 5,000 and 100 dimensions 2.8 MB instead of 41.
    """

    def __init__(self, channels: int, classes: int, dimensions: int = 100, norm: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.images = nn.Parameter(torch.randn(dimensions, channels) / channels**0.5)
        self.labels = nn.Parameter(torch.randn(classes, dimensions) / dimensions**0.5)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        return Output(pooled @ clip_norm(self.images, self.norm, 0).T @ clip_norm(self.labels, self.norm, 1).T, pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        weight = clip_norm(self.labels, self.norm, 1) @ clip_norm(self.images, self.norm, 0)
        return torch.einsum("cd,bdhw->bchw", weight, maps)

    @torch.no_grad()
    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        """Start from the matrix of this head's rank that is nearest to W, by its singular values; b has no place."""
        left, singular, right = torch.linalg.svd(weight.double(), full_matrices=False)
        rank = min(len(self.images), len(singular))
        root = singular[:rank].sqrt()
        # Dimensions beyond the rank keep their image side: with both sides 0, neither would learn.
        self.labels.zero_()
        self.labels[:, :rank] = (left[:, :rank] * root).to(self.labels)
        self.images[:rank] = (root[:, None] * right[:rank]).to(self.images)


class LabelVectorHead(Head):
    """x_c = t_c · φ(f): images are mapped into the space of fixed label vectors t_c. Zhang 2016 (Fast0Tag).

    φ has ReLU layers of the sizes `hidden`, each with dropout, then a linear layer; without hidden layers it is linear.
    The method sets the vectors by `set_vectors`; until then all logits are 0.

    (B, D) or (B, D, h, w) -> logits (B, C). Memory: 4·size bytes per class (not learned), 4 per weight of φ.
    """

    vectors: Tensor  # (C, size)

    def __init__(
        self, channels: int, classes: int, size: int, hidden: tuple[int, ...] = (), dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(channels, width), nn.ReLU(), nn.Dropout(dropout)]
            channels = width
        self.projection = nn.Sequential(*layers, nn.Linear(channels, size))
        self.register_buffer("vectors", torch.zeros(classes, size))

    def set_vectors(self, vectors: Tensor) -> None:
        """Set the label vectors: (C, size)."""
        self.vectors.copy_(vectors)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        return Output(self.projection(pooled) @ self.vectors.T, pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        logits: Tensor = self.projection(maps.permute(0, 2, 3, 1)) @ self.vectors.T
        return logits.permute(0, 3, 1, 2)

    @torch.no_grad()
    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        """With a linear φ = M f + m: M = T⁺ W, m = T⁺ b, least squares. The vectors T must be set."""
        if len(self.projection) > 1:
            return
        inverse = torch.linalg.pinv(self.vectors.cpu().double())
        layer = self.projection[0]
        assert isinstance(layer, nn.Linear)
        layer.weight.copy_(inverse @ weight.double())
        layer.bias.copy_(inverse @ bias.double())
