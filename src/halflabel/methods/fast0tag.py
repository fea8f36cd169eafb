"""Ranks labels along a direction in the space of label vectors (Zhang 2016, Fast0Tag)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from halflabel.errors import UserError
from halflabel.features.heads import Head, Model, find_head, pool
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, BelowOne, Method, Not, Size, method
from halflabel.methods.parts.label_vectors import label_vectors
from halflabel.methods.parts.losses import Loss, over_images
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.system.gpu_memory import in_chunks
from halflabel.types import Output, Targets, at_least_float32

_CHUNK_PAIRS = 1 << 22  # pairs computed at a time


@method(
    serves=REGIMES,
    paper="Zhang, Gong, Shah 2016: Fast zero-shot image tagging",
    lr=1e-3,
    tune={"hidden": ("", "1024")},
    needs={"dropout": {"hidden": Not("")}},
)
def fast0tag(
    vectors: str = "graph",
    vector_size: Size = 300,
    hidden: str = "",
    dropout: BelowOne = 0.3,
    unknown: Unknown = "auto",
) -> Method:
    """Maps an image to a direction in the space of label vectors along which its labels rank before all others.

    Use it if there are meaningful label vectors, such as word vectors, and many labels have few examples: they learn
    from similar labels. It ranks the labels of one image; scores of different images are not comparable.

        x_c = t_c · φ(f),   φ a linear map or a network, t_c the given vector of label c
        L = 1/B Σ_i 1/(|P|·|N|) Σ_{p ∈ P} Σ_{n ∈ N} log(1 + exp(x_n − x_p)),   P known present, N known absent

    vectors: graph (computed from co-occurrence), a text file of word vectors (GloVe, word2vec), or text:MODEL, a
    sentence encoder; vector_size: their length. The vectors are saved with the model. hidden: sizes of the layers of φ,
    such as 1024 or 8192,2048; empty = a linear map (Huynh 2020 has a nonlinear one). dropout: after each layer.
    unknown: as in `warp`.

    An image is used only if a present and an absent label are known, and vectors of few classes from few labels may
    mean little.
    """
    return Fast0Tag(vectors, vector_size, _read_sizes(hidden), dropout, unknown)


class Fast0Tag(Method):
    """Ranking of positives before negatives, with a head that uses the label vectors of the training table."""

    def __init__(self, vectors: str, vector_size: int, hidden: tuple[int, ...], dropout: float, unknown: str) -> None:
        head = partial(LabelVectorHead, size=vector_size, hidden=hidden, dropout=dropout)
        super().__init__(RankNet(), UnknownAs(unknown), head=head, reduce=over_images)
        self.source, self.vector_size = vectors, vector_size

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        vectors = torch.from_numpy(label_vectors(self.source, table, self.vector_size)).float()
        if model is not None:
            head = find_head(model, LabelVectorHead)
            if not head.vectors.any():  # a model that continues another run keeps the vectors it was trained with
                head.vectors.copy_(vectors)


class LabelVectorHead(Head):
    """x_c = t_c · φ(f), t_c fixed: (B, D) or (B, D, h, w) -> logits (B, C).

    φ has ReLU layers of the sizes `hidden`, each with dropout, then a linear layer. The method sets the vectors.
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


class RankNet(Loss):
    """1/(|P|·|N|) Σ_{p present} Σ_{n absent} log(1 + exp(x_n − x_p)) of each image, in the columns of the positives.

    With weights: pos_p · neg_n for a pair, and their sums for |P| and |N|. Above 2²² pairs they are computed in chunks.
    """

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        x = at_least_float32(logits)
        pos, neg = targets.pos.to(x.dtype), targets.neg.to(x.dtype)
        image, positive = (pos > 0).nonzero(as_tuple=True)
        size = max(_CHUNK_PAIRS // x.shape[1], 1)
        sums = in_chunks(_pair_sums, size, image, positive, whole=[x, neg])
        pairs = (pos.sum(1) * neg.sum(1)).clamp(min=torch.finfo(x.dtype).tiny)
        weighted = sums * (pos[image, positive] / pairs[image])
        return torch.zeros_like(x).index_put((image, positive), weighted)


def _pair_sums(x: Tensor, neg: Tensor, image: Tensor, positive: Tensor) -> Tensor:
    """Σ_n neg_n log(1 + exp(x_n − x_p)) for each of P positives, by image and class: (P,), (P,) -> (P,)."""
    return (neg[image] * softplus(x[image] - x[image, positive][:, None])).sum(1)


def _read_sizes(text: str) -> tuple[int, ...]:
    """Layer sizes from text such as "8192,2048"; none from ""."""
    try:
        sizes = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise UserError(f"{text!r} is not a list of layer sizes", "write them as in 8192,2048; empty for a linear map")
    return sizes
