"""Losses of each entry, and the ways to reduce them to a scalar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from halflabel.errors import UserError
from halflabel.system.validate import between
from halflabel.types import Targets, at_least_float32

Reduce = Callable[[Tensor, Targets], Tensor]


class Loss(nn.Module):
    """A pair loss: loss = pos · ℓ⁺(x) + neg · ℓ⁻(x), from logits, in float32 or wider.

    A subclass implements `pair`. Memory: a few (B, C) tensors.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Where a subclass changes the loss, the `slope` of its base class no longer fits: compute it by autograd."""
        super().__init_subclass__(**options)
        if "slope" not in vars(cls) and {"pair", "forward"} & vars(cls).keys():
            cls.slope = Loss.slope  # type: ignore[method-assign]

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (ℓ⁺, ℓ⁻) of each logit: (B, C) -> two (B, C)."""
        raise TypeError(f"{type(self).__name__} has no pair form")

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        """Return the loss of each entry, not reduced: (B, C) -> (B, C)."""
        present, absent = self.pair(at_least_float32(logits))
        return targets.pos * present + targets.neg * absent

    def slope(self, logits: Tensor, targets: Targets) -> Tensor:
        """Return the derivative of the loss of each entry by its logit, of any shape."""
        with torch.enable_grad():
            x = logits.detach().requires_grad_()
            return torch.autograd.grad(self(x, targets).sum(), x)[0]


