"""A graph neural network over the classes on top of any head: the logit of a class depends on the other logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from halflabel.features.heads import Head
from halflabel.system.gpu_memory import in_chunks
from halflabel.types import Output

EXACT_CLASSES = 40  # with more, a node state has `node_size` numbers instead of C
_MAX_STATES = 1 << 23  # B·C·d numbers of node states; a larger batch is computed in parts


class GnnHead(Head):
    """Graph neural network on the logits of another head. Durand 2019, section 3.2 and algorithm 2.

        h_v⁰ = x_v e_v ∈ R^d                                                      (eq. 12)
        m_v = 1/(C − 1) Σ_{u ≠ v} ReLU(M h_u + b)                                 (eq. 13)
        h_v ← GRU(h_v, m_v), T times                                              (eq. 14)
        y_v = e_v · (h_v⁰ + h_v^T)                                                (eq. 15)

    One node per class, all connected; M, b and the GRU are shared by nodes and steps. In the paper d = C and e_v is the
    v-th unit vector: so here up to 40 classes, and with `node_size` 0. With more classes the C³ of its time is out of
    reach (a minute per step at 1,000 classes); then d is `node_size`, and e_v a fixed random unit vector. Eq. 15 leaves
    a vector per class, and the text does not say how it becomes a score: this takes the component along e_v, which held
    the score in h_v⁰. With torch's initial weights y is close to (1 + 2^−T) x: training starts from the logits of the
    inner head.

    (B, D) or (B, D, h, w) -> logits (B, C). Maps and `class_maps` are those of the inner head: they show x, not y.
    For an ensemble, put several of these into `Ensemble`, not an `Ensemble` into this.

    Memory: 28·d² bytes of weights; in training at most 36·T·C·d bytes per image, and at the peak half as much again. A
    batch of more than 2^23 numbers of states is computed in parts, which the backward pass computes again. Time:
    7·T·C·d² multiplications per image.
    """

    directions: Tensor  # (C, d): e_v

    def __init__(self, inner: Head, classes: int, steps: int = 3, node_size: int = 32) -> None:
        super().__init__()
        self.inner = inner
        self.needs_maps = inner.needs_maps
        self.steps = steps
        directions = torch.eye(classes)
        if node_size and classes > EXACT_CLASSES:
            random = torch.randn(classes, node_size, generator=torch.Generator().manual_seed(0))
            directions = normalize(random, dim=1)
        size = directions.shape[1]
        self.message = nn.Linear(size, size)
        self.update = nn.GRUCell(size, size)
        self.register_buffer("directions", directions, persistent=False)

    @property
    def words(self) -> str:
        return f"{self.inner.words}, graph network of {self.steps} steps"

    def forward(self, features: Tensor) -> Output:
        output: Output = self.inner(features)
        return output._replace(logits=self.propagate(output.logits), members=None)

    def class_maps(self, maps: Tensor) -> Tensor:
        return self.inner.class_maps(maps)

    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        scale = 1 + 2.0**-self.steps  # of the logits of the inner head, with torch's initial weights
        self.inner.load_linear(weight / scale, bias / scale)

    def propagate(self, logits: Tensor) -> Tensor:
        """(B, C) -> (B, C), in parts if the whole batch would take too much memory."""
        part_size = max(_MAX_STATES // (logits.shape[1] * self.update.hidden_size), 1)
        return in_chunks(self._propagate, part_size, logits)

    def _propagate(self, logits: Tensor) -> Tensor:
        states = logits[:, :, None] * self.directions  # (B, C, d)
        for _ in range(self.steps):
            received = _mean_of_others(torch.relu(self.message(states)))
            states = self.update(received.flatten(0, 1), states.flatten(0, 1)).view_as(states)
        return logits + (states * self.directions).sum(2)


def _mean_of_others(messages: Tensor) -> Tensor:
    """The mean over the other nodes: (B, C, d) -> (B, C, d); a single node receives 0."""
    classes = messages.shape[1]
    others = max(classes - 1, 1)
    # The sum over all minus the own message, by the mean: the sum could overflow in half precision.
    return torch.sub(messages.mean(1, keepdim=True) * (classes / others), messages, alpha=1 / others)
