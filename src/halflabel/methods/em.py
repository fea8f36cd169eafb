"""Entropy maximisation and asymmetric pseudo-labels: what is unknown is acknowledged to be unknown (Zhou 2022)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.losses import BCE, widen
from halflabel.method import REGIMES, Method, method
from halflabel.relabel import LARGEST, Relabeler, check_size
from halflabel.rng import hash_names
from halflabel.terms import Entropy
from halflabel.types import Batch, Sweep, Targets
from halflabel.weak import Soft

__all__ = ["APL", "FewAbsent", "em", "em_apl"]

_AT_ONCE = 1 << 24  # entries sorted at a time, so that sorting needs little memory


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="Zhou 2022 (Acknowledging the Unknown), EM loss",
    tune={"alpha": (0.05, 0.1, 0.2, 0.5)},
)
def em(alpha: float = 0.2, few_absent: float = 0.1) -> Method:
    """Cross-entropy on known labels, and unknown entries kept as uncertain as can be instead of called absent.

    Use it for single positives and other positives-only labels: missing positives are not punished, and present classes
    still rise above the rest. Scores are not probabilities: the paper thresholds at 0.75. With all labels known it
    equals `bce`.

        L = 1/(B·C) (Σ_known BCE − α Σ_unknown H(p)),  H(p) = −p log p − (1 − p) log(1 − p)

    The loss can be negative. Options: alpha (α); the paper's: 0.2 for VOC, 0.1 for COCO and NUS-WIDE, 0.01 for CUB.
    few_absent: what a known negative is charged where known positives outnumber them. Such negatives are the few that
    somebody was asked about; charged in full they would outweigh all that is kept uncertain (VOC 2012, 2,000 answers
    picked by `halflabel next`, one seed, frozen features: mAP 82.3 without them, 83.0 at 0.1, 80.1 at 1). The paper's
    figure (VOC 2012, one positive per image): mAP 89.09 against 85.89 of `an` and 89.42 with all labels.

    Differs from the released code: known negatives, which it refuses, are charged as known negatives; and it adds 1e-5
    inside every log.
    """
    return Method(BCE(), FewAbsent(few_absent), terms=[Entropy(-alpha)])


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="Zhou 2022 (Acknowledging the Unknown), EM loss + APL",
    tune={"alpha": (0.05, 0.1, 0.2, 0.5)},
)
def em_apl(
    alpha: float = 0.2,
    beta: float = 0.02,
    theta: float = 0.9,
    apl_from: int = 5,
    apl_to: int = 0,
    few_absent: float = 0.1,
) -> Method:
    """`em`, and after a warm-up the unknown entries with the lowest scores become soft negative labels, class by class.

    Use it for single positives and other positives-only labels when there is time for a pass over the training set per
    epoch. Only the negative side gets pseudo-labels (that is the asymmetry): most unknown entries are absent, so the
    lowest scores are almost surely right.

        L = 1/(B·C) (Σ_known BCE − α Σ_unknown H(p) + β Σ_pseudo [−s log p − (1 − s) log(1 − p)])
        after each epoch e with W ≤ e < E: of class c, the ⌊θ U_c / (E − W)⌋ lowest of the entries still unknown
        become pseudo-labels for good, with s = p as scored then; U_c = entries unknown at the start

    Options: alpha (α), beta (β), theta (θ, the share of unknown entries labelled in the end), apl_from (W, warm-up) and
    apl_to (E; 0 = the number of epochs trained, as in the paper). The paper's α, β, W: VOC 0.2, 0.02, 5; COCO 0.1, 0.9,
    5; NUS-WIDE 0.1, 0.2, 4; CUB 0.01, 0.4, 3; E = 10. few_absent: as in `em`. Training that ends before W is plain
    `em`. The paper's figure (VOC 2012, one positive per image): mAP 89.19 against 89.09 of `em` and 85.89 of `an`.

    Differs from the released code: known negatives stay known negatives (it would read one as a soft label of 1); and
    it adds 1e-5 inside every log.
    """
    if beta <= 0 or not 0 <= theta <= 1:
        raise UserError(f"beta {beta:g} and theta {theta:g} do not fit", "beta must be > 0, theta between 0 and 1")
    if apl_from < 1 or (apl_to and apl_to <= apl_from):
        raise UserError(f"apl_from {apl_from} and apl_to {apl_to} do not fit", "1 ≤ apl_from < apl_to, or apl_to = 0")
    return Method(BCE(), APL(beta, theta, apl_from, apl_to, few_absent), terms=[Entropy(-alpha)])


class FewAbsent(Relabeler):
    """Known + → (1, 0), known − → (0, 1), or (0, weight) where known positives outnumber them, unknown → (0, 0).

    With all labels known there is nothing that they could outweigh: 1 then.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.charged = 1.0

    def start(self, table: LabelTable) -> None:
        stats = table.stats()
        few = stats.positives.sum() > stats.negatives.sum() and stats.unknown.sum() > 0
        self.charged = self.weight if few else 1.0

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        dtype = widen(logits).dtype
        return Targets((batch.labels > 0).to(dtype), self.charged * (batch.labels < 0).to(dtype))


