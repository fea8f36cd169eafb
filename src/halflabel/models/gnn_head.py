"""A graph neural network over the classes on top of any head: the logit of a class depends on the other logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.models.heads import Head
from halflabel.system.gpu_memory import recompute
from halflabel.types import Output

__all__ = ["MAX_CLASSES", "GnnHead"]

MAX_CLASSES = 2400  # with more, training would take more than 1 GB for a single image
_MAX_STATES = 1 << 23  # B·C² node states; a larger batch is computed in parts


class GnnHead(Head):
    """Graph neural network on the logits of another head. Durand 2019, section 3.2 and algorithm 2.

        h_v⁰ = x_v e_v ∈ R^C                                                      (eq. 12)
        m_v = 1/(C − 1) Σ_{u ≠ v} ReLU(M h_u + b)                                 (eq. 13)
        h_v ← GRU(h_v, m_v), T times                                              (eq. 14)
        y_v = the v-th component of h_v⁰ + h_v^T                                  (eq. 15)

    One node per class, all connected; M, b and the GRU are shared by nodes and steps. Eq. 15 leaves a vector of C
    numbers per class, and the text does not say how they become a score: this takes the component that held the score
    in h_v⁰. With torch's initial weights y is close to (1 + 2^−T) x: training starts from the logits of the inner head.

    (B, D) or (B, D, h, w) -> logits (B, C). Maps and `class_maps` are those of the inner head: they show x, not y.
    For an ensemble, put several of these into `Ensemble`, not an `Ensemble` into this.

    Memory: 28·C² bytes of weights; in training 36·T·C² bytes per image, and at the peak half as much again: with T = 3
    about 165·C², 1 MB per image for C = 80, 60 MB for C = 600. A batch of more than 2^23 states (B·C²) is computed in
    parts, which the backward pass computes again, so that it takes at most 1.4 GB. Time: 7·T·C³ multiplications
    per image.
    """

    def __init__(self, inner: Head, classes: int, steps: int = 3) -> None:
        super().__init__()
        if classes > MAX_CLASSES:
            raise UserError(
                f"a graph over {classes} classes has {classes}² states per image; the maximum is {MAX_CLASSES} classes",
                "switch the graph off (--gnn false), or train on fewer classes",
            )
        if steps < 1:
            raise UserError(f"a graph needs at least one step, not {steps}", "use 1 or more, or --gnn false")
        self.inner = inner
        self.needs_maps = inner.needs_maps
        self.steps = steps
        self.message = nn.Linear(classes, classes)
        self.update = nn.GRUCell(classes, classes)

    def forward(self, features: Tensor) -> Output:
        output: Output = self.inner(features)
        return output._replace(logits=self.propagate(output.logits), members=None)

    def class_maps(self, maps: Tensor) -> Tensor:
        return self.inner.class_maps(maps)

    def propagate(self, logits: Tensor) -> Tensor:
        """(B, C) -> (B, C), in parts if the whole batch would take too much memory."""
        part_size = max(_MAX_STATES // logits.shape[1] ** 2, 1)
        if torch.compiler.is_exporting() or len(logits) <= part_size:
            return self._propagate(logits)
        parts = (logits[first : first + part_size] for first in range(0, len(logits), part_size))
        return torch.cat([recompute(self._propagate, part) for part in parts])

    def _propagate(self, logits: Tensor) -> Tensor:
        classes = logits.shape[1]
        others = max(classes - 1, 1)  # a single class receives the message 0
        states = torch.diag_embed(logits)  # (B, C, C): node v's state is row v
        for _ in range(self.steps):
            messages = torch.relu(self.message(states))
            # The sum over all minus the own message, by the mean: the sum could overflow in half precision.
            received = messages.mean(1, keepdim=True) * (classes / others) - messages / others
            states = self.update(received.flatten(0, 1), states.flatten(0, 1)).unflatten(0, logits.shape)
        return logits + states.diagonal(dim1=1, dim2=2)
