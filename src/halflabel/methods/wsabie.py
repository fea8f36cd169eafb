"""Image and label embedding by approximate ranking (Weston 2011)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from halflabel.features.heads import Head, pool
from halflabel.methods.base import REGIMES, Method, NonNegative, Size, method
from halflabel.methods.parts.ranking import Rank, Ranking, Unknown, UnknownAs, ranking_method
from halflabel.types import Output


def clip_norm(vectors: Tensor, max_norm: float, dim: int) -> Tensor:
    """Scale vectors along `dim` that are longer than `max_norm` to that length; 0 = no bound."""
    if not max_norm:
        return vectors
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
    return vectors * (max_norm / norm.clamp(min=max_norm))


class Bilinear(Head):
    """x_c = w_c · V f: (B, D) or (B, D, h, w) -> logits (B, C).

    Vectors longer than `norm` (0 = no bound) are scaled to it in the forward pass, with gradient.
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


@method(
    serves=REGIMES,
    paper="Weston, Bengio, Usunier 2011: WSABIE, scaling up to large vocabulary image annotation",
    lr=1e-3,
    tune={"dimensions": (50, 100, 200)},
)
def wsabie(
    dimensions: Size = 100, norm: NonNegative = 0.0, rank: Rank = "sampled", unknown: Unknown = "auto"
) -> Method:
    """Images and labels share a small space, in which known positives rank before known negatives.

    Use it for very many classes, if a full classifier per class is too large, or to look up labels by inner products.
    It ranks the labels of one image; scores of different images are not comparable.

        x_c = w_c · V f,   ‖w_c‖ ≤ norm, ‖V_i‖ ≤ norm
        L = 1/B Σ_i Σ_{j present} Σ_{k absent} L(r_j) max(0, 1 − x_j + x_k),   L(r) = 1 + 1/2 + … + 1/r

    r_j = ⌊(m − 1)/q⌋ as in `warp`: m classes, q negatives drawn in random order until one violates 1 − x_j + x_k ≥ 0.

    dimensions: of the space. norm: the largest norm of the vector of a label or a feature; 0 = no limit. rank:
    "sampled" or "exact"; unknown: both as in `warp`.

    An image is used only if a present and an absent label are known; the known labels of the others are lost: prefer
    `bce` there.

    Differs from the paper: a batch at a time, and all violating pairs of a positive are charged, not the one that was
    drawn.
    """
    # A ramp with leak 1 is the hinge.
    loss = Ranking(leak=1.0, kappa=0.0, rank=rank)
    return ranking_method(loss, UnknownAs(unknown), head=partial(Bilinear, dimensions=dimensions, norm=norm))