class APL(Relabeler):
    """Known + → (1, 0), known − → (0, 1), pseudo-labelled → (β s, β (1 − s)), still unknown → (0, 0).

    Memory: 4 bytes per image and class, 8 per image; beyond 2 GB of these 1 byte per image and class, in which s is
    wrong by at most 0.002. Equal scores are taken in an order that is a function of the images' names, so the order of
    the table does not matter; images that cannot be read stay unknown.
    """

    soft: Tensor | None  # (N, C) float32: s where pseudo-labelled, −1 where known, NaN where still unknown
    bytes: Soft | None  # the same for large tables
    quota: Tensor  # (C,) int64: pseudo-labels per sweep
    order: Tensor  # (N,) int64: images by the hash of their names

    def __init__(self, beta: float, theta: float, first: int, end: int, few_absent: float = 0.1) -> None:
        super().__init__()
        self.beta = beta
        self.theta = theta
        self.first = first
        self.given_end = end
        self.end = end
        self.known = FewAbsent(few_absent)
        self.bytes = None
        self.register_buffer("soft", None)
        self.register_buffer("quota", None, persistent=False)
        self.register_buffer("order", None, persistent=False)

    def plan(self, epochs: int) -> None:
        self.end = self.given_end or epochs

    def start(self, table: LabelTable) -> None:
        large = 4 * len(table) * len(table.classes) > LARGEST
        check_size(table, 1 if large else 4, "em-apl", sweeps=True)
        self.known.start(table)
        if large:
            self.bytes = Soft()
            self.bytes.start(table, "em-apl")
        else:
            self.soft = torch.full(table.shape, math.nan)
            image, column, _ = table.entries()
            self.soft[torch.from_numpy(image), torch.from_numpy(column.astype(np.int64))] = -1.0
        # The tiny addend: 0.29 · 100 is 28.999… in floating point, and 29 is meant.
        quota = np.floor(self.theta * table.stats().unknown / max(self.end - self.first, 1) + 1e-9)
        self.quota = torch.from_numpy(quota.astype(np.int64))
        self.order = torch.from_numpy(np.argsort(hash_names(table.images.array), kind="stable"))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        wide = widen(logits)
        pos, neg = self.known(batch, wide, epoch)
        rows = self.bytes.rows(batch.index) if self.soft is None else self.soft[batch.index]  # type: ignore[union-attr]
        soft = rows.to(wide.dtype)
        pseudo = soft >= 0
        pos = pos + torch.where(pseudo, self.beta * soft, 0)
        neg = neg + torch.where(pseudo, self.beta * (1 - soft), 0)
        return Targets(pos, neg)

    def wants_sweep(self, epoch: int) -> bool:
        return self.first <= epoch < self.end

    @torch.no_grad()
    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        images, classes = sweep.logits.shape
        step = max(_AT_ONCE // max(images, 1), 1)  # classes
        labelled = unknown = 0
        for first in range(0, classes, step):
            at = slice(first, first + step)
            soft = self.bytes.columns(at) if self.soft is None else self.soft[:, at]  # type: ignore[union-attr]
            soft = soft.to(self.order.device)
            self._label(sweep.logits[:, at].to(soft.device), soft, self.quota[at])
            if self.bytes is not None:
                self.bytes.set_columns(at, soft)
            labelled, unknown = labelled + int((soft >= 0).sum()), unknown + int((~(soft < 0)).sum())
        return {"pseudo_labels": float(labelled), "pseudo_share": labelled / max(unknown, 1)}

    def _label(self, logits: Tensor, soft: Tensor, quota: Tensor) -> None:
        """Turn the lowest still unknown entries of some classes into pseudo-labels: (N, c) logits and soft labels."""
        eligible = soft.isnan() & ~logits.isnan()
        # By logits rather than scores, which are equal where they underflow.
        keys = logits.masked_fill(~eligible, math.inf)[self.order]
        lowest = self.order[keys.argsort(dim=0, stable=True)[: int(quota.max())]]
        chosen = torch.arange(len(lowest), device=quota.device)[:, None] < quota
        chosen &= eligible.gather(0, lowest)
        labels = torch.where(chosen, logits.sigmoid().gather(0, lowest), soft.gather(0, lowest))
        soft.scatter_(0, lowest, labels)
