"""Generalised robust loss for single-positive labels (Chen 2024)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from halflabel.methods.base import REGIMES, Duration, Method, NonNegative, Positive, method
from halflabel.methods.parts.losses import BCE, Loss
from halflabel.methods.parts.relabel import Relabeler
from halflabel.types import Batch, Targets, at_least_float32

Ends = tuple[float, float]  # the first and the last value of a number that changes over the epochs


class GeneralisedCE(Loss):
    """ℓ⁺ = (1 − p^q⁺)/q⁺, ℓ⁻ = (1 − (1 − p)^q⁻)/q⁻: cross-entropy for q → 0, absolute error for q = 1."""

    def __init__(self, q_pos: float = 0.01, q_neg: float = 1.0) -> None:
        super().__init__()
        self.q_pos = q_pos
        self.q_neg = q_neg

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return box_cox(softplus(-logits), self.q_pos), box_cox(softplus(logits), self.q_neg)


def box_cox(cross_entropy: Tensor, q: float) -> Tensor:
    """(1 − exp(−q·ce))/q, which is (1 − p^q)/q for ce = −log p; ce itself for q = 0."""
    return -torch.expm1(-q * cross_entropy) / q if q else cross_entropy


class SoftUnknown(Relabeler):
    """Unknown → (V·K, V·(1 − K)); each of w, b, μ, σ moves linearly from its first to its last value."""

    def __init__(self, w: Ends, b: Ends, mu: Ends, sigma: Ends, span: int) -> None:
        super().__init__()
        self.w = w
        self.b = b
        self.mu = mu
        self.sigma = sigma
        self.span = span
        self.epochs = span or 8

    def plan(self, epochs: int) -> None:
        self.epochs = self.span or epochs

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        p = torch.sigmoid(at_least_float32(logits))
        present = torch.sigmoid(self._value(self.w, epoch - 1) * p + self._value(self.b, epoch - 1))
        weight = torch.exp(-0.5 * ((p - self._value(self.mu, epoch)) / self._value(self.sigma, epoch)).square())
        unknown = weight * (batch.labels == 0)
        return Targets((batch.labels > 0) + unknown * present, (batch.labels < 0) + unknown * (1 - present))

    def _value(self, ends: Ends, epochs: int) -> float:
        share = min(epochs / self.epochs, 1.0)
        return (1 - share) * ends[0] + share * ends[1]


class SeparateLosses(Method):
    """A step with two losses: `known` for known entries, `loss` for unknown ones."""

    def __init__(self, loss: Loss, relabel: Relabeler, known: Loss) -> None:
        super().__init__(loss, relabel)
        self.known = known

    def step(self, model: torch.nn.Module, batch: Batch, epoch: int) -> Tensor:
        logits = model(batch.views[0]).logits
        targets = self.relabel(batch, logits.detach(), epoch)
        known = batch.labels != 0
        return self.reduce(torch.where(known, self.known(logits, targets), self.loss(logits, targets)), targets)


@method(
    serves=REGIMES,
    paper="Chen 2024 (Boosting Single Positive Multi-label Classification with Generalized Robust Loss)",
    tune={"w_last": (0.0, 2.0, 4.0)},
)
def gr(
    w_first: float = 0.0,
    w_last: float = 2.0,
    b_first: float = -2.0,
    b_last: float = -2.0,
    mu_first: float = 0.5,
    mu_last: float = 0.8,
    sigma_first: Positive = 2.0,
    sigma_last: Positive = 0.5,
    q_pos: NonNegative = 0.01,
    q_neg: NonNegative = 1.0,
    span: Duration = 0,
) -> Method:
    """Each unknown entry gets a soft label and a weight from its own score, and robust losses.

    Use it for one known positive per image; the defaults are the paper's values for VOC.

        L = 1/(B·C) (Σ_present −log p + Σ_absent −log(1 − p) + Σ_unknown V·(K·L₂ + (1 − K)·L₃))
        K = σ(w·p + b)   V = exp(−(p − μ)²/(2σ²))   L₂ = (1 − p^q₂)/q₂   L₃ = (1 − (1 − p)^q₃)/q₃

    K and V have no gradient. w_first to w_last, b_first to b_last, mu_first to mu_last and sigma_first to sigma_last:
    w, b, μ and σ move linearly from first to last over `span` epochs (0 = all epochs; 8 in the paper). q_pos (q₂) and
    q_neg (q₃).

    As in the released code, w and b move with (epoch − 1)/span and μ and σ with epoch/span. Differs from it: known
    negatives have the loss −log(1 − p) (there they have none), and no constant is added inside the logarithm.
    """
    relabel = SoftUnknown((w_first, w_last), (b_first, b_last), (mu_first, mu_last), (sigma_first, sigma_last), span)
    return SeparateLosses(GeneralisedCE(q_pos, q_neg), relabel, known=BCE())
