"""Heads that put images and labels into one space, where the inner product is the score."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.models.heads import Head, pool
from halflabel.types import Output

__all__ = ["Bilinear", "LabelVectorHead", "clip_norm"]


def clip_norm(vectors: Tensor, most: float, dim: int) -> Tensor:
    """Vectors along `dim` longer than `most` are cut to that length; 0 = no bound."""
    if not most:
        return vectors
    length: Tensor = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
    return vectors * (most / length.clamp(min=most))


class Bilinear(Head):
    """x_c = w_c · V f: image and labels meet in `dimensions` dimensions, both sides learned. Weston 2011 (WSABIE).

    Label vectors w_c and the vectors V_i of single features are held to ‖·‖ ≤ `norm` (0 = no bound): longer ones count
    as cut to that length, and so does their gradient.

    (B, D) or (B, D, h, w) -> logits (B, C). Memory: 4·dimensions bytes per class and per feature, against 4·D per class
    of a linear head: with D = 2,048, C = 5,000 and 100 dimensions 2.8 MB instead of 41.
    """

    def __init__(self, channels: int, classes: int, dimensions: int = 100, norm: float = 0.0) -> None:
        super().__init__()
        if dimensions < 1 or norm < 0:
            raise UserError(
                f"no image fits into {dimensions} dimensions and the norm {norm:g}", "use dimensions ≥ 1, norm ≥ 0"
            )
        self.norm = norm
        self.images = nn.Parameter(torch.randn(dimensions, channels) / channels**0.5)
        self.labels = nn.Parameter(torch.randn(classes, dimensions) / dimensions**0.5)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        return Output(pooled @ clip_norm(self.images, self.norm, 0).T @ clip_norm(self.labels, self.norm, 1).T, pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        weight = clip_norm(self.labels, self.norm, 1) @ clip_norm(self.images, self.norm, 0)
        return torch.einsum("cd,bdhw->bchw", weight, maps)


class LabelVectorHead(Head):
    """x_c = t_c · φ(f): images are mapped among given label vectors t_c, which stay as they are. Zhang 2016 (Fast0Tag).

    φ is a network of ReLU layers of the sizes `hidden`, each with dropout, and a linear one; of no sizes, a linear map.
    The vectors are set by `set_vectors`, once they are known; until then all scores are 0.

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
        self.to_space = nn.Sequential(*layers, nn.Linear(channels, size))
        self.register_buffer("vectors", torch.zeros(classes, size))

    def set_vectors(self, vectors: Tensor) -> None:
        """Set the label vectors: (C, size)."""
        self.vectors.copy_(vectors)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        return Output(self.to_space(pooled) @ self.vectors.T, pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        scored: Tensor = self.to_space(maps.permute(0, 2, 3, 1)) @ self.vectors.T
        return scored.permute(0, 3, 1, 2)
