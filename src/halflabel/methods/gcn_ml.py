"""A graph convolutional network over the labels produces their classifiers (Chen 2019, ML-GCN)."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from halflabel.errors import UserError
from halflabel.features.heads import pool
from halflabel.labels.table import Table
from halflabel.methods.base import Method, Not, Size, method
from halflabel.methods.parts.label_graph import Edges
from halflabel.methods.parts.semantic import LabelAwareHead, SemanticMethod, label_edges
from halflabel.types import Output


class GraphClassifier(LabelAwareHead):
    """Two graph convolutions over the label vectors produce the classifier weights: (B, D, h, w) -> logits (B, C)."""

    def __init__(
        self, channels: int, classes: int, *, vector_size: int = 300, hidden: int = 1024, pooling: str = "max"
    ) -> None:
        super().__init__(classes, vector_size)
        self.pooling = pooling
        self.needs_maps = pooling == "max"
        self.first = nn.Linear(vector_size, hidden, bias=False)
        self.second = nn.Linear(hidden, channels, bias=False)

    def classifiers(self) -> Tensor:
        """Return the classifier weights, (C, D)."""
        weights: Tensor = self.second(self.graph @ leaky_relu(self.first(self.graph @ self.vectors), 0.2))
        return weights

    def forward(self, features: Tensor) -> Output:
        use_max = features.ndim == 4 and self.pooling == "max"
        pooled = features.amax(dim=(2, 3)) if use_max else pool(features)
        return Output(pooled @ self.classifiers().to(pooled.dtype).T, pool(features))

    def class_maps(self, maps: Tensor) -> Tensor:
        return torch.einsum("cd,bdhw->bchw", self.classifiers().to(maps.dtype), maps)


@method(
    serves=("full", "partial"),
    paper="Chen, Wei, Wang, Guo 2019: Multi-Label Image Recognition with Graph Convolutional Networks (ML-GCN)",
    lr=3e-4,
    tune={"tau": (0.2, 0.4, 0.6)},
    needs={"tau": {"graph": Not("identity"), "p": Not(0)}},
)
def gcn_ml(
    tau: float = 0.4,
    p: float = 0.2,
    graph: str = "cooccurrence",
    vectors: str = "graph",
    vector_size: Size = 300,
    hidden: Size = 1024,
    pooling: Literal["max", "mean"] = "max",
) -> Method:
    """A graph convolution turns label vectors into classifiers, over a graph of labels that occur together.

    Use it for many labels that depend on each other. It was designed for full labels; of partly known labels it uses
    the known ones, and its graph is counted in images where both labels are known. With few known labels the graph is
    unreliable.

        P_ij = P(label j | label i),   A_ij = 1 if P_ij ≥ τ, else 0                                      (eq. 7)
        A'_ij = p A_ij / Σ_{j ≠ i} A_ij for j ≠ i,   A'_ii = 1 − p,   Â = D^−½ A' D^−½                    (eq. 8)
        H = LeakyReLU(Â Z W₀),   W = Â H W₁,   x = W · (maximum over places of the features)             (eq. 3 to 5)
        L = BCE on known labels, divided by the known labels of the batch

    tau (τ) and p as above; hidden: columns of H. graph: cooccurrence; a CSV file of rows class,class,weight, where the
    first class is inferred from the second; or identity. tau applies to all of them. vectors (Z): graph = computed from
    co-occurrence; a text file of word vectors (GloVe, as in the paper, or word2vec); or text:MODEL, a
    sentence-transformers model. vector_size: length of the vectors, 300 in the paper. pooling: max, which needs
    features with places (maps), or mean.

    Differs from the released code: it normalises by columns, adds 1 instead of 1 − p to the diagonal with 0.25 for p,
    and counts P_ij on full labels. P_ij counts one more image, so that pairs seen once have no edge.
    """
    if not 0 < tau <= 1 or not 0 <= p < 1:
        raise UserError(f"tau {tau:g} and p {p:g} do not fit", "use 0 < tau ≤ 1 and 0 ≤ p < 1")

    def make_edges(table: Table) -> Edges:
        classes = len(table.classes)
        edges = label_edges(graph, table).at_least(tau).reweighted(classes, p)
        total = np.bincount(edges.rows, edges.weights, classes)
        return edges._replace(weights=edges.weights / np.sqrt(total[edges.rows] * total[edges.cols]))

    return SemanticMethod(
        partial(GraphClassifier, vector_size=vector_size, hidden=hidden, pooling=pooling),
        make_edges,
        vectors=vectors,
        vector_size=vector_size,
    )
