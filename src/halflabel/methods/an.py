"""Assume negative: what nobody has labelled is taken to be absent; and the usual ways to soften that."""

from __future__ import annotations

import torch
from torch import Tensor

from halflabel.errors import UserError
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import AssumeNegative, Relabeler
from halflabel.methods.parts.terms import Entropy, Term
from halflabel.models.heads import Model
from halflabel.system import distributed
from halflabel.system.validate import at_least, between
from halflabel.types import Batch, Output, Targets, at_least_float32

__all__ = ["an", "an_ls", "entmin", "l1r", "l2r", "n_ls", "wan"]

_OF_SCORES = (0.01, 0.1, 1.0)  # strengths to try where scores are regularised, not weights


@method(serves=REGIMES, paper="common baseline; Zhou 2022 (EM+APL), row AN")
def an() -> Method:
    """Binary cross-entropy with every unknown entry taken as absent.

    The baseline for positives-only labels: it learns from missing positives as if they were negatives, so scores are
    too low. Report it beside every other method, with the oracle.

        L = 1/(B·C) (Σ_present −log p + Σ_{absent or unknown} −log(1 − p))

    The paper's figure (VOC 2012, one positive per image, ResNet-50): mAP 85.89; all labels known 89.42.
    """
    return Method(BCE(), AssumeNegative())


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="common baseline; Zhou 2022 (EM+APL), row LS; Cole 2021 (ROLE), row AN-LS",
    tune={"smoothing": (0.05, 0.1, 0.2)},
)
def an_ls(smoothing: float = 0.1) -> Method:
    """Unknown taken as absent, with label smoothing on both signs: no label is trusted fully.

    Use it where `an` pushes scores too low: a missing positive then costs less, and so does a wrong label. Known labels
    are smoothed too, by intent.

        L = 1/(B·C) Σ (1 − ε) · own term + ε · opposite term

    Options: smoothing (ε), the full 0.1 as in the released code, not half of it. The paper's figure (VOC 2012, one
    positive per image): mAP 87.90 against 85.89 of `an`.

    Measured here the gain appears where the whole network learns (digit scenes from scratch: 34.3 against 33.0) and not
    for a linear head on frozen features (VOC 2012: 79.3 against 79.6): such a head cannot learn missing positives by
    heart, which is what smoothing prevents.
    """
    between(0, 1, smoothing=smoothing)
    return SmoothedKnown(BCE(), Smoothed(smoothing, known=True))


@method(lr=3e-4, serves=REGIMES, paper="Zhou 2022 (EM+APL), row N-LS", tune={"smoothing": (0.05, 0.1, 0.2)})
def n_ls(smoothing: float = 0.1) -> Method:
    """Unknown taken as absent, with label smoothing on these assumed negatives only; known labels are trusted fully.

    Use it in place of `an-ls` where the known labels are right. With all labels known it equals `bce`.

        L = 1/(B·C) (Σ_known BCE + Σ_unknown −ε log p − (1 − ε) log(1 − p))

    Options: smoothing (ε). The paper's figure (VOC 2012, one positive per image): mAP 88.12 against 85.89 of `an`. On a
    linear head over frozen features there is little to gain (79.8 against 79.6); see `an-ls`.
    """
    between(0, 1, smoothing=smoothing)
    return Method(BCE(), Smoothed(smoothing, known=False))


@method(serves=REGIMES, paper="Zhou 2022 (EM+APL), row DW; Cole 2021 (ROLE), row WAN")
def wan() -> Method:
    """Unknown taken as absent at the small weight 1/(C − 1), so that one known positive weighs as much as all of them.

    A simple and quick improvement of `an` when an image has one or few known positives; scores come out too high, so
    set thresholds on labelled images.

        L = 1/(B·C) (Σ_known BCE + 1/(C − 1) Σ_unknown −log(1 − p))

    The paper's figure (VOC 2012, one positive per image): mAP 86.98 against 85.89 of `an`.
    Differs from the released code: known negatives weigh 1 here; it has none and would give them 1/(C − 1).
    """
    return Method(BCE(), SharedNegative())


@method(
    serves=REGIMES,
    paper="Zhou 2022 (EM+APL), row L1R",
    weight_decay=0.0,
    tune=lambda given: {"strength": _OF_SCORES if given["of"] == "scores" else (1e-6, 1e-5, 1e-4)},
)
def l1r(strength: float = 1e-5, of: str = "weights") -> Method:
    """Unknown taken as absent, plus ℓ1 regularisation, which drives most weights to zero.

    A row of the paper's table, to show that regularising `an` does not mend it; not one to choose.

        L = L_AN + λ Σ |w|                       of="weights": of the trained weights, not of biases and norms
        L = L_AN + λ/(B·C) Σ_unknown p           of="scores": of the unknown entries' scores

    The paper (a poster) does not say what is regularised, nor λ: both are options. Options: strength (λ; of scores try
    0.1), of. The default for weight decay is 0, so that nothing else regularises. The paper's figure (VOC 2012, one
    positive per image): mAP 85.97 against 85.89 of `an`.
    """
    return _regularised(1, strength, of)


