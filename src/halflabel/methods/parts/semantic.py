"""Heads guided by label vectors and a label graph, and their method class (ssgrl, gcn-ml, sst, hst, sarb)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from halflabel.errors import UserError, WrongHead
from halflabel.features.heads import Head, Model, find_head, pool
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.label_graph import Edges, read_edges
from halflabel.methods.parts.label_vectors import label_vectors
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.system.gpu_memory import in_chunks
from halflabel.types import Output, at_least_float32

MOST_CLASSES = 10_000  # with more, the graph alone would take more than 400 MB of the model file
_CHUNK_NUMBERS = 1 << 24  # numbers above which a batch is processed in chunks

Matrix = NDArray[np.float64]


class LabelAwareHead(Head):
    """A head that receives label vectors (C, d) and a label graph (C, C) when training starts.

    Both are buffers of known size, so a saved head can be loaded without the training labels.
    """

    vectors: Tensor  # (C, d)
    graph: Tensor  # (C, C), row j: the labels that label j is inferred from

    def __init__(self, classes: int, vector_size: int) -> None:
        super().__init__()
        if classes > MOST_CLASSES:
            raise UserError(
                f"a label graph of {classes} classes has {classes}² weights; {MOST_CLASSES} classes are the most",
                "use a method without a label graph, or train on fewer classes",
            )
        self.register_buffer("vectors", torch.zeros(classes, vector_size))
        self.register_buffer("graph", torch.eye(classes))

    @torch.no_grad()
    def set_labels(self, vectors: Matrix, graph: Matrix) -> None:
        """Set label vectors and graph; a head that already has vectors keeps them, because it was trained with them."""
        if not bool(self.vectors.any()):
            self.vectors.copy_(torch.from_numpy(vectors))
        self.graph.copy_(torch.from_numpy(graph))


class SemanticAttention(nn.Module):
    """Attention of each label to places: (B, P, W) features of P places, (C, d) label vectors -> (B, C, P) weights.

        a_cp = w · tanh((U x_p) ⊙ (V v_c)),   α_c = softmax over places of a_c        (Chen 2019, SSGRL, eq. 1 to 3)

    The paper's two linear layers after tanh are one vector w here: the same functions, as biases cancel in the softmax.
    Above 2^24 numbers (B·P·C·rank) the classes are processed in chunks that the backward pass recomputes.
    """

    def __init__(self, width: int, vector_size: int, rank: int) -> None:
        super().__init__()
        self.place_projection = nn.Linear(width, rank, bias=False)
        self.label_projection = nn.Linear(vector_size, rank, bias=False)
        self.weight = nn.Linear(rank, 1, bias=False)
        nn.init.normal_(self.label_projection.weight)  # vectors have length 1, not a variance of 1 in each component
        nn.init.zeros_(self.weight.weight)  # at the start every label attends equally to all places

    def forward(self, places: Tensor, vectors: Tensor) -> Tensor:
        place, label = self.place_projection(places), self.label_projection(vectors.to(places.dtype))
        size = max(_CHUNK_NUMBERS // max(place.numel(), 1), 1)
        scores = in_chunks(self._score, size, label, whole=[place], dim=1)
        return scores.softmax(2)

    def _score(self, place: Tensor, label: Tensor) -> Tensor:
        """(B, P, k), (C, k) -> (B, C, P)."""
        scores: Tensor = self.weight(torch.tanh(place[:, None] * label[:, None])).squeeze(3)
        return scores


class GatedGraph(nn.Module):
    """Gated message passing between labels over the graph, T steps: features of each label (B, C, W) -> (B, C, W).

        a_c = [Σ_c' A_cc' h_c', Σ_c' A_c'c h_c']                                      (Chen 2019, SSGRL, eq. 5 and 6)
        z = σ(W_z a + U_z h),   r = σ(W_r a + U_r h),   h̃ = tanh(W a + U (r ⊙ h)),   h ← (1 − z) ⊙ h + z ⊙ h̃

    The weights are shared by all labels and steps. Memory in training: about 36·T·B·C·W bytes.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.message_gates = nn.Linear(2 * width, 3 * width)  # W_z, W_r and W, applied to the messages a
        self.state_gates = nn.Linear(width, 2 * width, bias=False)  # U_z and U_r, applied to the state h
        self.reset_state = nn.Linear(width, width, bias=False)  # U, applied to the reset state r ⊙ h

    def forward(self, states: Tensor, graph: Tensor) -> Tensor:
        graph, width = graph.to(states.dtype), states.shape[2]
        for _ in range(self.steps):
            messages = self.message_gates(torch.cat([graph @ states, graph.T @ states], 2))
            for_gates, for_candidate = torch.split(messages, [2 * width, width], 2)
            update, reset = torch.sigmoid(for_gates + self.state_gates(states)).chunk(2, 2)
            candidate = torch.tanh(for_candidate + self.reset_state(reset * states))
            states = torch.lerp(states, candidate.to(states.dtype), update.to(states.dtype))
        return states


