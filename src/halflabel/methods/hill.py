"""Hill loss and SPLC: robust losses for labels that miss positives (Zhang 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from halflabel.methods.base import REGIMES, FromEpoch, Method, NonNegative, OneOrMore, Share, method
from halflabel.methods.parts.losses import Focal, Loss, focal_present, over_images
from halflabel.methods.parts.relabel import AssumeNegative, Begins, Relabeler
from halflabel.types import Batch, Targets, at_least_float32

_PAPER = "Zhang 2021 (Simple and Robust Loss Design for Multi-Label Learning with Missing Labels)"


class Hill(Loss):
    """ℓ⁺ = (1 − p_m)^γ · −log p_m, ℓ⁻ = (λ − p) · p², with p = σ(x), p_m = σ(x − m)."""

    def __init__(self, margin: float = 1.0, gamma: float = 2.0, lamb: float = 1.5) -> None:
        super().__init__()
        self.margin = margin
        self.gamma = gamma
        self.lamb = lamb

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.sigmoid(logits)
        return focal_present(logits - self.margin, self.gamma), (self.lamb - p) * p.square()


class SelfPaced(Relabeler):
    """Unknown → absent, but from epoch `start_epoch` on, an unknown with p > τ → present, for this step only."""

    def __init__(self, tau: float = 0.6, start_epoch: int = 2, flip_known: bool = False) -> None:
        super().__init__()
        self.tau = tau
        self.start_epoch = start_epoch
        self.flip_known = flip_known

    def begins(self) -> Begins | None:
        return Begins("correcting labels", self.start_epoch, "start_epoch")

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        present = batch.labels > 0
        if epoch >= self.start_epoch:
            may_flip = batch.labels <= 0 if self.flip_known else batch.labels == 0
            present = present | (may_flip & (torch.sigmoid(at_least_float32(logits)) > self.tau))
        return Targets(present.to(logits.dtype), (~present).to(logits.dtype))


class KnownMargin(Method):
    """A step with the margin for known positives only: their logits are lowered before the loss."""

    def __init__(self, loss: Loss, relabel: SelfPaced, margin: float) -> None:
        super().__init__(loss, relabel, reduce=over_images)
        self.margin = margin

    def step(self, model: torch.nn.Module, batch: Batch, epoch: int) -> Tensor:
        logits = model(batch.views[0]).logits
        targets = self.relabel(batch, logits.detach(), epoch)
        lowered = torch.where(batch.labels > 0, logits - self.margin, logits)
        return self.reduce(self.loss(lowered, targets), targets)


@method(serves=REGIMES, paper=_PAPER, lr=1e-3, tune={"lamb": (1.3, 1.5, 2.0)})
def hill(margin: NonNegative = 1.0, gamma: NonNegative = 2.0, lamb: OneOrMore = 1.5) -> Method:
    """A loss with less gradient for high-scoring negatives, which may be positives that nobody labelled.

    Use it for positives-only labels if you want a method without state or schedule; with many known negatives prefer
    `splc` or `csl`, which trust them: here they get less gradient too.

        L = 1/B Σ_i (Σ_present ℓ⁺ + Σ_{absent or unknown} ℓ⁻)
        ℓ⁺ = (1 − p_m)^γ · −log p_m,  p_m = σ(x − m)      ℓ⁻ = (λ − p) · p²

    margin (m): how far above 0 the logit of a positive must be; gamma (γ): focal weight of positives; lamb (λ): the
    score of an absent entry is lowered while p < 2λ/3 and raised above, so below 1.5 the highest scores rise.

    Differs from the released code: the sum over the batch is divided by the number of images, so that the batch size
    does not scale the gradient.
    """
    return Method(Hill(margin, gamma, lamb), AssumeNegative(), reduce=over_images)


@method(serves=REGIMES, paper=_PAPER, lr=3e-4, tune={"tau": (0.5, 0.6, 0.7, 0.8)})
def splc(
    tau: Share = 0.6,
    margin: NonNegative = 1.0,
    gamma: NonNegative = 2.0,
    start_epoch: FromEpoch = 2,
    released: bool = False,
) -> Method:
    """Unknown entries count as absent, unless the model scores them above a threshold: then, for that step, as present.

    Self-paced loss correction of the focal margin loss; nothing is stored between steps. Use it if missing labels are
    mostly missing positives; if scores are much too high after the first epoch, raise tau or start_epoch.

        L = 1/B Σ_i (Σ_present ℓ⁺ + Σ_absent ℓ⁻ + Σ_unknown (p > τ ? ℓ⁺ : ℓ⁻))
        ℓ⁺ = (1 − p_m)^γ · −log p_m,  p_m = σ(x − m)      ℓ⁻ = p^γ · −log(1 − p)

    tau (τ): score above which an unknown counts as present; start_epoch: the first epoch, counted from 1, in which that
    happens (the papers' "epoch 1" counts from 0); margin (m) and gamma (γ) as in `hill`; released: see below.

    Differs from the released code: known negatives are never flipped, and a flipped entry has the loss ℓ⁺ with
    the margin, as in the paper's formula. With released=True known negatives are flipped like unknowns, and flipped
    entries use ℓ⁺ without the margin, as there. In both the sum is divided by the number of images.
    """
    if released:
        return KnownMargin(Focal(gamma), SelfPaced(tau, start_epoch, flip_known=True), margin)
    return Method(Focal(gamma, margin=margin), SelfPaced(tau, start_epoch), reduce=over_images)
