"""Class-aware selective loss (Ben-Baruch 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from halflabel.labels.table import Table
from halflabel.methods.base import AfterEpoch, Count, Method, NonNegative, Share, method
from halflabel.methods.large_loss import largest
from halflabel.methods.parts.losses import ASL, over_images
from halflabel.methods.parts.relabel import Begins, Relabeler
from halflabel.types import Batch, Targets, at_least_float32


class Selective(Relabeler):
    """Known + → ((1 − p)^γ⁺, 0); known − → (0, q^γ⁻); unknown → (0, q^γ_unknown), or (0, 0) if likely present.

    The weights have no gradient. Memory: 4 bytes per class.
    """

    prior: Tensor  # (C,) mean of p
    seen: Tensor  # () images in that mean

    def __init__(
        self,
        topk: int,
        prior_threshold: float,
        prior_epochs: int,
        gamma_pos: float,
        gamma_neg: float,
        gamma_unknown: float,
        margin: float,
    ) -> None:
        super().__init__()
        self.gamma_pos = gamma_pos
        self.gamma_neg = gamma_neg
        self.gamma_unknown = gamma_unknown
        self.topk = topk
        self.prior_threshold = prior_threshold
        self.prior_epochs = prior_epochs
        self.margin = margin

    def begins(self) -> Begins | None:
        return Begins("learning from unknown entries", self.prior_epochs + 1, "prior_epochs")

    def start(self, table: Table) -> None:
        self.register_buffer("prior", torch.zeros(len(table.classes)))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        logits = at_least_float32(logits)
        p = torch.sigmoid(logits)
        if epoch == self.prior_epochs and self.training:
            self._learn_prior(p)
        unknown = batch.labels == 0
        assumed_absent = (
            unknown & ~self._likely(logits, unknown) if epoch > self.prior_epochs else torch.zeros_like(unknown)
        )
        excess = (p - self.margin).clamp(min=0)
        pos = (batch.labels > 0) * torch.sigmoid(-logits).pow(self.gamma_pos)
        neg = (batch.labels < 0) * excess.pow(self.gamma_neg) + assumed_absent * excess.pow(self.gamma_unknown)
        return Targets(pos, neg)

    def _learn_prior(self, p: Tensor) -> None:
        self.seen += len(p)
        self.prior += (p.sum(dim=0) - len(p) * self.prior).to(self.prior.dtype) / self.seen

    def _likely(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Return the unknown entries that must not be taken as absent: (B, C) bool."""
        return largest(logits, unknown, self.topk * len(logits)) | (self.prior > self.prior_threshold)


@method(
    serves=("full", "partial"),
    paper="Ben-Baruch 2022 (Multi-label Classification with Partial Annotations using Class-aware Selective Loss)",
    lr=3e-4,
    tune={"topk": (0, 1, 5)},
)
def csl(
    topk: Count = 5,
    prior_threshold: Share = 0.05,
    prior_epochs: AfterEpoch = 2,
    gamma_pos: NonNegative = 0.0,
    gamma_neg: NonNegative = 1.0,
    gamma_unknown: NonNegative = 4.0,
    margin: Share = 0.0,
) -> Method:
    """Unknown entries are weak negatives, except where the class prior or the score suggests that they are present.

    Use it for partly known ± labels with many classes (it was designed for Open Images).

        L = 1/B Σ (Σ_present −(1 − p)^γ⁺ log p + Σ_absent −q^γ⁻ log(1 − q) + Σ_unknown −ω q^γᵘ log(1 − q))
        ω = 0 where prior_c > η, or among the K·B largest p of the batch's unknowns, else 1;   q = max(p − margin, 0)

    The factors p^γ have no gradient. topk (K); prior_threshold (η); prior_epochs: epochs that ignore all unknown
    entries, the last of which gives the prior (0: no prior); gamma_pos (γ⁺), gamma_neg (γ⁻), gamma_unknown (γᵘ);
    margin: p below which an absent entry has no loss. With few classes a small topk is enough: K·B of B·C entries are
    ignored.

    Differs from the released code: the prior comes from the first epochs of the same run, not from a separate model and
    a file; entries that tie with the K·B-th are ignored with it; the sum is divided by the number of images.
    """
    relabel = Selective(topk, prior_threshold, prior_epochs, gamma_pos, gamma_neg, gamma_unknown, margin)
    # Without focusing, the asymmetric loss is cross-entropy with a margin; the targets have the focusing weights.
    return Method(ASL(0.0, 0.0, margin), relabel, reduce=over_images)