class SemanticHead(LabelAwareHead):
    """Attends to each label separately, passes the label features over the label graph, and scores each label.

        x_p = projected features of place p,   f_c = Σ_p α_cp x_p   (`SemanticAttention`)
        h = GatedGraph(f),   o_c = tanh(F [h_c, f_c]),   x_c = w_c · o_c + b_c      (Chen 2019, SSGRL, eq. 7 and 8)

    (B, D, h, w) -> logits (B, C), maps (B, C, h, w) = α, and per_class (B, C, W) = f. Pooled features (B, D) are maps
    of one cell, where every f_c is the same. `width` W = 0 means W = D without a projection. Dropout drops channels.
    Above 2^24 numbers of f the images are processed in chunks that the backward pass recomputes.
    """

    needs_maps = True

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        vector_size: int = 300,
        width: int = 256,
        rank: int = 256,
        steps: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(classes, vector_size)
        wide = width or channels
        self.dropout = nn.Dropout1d(dropout)  # the same channels at all places: dropout per place would average out
        self.project = nn.Linear(channels, wide, bias=False) if width else None
        if self.project is not None:
            nn.init.orthogonal_(self.project.weight)  # preserves distances
        self.attention = SemanticAttention(wide, vector_size, rank)
        self.gated = GatedGraph(wide, steps)
        self.join = nn.Linear(2 * wide, wide)
        self.weight = nn.Parameter(torch.empty(classes, wide).uniform_(-(wide**-0.5), wide**-0.5))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, features: Tensor) -> Output:
        places = self._places(features)
        attention = self.attention(places, self.vectors)
        per_class = attention.to(places.dtype) @ places
        shape = features.shape[2:] if features.ndim == 4 else (1, 1)
        maps = attention.view(*attention.shape[:2], *shape)
        return Output(self.classify(per_class), pool(features), maps, per_class=per_class)

    def classify(self, per_class: Tensor) -> Tensor:
        """Features of each label (B, C, W) -> (B, C) logits."""
        return in_chunks(self._classify, max(_CHUNK_NUMBERS // max(per_class.shape[1:].numel(), 1), 1), per_class)

    def class_maps(self, maps: Tensor) -> Tensor:
        """Return the attention α of each label."""
        attention: Tensor = self.attention(self._places(maps), self.vectors)
        return attention.view(*attention.shape[:2], *maps.shape[2:])

    def _places(self, features: Tensor) -> Tensor:
        """(B, D, h, w) or (B, D) -> (B, P, W)."""
        places = self.dropout(features.flatten(2) if features.ndim == 4 else features[:, :, None]).transpose(1, 2)
        return places if self.project is None else cast(Tensor, self.project(places))

    def _classify(self, per_class: Tensor) -> Tensor:
        joined = self.join(torch.cat([self.gated(per_class, self.graph), per_class], 2))
        return (torch.tanh(joined) * self.weight).sum(2) + self.bias


class SemanticMethod(Method):
    """A method that gives its head the label vectors and the label graph of the training table.

    The loss is BCE on known labels, divided by their number in the batch, unless a subclass changes it. `make` makes
    the head, `edges` the graph (row c: the labels that label c is inferred from).
    """

    def __init__(
        self,
        make: Callable[[int, int], LabelAwareHead],
        edges: Callable[[Table], Edges],
        *,
        vectors: str = "graph",
        vector_size: int = 300,
        **parts: Any,
    ) -> None:
        super().__init__(BCE(), head=make, reduce=parts.pop("reduce", over_known), **parts)
        self._edges = edges
        self.vectors, self.vector_size = vectors, vector_size
        self.table: Table | None = None

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        if self.table != table:
            self.begin(table)
            self.table = table
        vectors, edges = label_vectors(self.vectors, table, self.vector_size), self._edges(table)
        if model is not None:
            find_head(model, LabelAwareHead).set_labels(vectors, edges.dense(len(table.classes)))

    def begin(self, table: Table) -> None:
        """Prepare for a new training table; not called again for the same one."""


def label_edges(source: str, table: Table) -> Edges:
    """Return the label graph of a `--graph` option; for co-occurrence row c holds P(c' | c)."""
    edges = read_edges(source, table)
    return edges.transposed() if source == "cooccurrence" else edges


def semantic_parts(
    *, steps: int, dropout: float, width: int, rank: int, graph: str, vectors: str, vector_size: int
) -> dict[str, Any]:
    """Return the arguments of `SemanticMethod` for the options of the head of ssgrl."""
    return {
        "make": partial(SemanticHead, vector_size=vector_size, width=width, rank=rank, steps=steps, dropout=dropout),
        "edges": partial(label_edges, graph),
        "vectors": vectors,
        "vector_size": vector_size,
    }


def label_features(output: Output) -> Tensor:
    """Return the features of each label of an output, (B, C, W), at least float32."""
    if output.per_class is None:
        raise WrongHead("the step needs features of each label", "use the head that the method makes")
    return at_least_float32(output.per_class)
