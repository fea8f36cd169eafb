"""A transformer decoder as classification head (Ridnik 2021, ML-Decoder; Liu 2021, Query2Label)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.heads import Head, pool
from halflabel.methods.base import REGIMES, BelowOne, Method, Size, SizeOrZero, method
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.types import Output


class QueryHead(Head):
    """K learned queries attend to P places by several attention heads. Ridnik 2021 (ML-Decoder), Liu 2021 (Q2L).

        z_p = ReLU(E f_p),   a_kp = softmax over places of (Q q_k) · (K z_p) / √d,   per attention head
        o_k = LN(q_k + O [Σ_p a_kp V z_p of all attention heads]),   o_k ← LN(o_k + F₂ ReLU(F₁ o_k))
        x_c = w_c · o_k + b_c,   k = ⌊c / g⌋,   g = ⌈C / K⌉ classes share a query

    `queries` K = 0 means one per class. (B, D, h, w) -> logits (B, C); pooled features (B, D) are maps of one cell.
    `class_maps` are the attention of each class's query, averaged over attention heads.
    """

    needs_maps = True

    def __init__(
        self, channels: int, classes: int, *, queries: int = 0, width: int = 256, heads: int = 4, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if width % heads:
            raise UserError(f"width {width} cannot be divided by {heads} attention heads", "use a multiple of it")
        self.classes, self.heads = classes, heads
        shared = -(-classes // min(queries or classes, classes))  # g
        count = -(-classes // shared)
        self.embed = nn.Linear(channels, width)
        self.queries = nn.Parameter(torch.randn(count, width))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Parameter(torch.empty(count, shared, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(count, shared))

    def forward(self, features: Tensor) -> Output:
        places = self._places(features)
        mixed = self._attention(places) @ self._split(self.value(places))  # (B, heads, K, d)
        attended = self.out(mixed.transpose(1, 2).flatten(2))
        states = self.norms[0](self.queries + self.dropout(attended))
        added = self.contract(self.dropout(torch.relu(self.expand(states))))
        states = self.norms[1](states + self.dropout(added))
        logits = (states[:, :, None] @ self.weight.transpose(1, 2)).squeeze(2) + self.bias  # (B, K, g)
        return Output(logits.flatten(1)[:, : self.classes], pool(features))

    def class_maps(self, maps: Tensor) -> Tensor:
        """Return the attention of each class's query."""
        attention = self._attention(self._places(maps)).mean(1)
        of_class = attention.repeat_interleave(self.bias.shape[1], 1)[:, : self.classes]
        return of_class.reshape(len(maps), self.classes, *maps.shape[2:])

    def _places(self, features: Tensor) -> Tensor:
        """(B, D, h, w) or (B, D) -> (B, P, W)."""
        places = features.flatten(2).transpose(1, 2) if features.ndim == 4 else features[:, None]
        return torch.relu(self.embed(places))

    def _attention(self, places: Tensor) -> Tensor:
        """(B, P, W) -> (B, heads, K, P)."""
        query, key = self._split(self.query(self.queries)[None]), self._split(self.key(places))
        attention: Tensor = (query @ key.transpose(2, 3) / query.shape[3] ** 0.5).softmax(3)
        return attention

    def _split(self, values: Tensor) -> Tensor:
        """(B, n, W) -> (B, heads, n, d)."""
        return values.view(*values.shape[:2], self.heads, -1).transpose(1, 2)


@method(
    serves=REGIMES,
    paper="Ridnik, Sharir, Ben-Cohen, Ben-Baruch, Noy 2021: ML-Decoder; Liu, Zhang, Yang, Su, Zhu 2021: Query2Label",
    lr=3e-4,
    tune={"width": (128, 256)},
)
def ml_decoder(
    queries: SizeOrZero = 0, width: Size = 256, heads: Size = 4, dropout: BelowOne = 0.1, unknown: Unknown = "auto"
) -> Method:
    """Each class, or group of classes, has a query that attends to the places of the image where it may be.

    Use it if objects are small or many in a picture, with many labelled images or --tune all. It needs features with
    places (maps). Its class maps show the attention of each class.

        o_k = decoder layer of query k over the places,   x_c = w_c · o_k + b_c
        L = BCE on known labels, divided by their number in the batch

    queries: 0 = one per class (Query2Label); otherwise classes share so many (ML-Decoder uses 100 from 100 classes on).
    width: of queries and places, 768 in ML-Decoder; heads: attention heads, 8 in both papers; dropout: of attended and
    hidden values; unknown: as in `warp`.

    With few labels it is below `bce`.

    Differs from the papers: one decoder layer without attention between queries, and learned queries, where Query2Label
    has two layers with it and ML-Decoder fixed random queries; both train with `asl`.
    """
    head = partial(QueryHead, queries=queries, width=width, heads=heads, dropout=dropout)
    return Method(BCE(), UnknownAs(unknown), head=head, reduce=over_known)
