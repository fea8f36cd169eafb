"""BoostLU: class maps learned from incomplete labels say "present" too faintly, so they are amplified (Kim 2023)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.methods.base import REGIMES, Method, method
from halflabel.methods.large_loss import LargeLoss
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import AssumeNegative, Relabeler
from halflabel.models.heads import Head, pool
from halflabel.system.validate import at_least, between
from halflabel.types import Output

__all__ = ["BoostedMaps", "boostlu"]

_SCHEMES = {"ll-r": ("reject", 0.5), "ll-ct": ("correct", 0.2), "ll-cp": ("keep", 0.1)}  # with Δ in percent


class BoostedMaps(Head):
    """Class maps A = W · features + b at each place; x = mean over places of max(A, α·A), α ≥ 1.

    (B, D, h, w) -> logits (B, C), maps (B, C, h, w). Pooled features (B, D) are maps of one cell. Without
    `while_training` the boost acts in evaluation mode only. Memory: 4·(D + 1) bytes per class.
    """

    needs_maps = True

    def __init__(self, channels: int, classes: int, alpha: float = 5.0, while_training: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, 1)
        self.alpha = alpha
        self.while_training = while_training

    def forward(self, features: Tensor) -> Output:
        maps = self.class_maps(features if features.ndim == 4 else features[:, :, None, None])
        return Output(maps.mean(dim=(2, 3)), pool(features), maps)

    def class_maps(self, maps: Tensor) -> Tensor:
        scored: Tensor = self.conv(maps)
        if self.training and not self.while_training:
            return scored
        return torch.maximum(scored, self.alpha * scored)


@method(
    serves=REGIMES,
    paper="Kim 2023 (Bridging the Gap between Model Explanations), BoostLU",
    tune={"alpha": (2.0, 5.0, 10.0)},
)
def boostlu(alpha: float = 5.0, scheme: str = "ll-r", delta: float = 0.0, while_training: bool = True) -> Method:
    """Where a class map is positive it is multiplied by α before it is averaged to the score.

    Trained with missing positives, a model looks at the right places but with too little conviction; the boost makes
    up for that, and lets the large-loss scheme beside it see missing positives sooner. Use it for positives-only labels
    and objects that fill a small part of the image; it needs features with places (maps), which take more disk and
    memory than pooled ones.

        x_c = mean over places of BoostLU(A_c),   BoostLU(a) = max(a, α·a),   A = 1×1 convolution of the features
        loss as in the scheme: `ll-r`, `ll-ct` or `ll-cp`, or "an" (unknown = absent, nothing modified)

    alpha α; scheme; delta Δ: percent, 0 takes the scheme's own (.5, .2, .1); while_training: boost in training too, as
    the paper does with the large-loss schemes; false boosts scores only, the paper's way with a model trained by `an`.
    """
    relabel: Relabeler
    if scheme == "an":
        relabel = AssumeNegative()
    elif scheme in _SCHEMES:
        kind, own = _SCHEMES[scheme]
        relabel = LargeLoss(kind, delta or own)
    else:
        raise UserError(f"boostlu has no scheme {scheme!r}", f"use an, {', '.join(_SCHEMES)}")
    at_least(1, alpha=alpha)
    between(0, 100, delta=delta)
    return Method(BCE(), relabel, head=partial(BoostedMaps, alpha=alpha, while_training=while_training))
