"""Assume negative with ℓ1 or ℓ2 regularisation (rows of Zhou 2022)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from halflabel.features.heads import Model
from halflabel.methods.base import REGIMES, Method, NonNegative, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import AssumeNegative
from halflabel.methods.parts.terms import UnknownScores
from halflabel.types import Batch

_SCORE_STRENGTHS = (0.01, 0.1, 1.0)  # values to try if scores are regularised instead of weights


@method(
    serves=REGIMES,
    paper="Zhou 2022 (EM+APL), row L1R",
    weight_decay=0.0,
    tune=lambda options: {"strength": _SCORE_STRENGTHS if options["of"] == "scores" else (1e-6, 1e-5, 1e-4)},
)
def l1r(strength: NonNegative = 1e-5, of: Literal["weights", "scores"] = "weights") -> Method:
    """Unknown taken as absent, plus ℓ1 regularisation, which drives most weights to zero.

    A row of the paper's table, which shows that regularising `an` does not help; not recommended.

        L = L_AN + λ Σ |w|                       of="weights": the trained weights without biases and norms
        L = L_AN + λ/(B·C) Σ_unknown p           of="scores": the scores of unknown entries

    The paper (a poster) does not say what is regularised, nor λ: both are options. Options: strength (λ; for scores try
    0.1), of. The default weight decay is 0, so that there is no other regularisation.
    """
    return _regularised(1, strength, of)


@method(
    serves=REGIMES,
    paper="Zhou 2022 (EM+APL), row L2R",
    weight_decay=0.0,
    tune=lambda options: {"strength": _SCORE_STRENGTHS if options["of"] == "scores" else (1e-5, 1e-4, 1e-3)},
)
def l2r(strength: NonNegative = 1e-4, of: Literal["weights", "scores"] = "weights") -> Method:
    """Unknown taken as absent, plus ℓ2 regularisation, which keeps all weights small.

    As `l1r`, and not recommended either. As part of the loss it differs from the optimizer's weight decay, which AdamW
    applies separately from the gradient.

        L = L_AN + λ Σ w²                        of="weights": the trained weights without biases and norms
        L = L_AN + λ/(B·C) Σ_unknown p²          of="scores": the scores of unknown entries

    strength (λ) and of: as in `l1r`.
    """
    return _regularised(2, strength, of)


class RegularisedWeights(Method):
    """Assume negative + λ Σ |w|^power over the trained weights, except one-dimensional ones (biases, norms)."""

    def __init__(self, power: int, strength: float) -> None:
        super().__init__(BCE(), AssumeNegative())
        self.power = power
        self.strength = strength

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        loss = super().step(model, batch, epoch)
        for weight in model.parameters():
            if weight.requires_grad and weight.ndim > 1:
                loss = loss + self.strength * weight.abs().pow(self.power).sum()
        return loss


def _regularised(power: int, strength: float, of: str) -> Method:
    if of == "weights":
        return RegularisedWeights(power, strength)
    return Method(BCE(), AssumeNegative(), terms=[UnknownScores(power, strength)])