@method(
    serves=REGIMES,
    paper="Zhou 2022 (EM+APL), row L2R",
    weight_decay=0.0,
    tune=lambda given: {"strength": _OF_SCORES if given["of"] == "scores" else (1e-5, 1e-4, 1e-3)},
)
def l2r(strength: float = 1e-4, of: str = "weights") -> Method:
    """Unknown taken as absent, plus ℓ2 regularisation, which keeps all weights small.

    A row of the paper's table, to show that regularising `an` does not mend it; not one to choose. As part of the loss
    it is not the same as the optimizer's weight decay, which AdamW applies apart from the gradient.

        L = L_AN + λ Σ w²                        of="weights": of the trained weights, not of biases and norms
        L = L_AN + λ/(B·C) Σ_unknown p²          of="scores": of the unknown entries' scores

    The paper (a poster) does not say what is regularised, nor λ: both are options. Options: strength (λ; of scores try
    0.1), of. The default for weight decay is 0, so that nothing else regularises. The paper's figure (VOC 2012, one
    positive per image): mAP 85.96 against 85.89 of `an`.
    """
    return _regularised(2, strength, of)


@method(serves=REGIMES, paper="Zhou 2022 (EM+APL), row EntMin", tune={"alpha": (0.05, 0.1, 0.2, 0.5)})
def entmin(alpha: float = 0.2) -> Method:
    """Binary cross-entropy on known labels, and unknown entries pushed to whichever side they lean: least entropy.

    With known negatives it is the classic of semi-supervised learning. With positives only it collapses, as nothing
    holds the scores down: that is its row in the paper's table, the opposite of `em`. Do not choose it there.

        L = 1/(B·C) (Σ_known BCE + α Σ_unknown H(p)),  H(p) = −p log p − (1 − p) log(1 − p)

    Options: alpha (α), which the paper does not give; the default is that of `em`. The paper's figure (VOC 2012, one
    positive per image): mAP 53.16 against 85.89 of `an`.
    """
    at_least(0, alpha=alpha)
    return Method(BCE(), terms=[Entropy(alpha)])


class Smoothed(Relabeler):
    """Unknown assumed negative, then (pos, neg) → ((1 − ε) pos + ε neg, (1 − ε) neg + ε pos) for all or unknown."""

    is_static = True

    def __init__(self, smoothing: float, known: bool) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.known = known
        self.assume = AssumeNegative()

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        pos, neg = self.assume(batch, logits, epoch)
        smoothed = torch.ones_like(pos) if self.known else (batch.labels == 0).to(pos.dtype)
        share = self.smoothing * smoothed
        return Targets((1 - share) * pos + share * neg, (1 - share) * neg + share * pos)


class SmoothedKnown(Method):
    """A method that charges known labels on both sides."""

    changes_known = True


class SharedNegative(Relabeler):
    """Known + → (1, 0), known − → (0, 1), unknown → (0, 1/(C − 1))."""

    is_static = True

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        targets: Targets = AssumeNegative(1 / max(logits.shape[1] - 1, 1))(batch, logits, epoch)
        return targets


class RegularisedWeights(Method):
    """Assume negative + λ Σ |w|^power over the trained weights; those of one axis (biases, norms) are left out."""

    def __init__(self, power: int, strength: float) -> None:
        super().__init__(BCE(), AssumeNegative())
        self.power = power
        self.strength = strength

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        loss = super().step(model, batch, epoch)
        for weight in model.parameters():
            if weight.requires_grad and weight.ndim > 1:
                loss = loss + self.strength * distributed.full_tensor(weight.abs().pow(self.power).sum())
        return loss


class UnknownScores(Term):
    """λ/(B·C) · Σ p^power over the unknown entries."""

    def __init__(self, power: int, strength: float) -> None:
        super().__init__()
        self.power = power
        self.strength = strength

    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        scores = torch.sigmoid(at_least_float32(output.logits)).pow(self.power)
        return self.strength * (scores * (batch.labels == 0)).sum() / max(scores.numel(), 1)


def _regularised(power: int, strength: float, of: str) -> Method:
    at_least(0, strength=strength)
    match of:
        case "weights":
            return RegularisedWeights(power, strength)
        case "scores":
            return Method(BCE(), AssumeNegative(), terms=[UnknownScores(power, strength)])
    raise UserError(f"of={of!r} cannot be regularised", "use of=weights or of=scores")