class BCE(Loss):
    """Binary cross-entropy: ℓ⁺ = softplus(−x) = −log p, ℓ⁻ = softplus(x) = −log(1 − p).

    With `smoothing` ε each is (1 − ε) of itself and ε of the other.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        present, absent = softplus(-logits), softplus(logits)
        if not self.smoothing:
            return present, absent
        return torch.lerp(present, absent, self.smoothing), torch.lerp(absent, present, self.smoothing)

    def slope(self, logits: Tensor, targets: Targets) -> Tensor:
        slope = torch.sigmoid(logits).mul_(targets.pos + targets.neg)
        present = torch.lerp(targets.pos, targets.neg, self.smoothing) if self.smoothing else targets.pos
        return slope.sub_(present)


class Focal(Loss):
    """Focal loss: ℓ⁺ = α (1 − p_m)^γ · −log p_m, ℓ⁻ = (1 − α) p^γ · −log(1 − p). Lin 2017, eq. 4 and 5.

    p = σ(x), p_m = σ(x − margin). With `alpha` 0 both weights are 1. The gradient includes the focusing weight.
    """

    def __init__(self, gamma: float = 2.0, alpha: float = 0.0, margin: float = 0.0) -> None:
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha
        self.margin = margin

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        present, absent = focal_present(logits - self.margin, self.gamma), focal_present(-logits, self.gamma)
        return (self.alpha * present, (1 - self.alpha) * absent) if self.alpha else (present, absent)


class ASL(Loss):
    """Asymmetric loss: ℓ⁺ = (1 − p)^γ⁺ · −log p, ℓ⁻ = q^γ⁻ · −log(1 − q) with q = max(p − m, 0). Ridnik 2021.

    Absent entries with p ≤ m (the margin) have no loss. `detach` keeps the focusing weights out of the gradient.
    """

    def __init__(
        self, gamma_neg: float = 4.0, gamma_pos: float = 0.0, margin: float = 0.05, detach: bool = False
    ) -> None:
        super().__init__()
        self.gamma_neg = gamma_neg
        self.gamma_pos = gamma_pos
        self.margin = margin
        self.detach = detach

    def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        present, absent = softplus(-logits), softplus(logits)
        present_weight, absent_weight = _score_to(self.gamma_pos, -logits), _score_to(self.gamma_neg, logits)
        if self.margin:
            shifted = (torch.sigmoid(logits) - self.margin).clamp(min=0)
            absent = -torch.log1p(-shifted)
            # 0^γ has an infinite gradient for γ < 1; where the shifted score is 0 the loss is 0 anyway.
            absent_weight = shifted.where(shifted > 0, 1).pow(self.gamma_neg)
        if self.detach:
            present_weight, absent_weight = present_weight.detach(), absent_weight.detach()
        return present_weight * present, absent_weight * absent


def focal_present(logits: Tensor, gamma: float) -> Tensor:
    """(1 − p)^γ · −log p, finite at any logit and any γ ≥ 0."""
    return _score_to(gamma, -logits) * softplus(-logits)


def _score_to(power: float, logits: Tensor) -> Tensor:
    """σ(x)^power as exp(−power · softplus(−x)): its gradient stays finite where the score underflows."""
    return torch.exp(-power * softplus(-logits))


def over_entries(loss: Tensor, targets: Targets) -> Tensor:
    """Mean over all B·C entries, including unknown ones."""
    return loss.mean()


def over_images(loss: Tensor, targets: Targets) -> Tensor:
    """Sum over classes, mean over the B images."""
    return loss.sum() / max(len(loss), 1)


def over_known(loss: Tensor, targets: Targets) -> Tensor:
    """Sum divided by the number of entries of the batch with a target (at least 1)."""
    entries = ((targets.pos > 0) | (targets.neg > 0)).sum().clamp(min=1)
    return loss.sum() / entries


def _check_gamma(gamma: float) -> None:
    between(-10, 10, gamma=gamma)  # beyond, p^γ of few known labels overflows


@dataclass(frozen=True)
class ByShare:
    """1/B Σ_i g(p_i)/C Σ_c loss_ic, g(p) = α p^γ + β, p_i = the share of image i's entries with a target.

    Durand 2019, eq. 1 and 2 (partial-BCE). An image without known labels has no loss.

    >>> reduce = ByShare.through(0.1, 5.0)
    >>> round(reduce.alpha, 2), round(reduce.beta, 2)
    (-4.44, 5.44)
    """

    alpha: float
    beta: float
    gamma: float = 1.0

    @classmethod
    def through(cls, share: float, value: float, gamma: float = 1.0) -> ByShare:
        """Return the g with this γ, g(share) = value and g(1) = 1: α = (value − 1)/(share^γ − 1), β = 1 − α."""
        _check_gamma(gamma)
        if not 0 < share < 1 or gamma == 0:
            raise UserError(
                f"no g(p) = α·p^{gamma:g} + β has g({share:g}) = {value:g} and g(1) = 1",
                "use a share between 0 and 1, and a gamma other than 0",
            )
        alpha = (value - 1) / (share**gamma - 1)
        return cls(alpha, 1 - alpha, gamma)

    @classmethod
    def from_options(
        cls, g_value: float, g_share: float, gamma: float, alpha: float = 0.0, beta: float = 0.0
    ) -> ByShare:
        """Return the g with these α and β, if either is not 0, else the one through g(g_share) = g_value."""
        return cls(alpha, beta, gamma) if alpha or beta else cls.through(g_share, g_value, gamma)

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
        # A negative g would reward mistakes. g is monotonic from p = 0 to 1, so it is enough to check the two ends; at
        # 0 with γ < 0, α p^γ dominates β.
        at_zero = self.beta if self.gamma > 0 or self.alpha == 0 else self.alpha if self.gamma < 0 else 0.0
        if self.alpha + self.beta < 0 or at_zero < 0:
            raise UserError(
                f"g(p) = {self.alpha:g}·p^{self.gamma:g} + {self.beta:g} is negative for some shares p",
                "choose alpha, beta, gamma, or the value of g at one share, so that g(p) ≥ 0 from p = 0 to 1",
            )

    def __call__(self, loss: Tensor, targets: Targets) -> Tensor:
        entries = ((targets.pos > 0) | (targets.neg > 0)).sum(1).clamp(min=1)  # with 0, γ < 0 would give infinity
        share = entries.to(loss.dtype) / max(loss.shape[1], 1)
        return ((self.alpha * share**self.gamma + self.beta) * loss.mean(1)).sum() / max(len(loss), 1)


def total(loss: Tensor, targets: Targets) -> Tensor:
    """Sum over all entries of the batch; the learning rate then depends on the batch size."""
    return loss.sum()
