"""Learned estimates of the labels of all training images (role)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.labels.table import Table
from halflabel.methods.parts.relabel import Relabeler, check_size
from halflabel.system.rng import hash_names, uniform
from halflabel.types import Batch, Targets, at_least_float32

_KNOWN = math.log(0.995 / 0.005)  # initial estimate of a known label, ±
_UNKNOWN = math.log(0.6 / 0.4)  # initial estimates of unknown labels are within ± this


class LabelEstimates(Relabeler):
    """θ, a free logit per training image and class; targets are half the known labels and half the estimates.

    known + → ½ (1 + θ̂, 1 − θ̂), known − → ½ (θ̂, 2 − θ̂), unknown → ½ (θ̂, 1 − θ̂). Memory: 4 bytes per image and
    class, and 12 more for its gradient and Adam's two averages. A second start with the same labels, as
    after LinearInit, keeps what was learned.
    """

    words = "estimated labels"

    theta: nn.Parameter  # (N, C) float32

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.table: Table | None = None
        self.register_parameter("theta", None)

    def start(self, table: Table) -> None:
        if self.table == table:
            return
        check_size(table, 16, "role")
        self.table = table
        self.theta = nn.Parameter(torch.from_numpy(initial_estimates(table, self.seed)))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return teach(batch.labels, self.of(batch).detach().to(at_least_float32(logits).dtype))

    def of(self, batch: Batch) -> Tensor:
        """Return θ of the images of a batch: (B, C), with gradient."""
        return self.theta[batch.index]


def initial_estimates(table: Table, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return the initial θ: (N, C), a function of the seed, the names and the known labels."""
    images, classes = hash_names(table.images.array), hash_names(table.classes.array)
    theta = np.empty(table.shape, np.float32)
    step = max(2**20 // max(len(classes), 1), 1)
    for first in range(0, len(images), step):
        random = uniform(seed, images[first : first + step, None], classes[None, :])
        theta[first : first + step] = (2 * random - 1) * _UNKNOWN
    image, column, value = table.entries()
    theta[image, column] = _KNOWN * value
    return theta


def teach(labels: Tensor, teacher: Tensor) -> Targets:
    """Return half of the known labels plus half of the teacher's scores: (B, C) labels and logits -> Targets."""
    score = torch.sigmoid(teacher)
    known = labels.to(score.dtype)
    return Targets((known.clamp(min=0) + score) / 2, ((-known).clamp(min=0) + 1 - score) / 2)
