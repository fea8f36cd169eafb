"""Heads that know what their labels are like: attention guided by label vectors, propagation over a label graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from halflabel.errors import UserError, WrongHead
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method
from halflabel.methods.parts.label_graph import Edges, read_edges
from halflabel.methods.parts.label_vectors import label_vectors
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.models.heads import Head, pool
from halflabel.system.validate import MAX_SIZE, below_one, between
from halflabel.types import Output, at_least_float32

__all__ = [
    "GatedGraph",
    "GraphClassifier",
    "SemanticAttention",
    "SemanticHead",
    "SemanticMethod",
    "TaughtHead",
    "check_head",
    "computed_again",
    "label_edges",
    "label_features",
]

MOST_CLASSES = 10_000  # beyond, the graph alone would be more than 400 MB of the model's file
_TOGETHER = 1 << 24  # numbers above which a batch goes through in parts

Matrix = NDArray[np.float64]


class TaughtHead(Head):
    """A head that is told, when training starts, the labels' vectors (C, d) and graph (C, C).

    Both are buffers of sizes known beforehand, so that the head is loaded without the labels it was told of. Memory:
    4·C·(d + C) bytes.
    """

    vectors: Tensor  # (C, d)
    graph: Tensor  # (C, C), row j: what label j is told by the others

    def __init__(self, classes: int, vector_size: int) -> None:
        super().__init__()
        if classes > MOST_CLASSES:
            raise UserError(
                f"a label graph of {classes} classes has {classes}² weights; {MOST_CLASSES} classes are the most",
                "use a method without a label graph, or train on fewer classes",
            )
        if vector_size < 1:
            raise UserError(f"label vectors cannot have {vector_size} numbers", "use vector_size ≥ 1")
        self.register_buffer("vectors", torch.zeros(classes, vector_size))
        self.register_buffer("graph", torch.eye(classes))

    @torch.no_grad()
    def tell(self, vectors: Matrix, graph: Matrix) -> None:
        """Take the labels' vectors and graph over; a head that has vectors already keeps them: it has learned them."""
        if not bool(self.vectors.any()):
            self.vectors.copy_(torch.from_numpy(vectors))
        self.graph.copy_(torch.from_numpy(graph))


