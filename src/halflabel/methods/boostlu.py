"""BoostLU: positive values of class maps, too small with incomplete labels, are amplified (Kim 2023)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from halflabel.features.heads import MapHead, pool
from halflabel.methods.base import REGIMES, Method, OneOrMore, method
from halflabel.methods.large_loss import LargeLoss
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import AssumeNegative, Relabeler
from halflabel.system.validate import between, one_of
from halflabel.types import Output

_SCHEMES = {"ll-r": ("reject", 0.5), "ll-ct": ("correct", 0.2), "ll-cp": ("keep", 0.1)}  # with Δ in percent


class BoostedMaps(MapHead):
    """x = mean over places of max(A, α·A): (B, D, h, w) -> logits (B, C), maps (B, C, h, w).

    Pooled features (B, D) are maps of one cell. Without `while_training` the boost is used in evaluation mode only.
    """

    def __init__(self, channels: int, classes: int, alpha: float = 5.0, while_training: bool = True) -> None:
        super().__init__(channels, classes)
        self.alpha = alpha
        self.while_training = while_training

    def forward(self, features: Tensor) -> Output:
        maps = self.class_maps(self.places(features))
        return Output(maps.mean(dim=(2, 3)), pool(features), maps)

    def class_maps(self, maps: Tensor) -> Tensor:
        scores = super().class_maps(maps)
        if self.training and not self.while_training:
            return scores
        return torch.maximum(scores, self.alpha * scores)


@method(
    serves=REGIMES,
    paper="Kim 2023 (Bridging the Gap between Model Explanations), BoostLU",
    tune={"alpha": (2.0, 5.0, 10.0)},
)
def boostlu(alpha: OneOrMore = 5.0, scheme: str = "ll-r", delta: float = 0.0, while_training: bool = True) -> Method:
    """Positive values of a class map are multiplied by α before they are averaged to the score.

    Use it for positives-only labels and objects that fill a small part of the image. It needs features with places
    (maps), which take more disk and memory than pooled ones.

        x_c = mean over places of BoostLU(A_c),   BoostLU(a) = max(a, α·a),   A = 1×1 convolution of the features
        loss of the scheme: `ll-r`, `ll-ct` or `ll-cp`, or "an" (unknown = absent)

    alpha (α); scheme; delta (Δ): percent, 0 = the scheme's default (.5, .2, .1); while_training: boost in training too,
    as in the paper with the large-loss schemes; false boosts predictions only, as in the paper with `an`.
    """
    one_of(("an", *_SCHEMES), scheme=scheme)
    relabel: Relabeler = AssumeNegative()
    if scheme != "an":
        kind, default_delta = _SCHEMES[scheme]
        relabel = LargeLoss(kind, delta or default_delta)
    between(0, 100, delta=delta)
    return Method(BCE(), relabel, head=partial(BoostedMaps, alpha=alpha, while_training=while_training))
