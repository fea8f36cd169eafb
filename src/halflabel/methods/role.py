"""Expected positives and regularised online label estimation (Cole 2021)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler, check_size
from halflabel.methods.parts.terms import ExpectedPositives
from halflabel.models.heads import Model
from halflabel.system.rng import hash_names, uniform
from halflabel.system.validate import at_least, between
from halflabel.types import Batch, Targets, at_least_float32

__all__ = ["Estimates", "epr", "role", "role_li"]

_SERVES = ("partial", "positives-only", "single-positive")
_KNOWN = math.log(0.995 / 0.005)  # where the estimate of a known label starts
_UNKNOWN = math.log(0.6 / 0.4)  # the estimate of an unknown one starts within ± this
_MOST = 1_000_000  # positives per image: more classes than any table has


@method(serves=_SERVES, paper="Cole 2021 (Multi-label learning from single positive labels), EPR")
def epr(positives: float = 0.0) -> Method:
    """Cross-entropy on known labels, and the scores of a batch must add up to the expected positives per image.

    Use it for positives-only labels when you know how many classes an image shows on average: that number alone holds
    the scores of unknown entries down.

        L = 1/(B·C) Σ_known BCE + ((1/B Σ_i Σ_c p_ic − k) / C)²

    Options: positives (k; VOC has about 1.5 per image). 0 = from the labels: Σ_c of the share of positives among the
    known labels, or where these are not missing at random (hardly an image without a known positive), the mean number
    of known positives of a labelled image, which is too low where some are missing (1 for single positives): give k if
    you can.

    Differs from the released code: known negatives, which it refuses, are charged as known negatives; and it adds 1e-5
    inside every log.
    """
    between(0, _MOST, positives=positives)
    return Method(BCE(), terms=[ExpectedPositives(positives)])


@method(lr=3e-4, serves=_SERVES, paper="Cole 2021 (Multi-label learning from single positive labels), ROLE")
def role(positives: float = 0.0, theta_rate: float = 10.0, theta_seed: int = 0) -> Method:
    """Learns an estimate of every label of every training image together with the classifier; each teaches the other.

    Use it for positives-only labels when you know how many classes an image shows on average. It holds 16 bytes per
    training image and class (the estimates and the optimizer's state for them), so it is not for very large tables.

        L = ½ [L(f | θ̂) + L(θ̂ | f)],   f = σ(x), θ̂ = σ(θ), θ one free number per training image and class
        L(a | b) = 1/(B·C) (Σ_known BCE(a) + Σ −b log a − (1 − b) log(1 − a)) + ((1/B Σ_i Σ_c a_ic − k) / C)²
        in which b, the target, has no gradient

    θ starts at logit 0.995 (known present), logit 0.005 (known absent), or in ±logit 0.6 (unknown) at random, drawn by
    the names of image and class. Weight decay, which would pull every estimate to "undecided" in every step, does not
    act on θ.

    Options: positives (k, as in `epr`: give it if you can; 0 = from the labels); theta_rate, the learning rate of θ as
    a multiple of --lr; theta_seed, of the random start. The paper's figure (VOC 2012, one positive per image): mAP
    87.77 against 85.89 of `an`.

    Differs from the released code: known negatives, which it refuses, are charged as known negatives on both sides; and
    it adds 1e-5 inside every log.
    """
    return _role(positives, theta_rate, theta_seed)


@method(
    lr=3e-4,
    serves=_SERVES,
    paper="Cole 2021 (Multi-label learning from single positive labels), ROLE + LinearInit",
    linear_init=25,
)
def role_li(positives: float = 0.0, theta_rate: float = 10.0, theta_seed: int = 0) -> Method:
    """`role` after 25 epochs of the head alone on frozen features (LinearInit), when the whole network is tuned.

    Use it in place of `role` with --tune all: estimates are sound before the backbone starts to follow them, and they
    are carried over. With --tune head there is nothing but the head, so it equals `role`.

    Formula and options (positives, theta_rate, theta_seed) are those of `role`; --linear-init sets the epochs.
    The paper's figure (VOC 2012, one positive per image): mAP 88.26 against 87.77 of `role` and 85.89 of `an`.
    """
    return _role(positives, theta_rate, theta_seed)


def _role(positives: float, theta_rate: float, theta_seed: int) -> Method:
    between(0, _MOST, positives=positives)
    at_least(0, theta_rate=theta_rate)
    return Role(positives, theta_rate, theta_seed)


class Estimates(Relabeler):
    """θ, a free logit per training image and class; half the known labels and half the estimates are charged.

    known + → ½ (1 + θ̂, 1 − θ̂), known − → ½ (θ̂, 2 − θ̂), unknown → ½ (θ̂, 1 − θ̂). Memory: 4 bytes per image and
    class, and 12 more for its gradient and Adam's two averages. To start again with the same labels, as after
    LinearInit, keeps what was learned.
    """

    theta: nn.Parameter  # (N, C) float32

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.table: LabelTable | None = None
        self.register_parameter("theta", None)

    def start(self, table: LabelTable) -> None:
        if self.table == table:
            return
        check_size(table, 16, "role")
        self.table = table
        self.theta = nn.Parameter(torch.from_numpy(first_estimates(table, self.seed)))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        return teach(batch.labels, self.of(batch).detach().to(at_least_float32(logits).dtype))

    def of(self, batch: Batch) -> Tensor:
        """θ of the images of a batch: (B, C), with gradient."""
        return self.theta[batch.index]


def first_estimates(table: LabelTable, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Where θ starts: (N, C), a function of the seed, the names and the known labels."""
    images, classes = hash_names(table.images.array), hash_names(table.classes.array)
    theta = np.empty(table.shape, np.float32)
    step = max(2**20 // max(len(classes), 1), 1)
    for first in range(0, len(images), step):
        drawn = uniform(seed, images[first : first + step, None], classes[None, :])
        theta[first : first + step] = (2 * drawn - 1) * _UNKNOWN
    image, column, value = table.entries()
    theta[image, column] = _KNOWN * value
    return theta


def teach(labels: Tensor, teacher: Tensor) -> Targets:
    """Half of what is known plus half of what the other side believes: (B, C) labels and logits -> Targets."""
    belief = torch.sigmoid(teacher)
    known = labels.to(belief.dtype)
    return Targets((known.clamp(min=0) + belief) / 2, ((-known).clamp(min=0) + 1 - belief) / 2)


class Role(Method):
    """Classifier and estimates, each the other's target. Its step differs in that the estimates have a loss too."""

    relabel: Estimates
    changes_known = True  # half of what a known label is charged by is its estimate

    def __init__(self, positives: float, theta_rate: float, theta_seed: int) -> None:
        super().__init__(BCE(), Estimates(theta_seed))
        self.expected = ExpectedPositives(positives)
        self.theta_rate = theta_rate

    def start(self, table: LabelTable) -> None:
        super().start(table)
        self.expected.start(table)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters()), "base_lr": self.theta_rate * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        logits, theta = model(batch.views[0]).logits, self.relabel.of(batch)
        of_model = self.relabel(batch, logits.detach(), epoch)
        of_theta = teach(batch.labels, at_least_float32(logits.detach()))
        loss = self.reduce(self.loss(logits, of_model), of_model) + self.reduce(self.loss(theta, of_theta), of_theta)
        return loss + (self.expected.penalty(logits) + self.expected.penalty(theta)) / 2