class SemanticAttention(nn.Module):
    """Where each label is looked for: (B, P, W) features of P places and (C, d) label vectors -> (B, C, P) weights.

        a_cp = w · tanh((U x_p) ⊙ (V v_c)),   α_c = softmax over places of a_c        (Chen 2019, SSGRL, eq. 1 to 3)

    The paper's two linear layers after tanh, one upon the other, are one vector w here: the same functions with fewer
    weights; its biases fall out of the softmax. Memory in training: 8·B·P·C·k bytes, k the rank; beyond 2^24 numbers
    the classes go through in parts, which the backward pass computes again.
    """

    def __init__(self, width: int, vector_size: int, rank: int) -> None:
        super().__init__()
        self.of_place = nn.Linear(width, rank, bias=False)
        self.of_label = nn.Linear(vector_size, rank, bias=False)
        self.weight = nn.Linear(rank, 1, bias=False)
        nn.init.normal_(self.of_label.weight)  # vectors have length 1, not a variance of 1 in each component
        nn.init.zeros_(self.weight.weight)  # every label starts from the mean over places, and learns to look closer

    def forward(self, places: Tensor, vectors: Tensor) -> Tensor:
        seen, named = self.of_place(places), self.of_label(vectors.to(places.dtype))
        together = max(_TOGETHER // max(seen.numel(), 1), 1)
        if torch.compiler.is_exporting() or len(named) <= together:
            scores = self._score(seen, named)
        else:
            parts = (named[first : first + together] for first in range(0, len(named), together))
            scores = torch.cat([computed_again(self._score, seen, part) for part in parts], 1)
        return scores.softmax(2)

    def _score(self, seen: Tensor, named: Tensor) -> Tensor:
        """(B, P, k), (C, k) -> (B, C, P)."""
        scored: Tensor = self.weight(torch.tanh(seen[:, None] * named[:, None])).squeeze(3)
        return scored


class GatedGraph(nn.Module):
    """Labels tell each other what they have seen, T times, through gates: (B, C, W) states -> (B, C, W).

        a_c = [Σ_c' A_cc' h_c', Σ_c' A_c'c h_c']                                      (Chen 2019, SSGRL, eq. 5 and 6)
        z = σ(W_z a + U_z h),   r = σ(W_r a + U_r h),   h̃ = tanh(W a + U (r ⊙ h)),   h ← (1 − z) ⊙ h + z ⊙ h̃

    Weights are shared by labels and steps. Memory in training: about 36·T·B·C·W bytes. Time: 9·T·C·W² + 2·T·C²·W
    multiplications per image.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.told = nn.Linear(2 * width, 3 * width)
        self.own = nn.Linear(width, 2 * width, bias=False)
        self.kept = nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor, graph: Tensor) -> Tensor:
        graph = graph.to(states.dtype)
        for _ in range(self.steps):
            told = self.told(torch.cat([graph @ states, graph.T @ states], 2))
            gates = torch.sigmoid(told[..., : 2 * states.shape[2]] + self.own(states))
            renew, keep = gates.chunk(2, 2)
            fresh = torch.tanh(told[..., 2 * states.shape[2] :] + self.kept(keep * states))
            states = torch.lerp(states, fresh.to(states.dtype), renew.to(states.dtype))
        return states


def check_head(*, width: int, rank: int, steps: int, dropout: float, vector_size: int) -> None:
    """Refuse options of which no `SemanticHead` can be made."""
    between(0, MAX_SIZE, width=width, steps=steps)
    between(1, MAX_SIZE, rank=rank, vector_size=vector_size)
    below_one(dropout=dropout)


class SemanticHead(TaughtHead):
    """Looks for each label by itself, lets what was found travel over the label graph, and scores each label.

        x_p = projected features of place p,   f_c = Σ_p α_cp x_p   (`SemanticAttention`)
        h = GatedGraph(f),   o_c = tanh(F [h_c, f_c]),   x_c = w_c · o_c + b_c      (Chen 2019, SSGRL, eq. 7 and 8)

    (B, D, h, w) -> logits (B, C), maps (B, C, h, w): α, and per_class (B, C, W): f. Pooled features (B, D) are maps of
    one cell, where every f_c is the same. `width` W = 0 is D, without a projection. Dropout acts on whole channels.

    Memory: weights 4·(D·W + D·k + 11·W² + C·W) bytes; in training about 4·(9·T + 6)·C·W per image, with T = 3, W = 256
    and 80 classes 2.7 MB. Above 2^24 numbers of f (B·C·W) images go through graph and classifier in parts, which the
    backward pass computes again.
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
        if not 0 <= dropout < 1:
            raise UserError(f"dropout {dropout:g} is no share", "use 0 ≤ dropout < 1")
        if width < 0 or rank < 1 or steps < 0:
            raise UserError(
                f"width {width}, rank {rank} and steps {steps} make no head", "use width ≥ 0, rank ≥ 1, steps ≥ 0"
            )
        wide = width or channels
        self.dropout = nn.Dropout1d(dropout)  # the same channels at all places: what is drawn per place averages out
        self.project = nn.Linear(channels, wide, bias=False) if width else None
        if self.project is not None:
            nn.init.orthogonal_(self.project.weight)  # what is near stays near
        self.attention = SemanticAttention(wide, vector_size, rank)
        self.gated = GatedGraph(wide, steps)
        self.join = nn.Linear(2 * wide, wide)
        self.weight = nn.Parameter(torch.empty(classes, wide).uniform_(-(wide**-0.5), wide**-0.5))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, features: Tensor) -> Output:
        places = self._places(features)
        attention = self.attention(places, self.vectors)
        found = attention.to(places.dtype) @ places
        shape = features.shape[2:] if features.ndim == 4 else (1, 1)
        maps = attention.view(*attention.shape[:2], *shape)
        return Output(self.classify(found), pool(features), maps, per_class=found)

    def classify(self, found: Tensor) -> Tensor:
        """(B, C, W) features of each label -> (B, C) logits."""
        together = max(_TOGETHER // max(found.shape[1] * found.shape[2], 1), 1)
        if torch.compiler.is_exporting() or len(found) <= together:
            return self._classify(found)
        parts = (found[first : first + together] for first in range(0, len(found), together))
        return torch.cat([computed_again(self._classify, part) for part in parts])

    def class_maps(self, maps: Tensor) -> Tensor:
        """α: where each label was looked for."""
        attention: Tensor = self.attention(self._places(maps), self.vectors)
        return attention.view(*attention.shape[:2], *maps.shape[2:])

    def _places(self, features: Tensor) -> Tensor:
        """(B, D, h, w) or (B, D) -> (B, P, W)."""
        places = self.dropout(features.flatten(2) if features.ndim == 4 else features[:, :, None]).transpose(1, 2)
        return places if self.project is None else cast(Tensor, self.project(places))

    def _classify(self, found: Tensor) -> Tensor:
        told = self.gated(found, self.graph)
        joined = torch.tanh(self.join(torch.cat([told, found], 2)))
        return (joined * self.weight).sum(2) + self.bias


class GraphClassifier(TaughtHead):
    """Classifiers that come out of a graph: two graph convolutions over the label vectors. Chen 2019 (ML-GCN).

        H = LeakyReLU(Â Z W₀),   W = Â H W₁,   x = W · pooled features              (eq. 2 to 5)

    Z the label vectors (C, d), Â the graph, slope 0.2. Pooling is the maximum over places, as in the paper, or the
    mean. (B, D, h, w) -> logits (B, C). Memory: 4·(d·H + H·D) bytes of weights, H the hidden size.
    """

    def __init__(
        self, channels: int, classes: int, *, vector_size: int = 300, hidden: int = 1024, pooling: str = "max"
    ) -> None:
        super().__init__(classes, vector_size)
        if pooling not in ("max", "mean") or hidden < 1:
            raise UserError(f"pooling {pooling!r} and hidden {hidden} do not fit", "use max or mean, and hidden ≥ 1")
        self.pooling = pooling
        self.needs_maps = pooling == "max"
        self.first = nn.Linear(vector_size, hidden, bias=False)
        self.second = nn.Linear(hidden, channels, bias=False)

    def classifiers(self) -> Tensor:
        """(C, D)."""
        hidden = leaky_relu(self.graph @ self.first(self.vectors), 0.2)
        weights: Tensor = self.graph @ self.second(hidden)
        return weights

    def forward(self, features: Tensor) -> Output:
        highest = features.ndim == 4 and self.pooling == "max"
        pooled = features.amax(dim=(2, 3)) if highest else pool(features)
        return Output(pooled @ self.classifiers().to(pooled.dtype).T, pool(features))

    def class_maps(self, maps: Tensor) -> Tensor:
        return torch.einsum("cd,bdhw->bchw", self.classifiers().to(maps.dtype), maps)


class SemanticMethod(Method):
    """A method whose head is told the labels' vectors and graph by the table that training starts with.

    Charges known labels alone, divided by how many a batch has, unless a subclass says otherwise. `make` makes the
    head, `edges` the graph (row c: what label c is told by the others).
    """

    def __init__(
        self,
        make: Callable[[int, int], TaughtHead],
        edges: Callable[[LabelTable], Edges],
        *,
        vectors: str = "graph",
        vector_size: int = 300,
        missing: str = "error",
        **parts: Any,
    ) -> None:
        super().__init__(BCE(), head=self._make_head, reduce=parts.pop("reduce", over_known), **parts)
        self._make = make
        self._edges = edges
        self.vectors, self.vector_size, self.missing = vectors, vector_size, missing
        self.table: LabelTable | None = None
        self._told: tuple[Matrix, Matrix] | None = None
        # Not the head itself: that is the model's, and its weights must not be trained and saved twice.
        self._head: weakref.ref[TaughtHead] | None = None

    def start(self, table: LabelTable) -> None:
        super().start(table)
        if self.table != table:
            self.begin(table)
            self.table = table
        head = self._head() if self._head is not None else None
        if head is not None and self._told is not None:
            head.tell(*self._told)

    def begin(self, table: LabelTable) -> None:
        """Called when training starts on another table than before."""
        vectors = label_vectors(self.vectors, table, self.vector_size, missing=self.missing)
        self._told = vectors, self._edges(table).dense(len(table.classes))

    def _make_head(self, channels: int, classes: int) -> Head:
        head = self._make(channels, classes)
        self._head = weakref.ref(head)
        if self._told is not None:
            head.tell(*self._told)
        return head


def label_edges(source: str, table: LabelTable) -> Edges:
    """Return the label graph of a `--graph` option; for co-occurrence row c holds P(c' | c)."""
    edges = read_edges(source, table)
    return edges.transposed() if source == "cooccurrence" else edges


def label_features(output: Output) -> Tensor:
    """(B, C, D) features of each label, in float32 at least."""
    if output.per_class is None:
        raise WrongHead("the step needs features of each label", "use the head that the method makes")
    return at_least_float32(output.per_class)


def computed_again(function: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """function(*given), computed again in the backward pass instead of kept."""
    if not torch.is_grad_enabled():
        return function(*given)
    # Nothing in here is random, so the generators' states need not be kept.
    found: Tensor = checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)
    return found
