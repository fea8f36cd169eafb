"""Expected positives and regularised online label estimation (Cole 2021)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method, NonNegative, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler, check_size
from halflabel.methods.parts.terms import ExpectedPositives
from halflabel.system.rng import hash_names, uniform
from halflabel.system.validate import between
from halflabel.types import Batch, Targets, at_least_float32

_KNOWN = math.log(0.995 / 0.005)  # initial estimate of a known label, ±
_UNKNOWN = math.log(0.6 / 0.4)  # initial estimates of unknown labels are within ± this


class LabelEstimates(Relabeler):
    """θ, a free logit per training image and class; targets are half the known labels and half the estimates.

    Memory: 4 bytes per image and class, and 12 more for its gradient and Adam's two averages. A second start with the
    same labels, as after LinearInit, keeps what was learned.
    """

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


_SERVES = ("partial", "positives-only", "single-positive")
_MOST_POSITIVES = 1_000_000  # per image: more than any table has classes


@method(serves=_SERVES, paper="Cole 2021 (Multi-label learning from single positive labels), EPR")
def epr(positives: float = 0.0) -> Method:
    """Cross-entropy on known labels, and the scores of a batch must add up to the expected number of positives.

    Use it for positives-only labels when you know how many classes an image shows on average: only that number keeps
    the scores of unknown entries low.

        L = 1/(B·C) Σ_known BCE + ((1/B Σ_i Σ_c p_ic − k) / C)²

    Options: positives (k; VOC has about 1.5 per image). 0 = estimated from the labels: Σ_c of the share of positives
    among known labels; or, if labels are not missing at random (hardly an image without a known positive), the mean
    number of known positives of a labelled image, which is too low (1 for single positives): give k if you can.

    Differs from the released code: known negatives, which it refuses, count as known negatives; and it adds 1e-5
    inside every log.
    """
    between(0, _MOST_POSITIVES, positives=positives)
    return Method(BCE(), terms=[ExpectedPositives(positives)])


@method(lr=3e-4, serves=_SERVES, paper="Cole 2021 (Multi-label learning from single positive labels), ROLE")
def role(positives: float = 0.0, theta_rate: NonNegative = 10.0, theta_seed: int = 0) -> Method:
    """Learns an estimate of every label of every training image and the classifier; each is the other's target.

    Use it for positives-only labels when you know how many classes an image shows on average. It needs 16 bytes per
    training image and class (the estimates and their optimizer state), so it is not for very large tables.

        L = ½ [L(f | θ̂) + L(θ̂ | f)],   f = σ(x), θ̂ = σ(θ), θ one free number per training image and class
        L(a | b) = 1/(B·C) (Σ_known BCE(a) + Σ −b log a − (1 − b) log(1 − a)) + ((1/B Σ_i Σ_c a_ic − k) / C)²
        b, the target, has no gradient

    θ starts at logit 0.995 (known present), logit 0.005 (known absent), or at random in ±logit 0.6 (unknown), a
    function of the names of image and class. Weight decay does not act on θ: it would pull every estimate to
    "undecided".

    Options: positives (k, as in `epr`: give it if you can; 0 = from the labels); theta_rate: the learning rate of θ as
    a multiple of --lr; theta_seed: of the random start.

    Differs from the released code: known negatives, which it refuses, count as known negatives on both sides; and
    it adds 1e-5 inside every log.
    """
    return _role(positives, theta_rate, theta_seed)


@method(
    lr=3e-4,
    serves=_SERVES,
    paper="Cole 2021 (Multi-label learning from single positive labels), ROLE + LinearInit",
    linear_init=25,
)
def role_li(positives: float = 0.0, theta_rate: NonNegative = 10.0, theta_seed: int = 0) -> Method:
    """`role` after 25 epochs of the head only on frozen features (LinearInit), if the whole network is trained.

    Use it in place of `role` with --tune all: the estimates are reliable before the backbone starts to follow them.
    With --tune head it equals `role`.

    Formula and options (positives, theta_rate, theta_seed) are those of `role`; linear_init sets the epochs.
    """
    return _role(positives, theta_rate, theta_seed)


def _role(positives: float, theta_rate: float, theta_seed: int) -> Method:
    between(0, _MOST_POSITIVES, positives=positives)
    between(-(2**63), 2**63 - 1, theta_seed=theta_seed)
    return Role(positives, theta_rate, theta_seed)


class Role(Method):
    """Classifier and estimates, each the other's target; the estimates have a loss of their own."""

    relabel: LabelEstimates
    changes_known = True  # half of the target of a known label is its estimate

    def __init__(self, positives: float, theta_rate: float, theta_seed: int) -> None:
        super().__init__(BCE(), LabelEstimates(theta_seed))
        self.expected = ExpectedPositives(positives)
        self.theta_rate = theta_rate

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        self.expected.start(table)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters()), "base_lr": self.theta_rate * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        logits, theta = model(batch.views[0]).logits, self.relabel.of(batch)
        model_targets = self.relabel(batch, logits.detach(), epoch)
        theta_targets = teach(batch.labels, at_least_float32(logits.detach()))
        loss = self.reduce(self.loss(logits, model_targets), model_targets)
        loss = loss + self.reduce(self.loss(theta, theta_targets), theta_targets)
        return loss + (self.expected.penalty(logits) + self.expected.penalty(theta)) / 2
