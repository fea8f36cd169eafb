"""Pseudo-labels from co-occurring labels of the image and from other images of the label (sst, hst)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.parts.feature_bank import SMALLEST_NORM, FeatureBank, Prototypes, check_numbers
from halflabel.methods.parts.losses import ASL
from halflabel.methods.parts.relabel import Begins, Ignore
from halflabel.methods.parts.semantic import SemanticMethod, label_features, semantic_parts
from halflabel.system.gpu_memory import in_chunks
from halflabel.system.validate import MAX_SIZE, between
from halflabel.types import Batch, Output, Targets, at_least_float32

_CHUNK_NUMBERS = 1 << 24  # numbers of a chunk of pairs
_SHARPNESS = 10.0  # slope of the soft threshold that is learned

PairLogits = Callable[[Tensor, Tensor, Tensor], Tensor]  # (n,) images, labels and other labels > label -> (n,) logits


class SemanticTransfer(SemanticMethod):
    """L = L_known + L_within + L_across + weights · (co-occurrence loss, contrast, and what prototypes add).

    With `prototypes` 0, a label is compared with the features in the bank, else with this many prototypes.
    """

    theta: nn.Parameter  # (2,) thresholds within an image and across images

    def __init__(
        self,
        *,
        theta: float,
        theta_fall: float,
        theta_floor: float,
        warm: int,
        guess_weight: float,
        pair_weight: float,
        contrast_weight: float,
        bank: int,
        width: int,
        rank: int,
        prototypes: int = 0,
        learned: bool = False,
        every: int = 5,
        **head: Any,
    ) -> None:
        if not 0 <= theta_floor <= theta <= 1:
            raise UserError(f"theta {theta:g} cannot fall to {theta_floor:g}", "use 0 ≤ theta_floor ≤ theta ≤ 1")
        between(1, MAX_SIZE, width=width)
        super().__init__(relabel=WarmUp("guessing labels", warm), **semantic_parts(width=width, rank=rank, **head))
        self.width = width
        self.warm, self.theta_start, self.theta_fall, self.theta_floor = warm, theta, theta_fall, theta_floor
        self.pair_weight, self.contrast_weight, self.guess_weight = pair_weight, contrast_weight, guess_weight
        self.learned, self.every = learned, every
        self.cooccurrence = Cooccurrence(width, rank)
        self.bank = FeatureBank(bank) if not prototypes else None
        self.prototypes = Prototypes(bank, prototypes) if prototypes else None
        self.theta = nn.Parameter(torch.full((2,), theta), requires_grad=learned)

    def begin(self, table: Table) -> None:
        super().begin(table)
        self.cooccurrence.start(len(table.classes))
        for part in (self.bank, self.prototypes):
            if part is not None:
                part.start(len(table.classes), self.width)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        thresholds = [{"params": [self.theta], "base_lr": lr, "weight_decay": 0.0}] if self.learned else []
        return [{"params": list(self.cooccurrence.parameters()), "base_lr": lr}, *thresholds]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(batch.views[0])
        features, labels = label_features(output), batch.labels
        pair_logits = self.cooccurrence(features)
        loss = self.label_loss(output.logits, batch, epoch)
        loss = loss + self.pair_weight * self.cooccurrence.pair_loss(pair_logits, labels)
        loss = loss + self.contrast_weight * contrastive_loss(features, labels)
        if epoch > self.warm:
            loss = loss + self._transfer_loss(output.logits, features, pair_logits, labels, epoch)
        bank = self.bank if self.prototypes is None else self.prototypes.bank
        assert bank is not None
        bank.remember(features, labels)
        return loss

    def _transfer_loss(
        self, logits: Tensor, features: Tensor, pair_logits: PairLogits, labels: Tensor, epoch: int
    ) -> Tensor:
        """Return the loss of the pseudo-labels, and of learned thresholds and prototypes."""
        loss = features.new_zeros(())
        if self.prototypes is not None:
            self.prototypes.refresh(epoch, self.warm + 1, self.every)
            cosine = self.prototypes.similarity(features)
            known = (labels != 0) & self.prototypes.exists
            loss = loss + self.contrast_weight * ((1 - labels * cosine) * known).sum() / known.sum().clamp(min=1)
            across, has_examples = cosine.detach(), self.prototypes.exists.expand_as(cosine)
        else:
            assert self.bank is not None
            across, has_examples = self.bank.similarity(features), (self.bank.seen > 0).expand(labels.shape)
        within, has_present = cooccurrence_scores(pair_logits, labels)
        if self.learned:
            self.theta.data.clamp_(0, 1)
        falling = falling_threshold(epoch, self.warm, self.theta_start, self.theta_fall, self.theta_floor)
        for number, (scores, usable) in enumerate(((within, has_present), (across, has_examples))):
            theta = self.theta[number] if self.learned else falling
            targets = with_pseudo_positives(labels, usable & (scores >= theta), scores.dtype)
            loss = loss + self.guess_weight * self.reduce(self.loss(logits, targets), targets)
            if self.learned:
                loss = loss + 0.1 * threshold_loss(scores, usable, labels, theta)
        return loss


def threshold_loss(scores: Tensor, usable: Tensor, labels: Tensor, theta: Any) -> Tensor:
    """Return the BCE of σ(10 (score − θ)) on known labels, which trains θ; the scores are fixed; a scalar."""
    known = usable & (labels != 0)
    logits = _SHARPNESS * (scores - theta)
    return (softplus(-labels * logits) * known).sum() / known.sum().clamp(min=1)


def falling_threshold(epoch: int, warm: int, start: float, fall: float, floor: float) -> float:
    """Return the threshold of an epoch: `start` after the warm-up, less `fall` each epoch, at least `floor`.

    >>> [round(falling_threshold(epoch, 5, 0.95, 0.025, 0.75), 3) for epoch in (6, 7, 14, 20)]
    [0.95, 0.925, 0.75, 0.75]
    """
    return max(start - fall * (epoch - warm - 1), floor)


def with_pseudo_positives(labels: Tensor, present: Tensor, dtype: torch.dtype) -> Targets:
    """Known labels unchanged, unknown labels in `present` → (1, 0), others → (0, 0): (B, C), (B, C) bool."""
    pos = (labels > 0) | ((labels == 0) & present)
    return Targets(pos.to(dtype), (labels < 0).to(dtype))


def contrastive_loss(features: Tensor, labels: Tensor) -> Tensor:
    """Pull features of a label together where it is present, and apart otherwise; a scalar. Chen 2022 (SST), CST loss.

        1 − cos(f_c^n, f_c^m) for images n, m that both show c;   1 + cos if only one of them
        or neither does; known labels only

    The released code draws three pairs of each of the last two kinds for one of the first; here the mean of each kind
    over the batch has these weights, among the kinds that occur. (B, C, W), (B, C). Memory: C·B² numbers.
    """
    unit = normalize(at_least_float32(features), dim=2, eps=SMALLEST_NORM).transpose(0, 1)
    cosine = unit @ unit.transpose(1, 2)
    present, absent = ((labels > 0).T, (labels < 0).T)
    upper = torch.ones(cosine.shape[1:], dtype=torch.bool, device=cosine.device).triu(1)
    mixed = present[:, :, None] & absent[:, None, :]
    kinds = (
        (present[:, :, None] & present[:, None, :] & upper, -1, 1),
        ((mixed | mixed.transpose(1, 2)) & upper, 1, 3),
        (absent[:, :, None] & absent[:, None, :] & upper, 1, 3),
    )
    total, weights = cosine.new_zeros(()), cosine.new_zeros(())
    for pairs, sign, weight in kinds:
        count = pairs.sum()
        total = total + weight * ((1 + sign * cosine) * pairs).sum() / count.clamp(min=1)
        weights = weights + weight * (count > 0)
    return total / weights.clamp(min=1)


class WarmUp(Ignore):
    """Uses known labels only; warns if training ends before `part` starts, after `warm` epochs."""

    def __init__(self, part: str, warm: int) -> None:
        super().__init__()
        self.part = part
        self.warm = warm

    def begins(self) -> Begins | None:
        return Begins(self.part, self.warm + 1, "warm")


class Cooccurrence(nn.Module):
    """Predict which two labels are present together in an image, from the features of its labels.

        p_cc' = σ(u_cc' · ReLU(Q f_c + R f_c') + b_cc'),   c < c'                      (Chen 2022, SST, IST module)

    The paper's linear layer before u_cc' is part of u here: the same functions. Memory: 4·k·C²/2 bytes of weights.
    """

    weight: nn.Parameter  # (P, k): the pairs (0, 1), (0, 2), …, (C − 2, C − 1)
    bias: nn.Parameter  # (P,)

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, rank)
        self.second = nn.Linear(width, rank, bias=False)
        self.rank = rank
        self.loss = ASL(gamma_neg=2.0, gamma_pos=1.0)

    def start(self, classes: int) -> None:
        pairs = classes * (classes - 1) // 2
        check_numbers(pairs * self.rank, f"a co-occurrence network of {classes} classes")
        bound = self.rank**-0.5
        random = torch.rand(pairs, self.rank, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter((2 * random - 1) * bound)
        self.bias = nn.Parameter(torch.zeros(pairs))

    def forward(self, features: Tensor) -> PairLogits:
        """Return the function that computes the logits of pairs, for features of each label (B, C, W)."""
        classes = features.shape[1]
        first, second = (at_least_float32(layer(features)).flatten(0, 1) for layer in (self.first, self.second))

        def score(image: Tensor, label: Tensor, other: Tensor) -> Tensor:
            pair = label * (2 * classes - label - 1) // 2 + other - label - 1
            size = max(_CHUNK_NUMBERS // self.rank, 1)
            rows = (image * classes + label, image * classes + other, pair)
            return in_chunks(_pair_scores, size, *rows, whole=[first, second, self.weight]) + self.bias[pair]

        return score

    def pair_loss(self, logits: PairLogits, labels: Tensor) -> Tensor:
        """Return the asymmetric loss (γ⁺ = 1, γ⁻ = 2) of pairs of known labels, divided by all pairs; a scalar.

        The released code takes every pair that is not known to be present as absent and divides by all pairs too, so a
        known pair has the same weight here.
        """
        known = labels != 0
        image, label, other = (known[:, :, None] & known[:, None]).triu(1).nonzero(as_tuple=True)
        present, absent = self.loss.pair(logits(image, label, other))
        are_present = (labels[image, label] > 0) & (labels[image, other] > 0)
        return torch.where(are_present, present, absent).sum() / max(len(labels) * len(self.bias), 1)


@torch.no_grad()
def cooccurrence_scores(logits: PairLogits, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of p_cc' over other known present labels c' (0 without any), and where there are any."""
    present = labels > 0
    is_other = ~torch.eye(labels.shape[1], dtype=torch.bool, device=labels.device)
    image, label, other = (present[:, None] & is_other).nonzero(as_tuple=True)
    probability = torch.sigmoid(logits(image, torch.minimum(label, other), torch.maximum(label, other)))
    total = probability.new_zeros(labels.shape).index_put((image, label), probability, accumulate=True)
    others = present.sum(1, keepdim=True) - present.to(torch.int64)
    return total / others.clamp(min=1), others > 0


def _pair_scores(q: Tensor, r: Tensor, u: Tensor, i: Tensor, j: Tensor, p: Tensor) -> Tensor:
    """u_p · ReLU(q_i + r_j) for n triples (i, j, p) of row numbers: (N, k), (N, k), (P, k), (n,) × 3 -> (n,)."""
    return (torch.relu(q[i] + r[j]) * u[p]).sum(1)
