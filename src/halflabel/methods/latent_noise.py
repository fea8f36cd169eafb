"""Separates what an image shows from what people report (Misra 2016)."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from halflabel.features.heads import Head, pool
from halflabel.methods.base import REGIMES, Method, NonNegative, method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.types import Output, at_least_float32


def relevance(visual: Tensor, present: Tensor, absent: Tensor) -> Tensor:
    """The logit of h = r₁ v + r₀ (1 − v) from the logits of v, r₁ and r₀, all of one shape.

    log h and log(1 − h) = log((1 − r₁) v + (1 − r₀) (1 − v)) are computed by logsumexp, so the result is finite for any
    finite logits.
    """
    shown, hidden = logsigmoid(visual), logsigmoid(-visual)
    reported = torch.stack([shown + logsigmoid(present), hidden + logsigmoid(absent)]).logsumexp(0)
    not_reported = torch.stack([shown + logsigmoid(-present), hidden + logsigmoid(-absent)]).logsumexp(0)
    return reported - not_reported


class LatentNoiseHead(Head):
    """A visual classifier v, and the relevance h: the probability that a class is reported.

    In training the logits are those of h; in evaluation those of `score`: "visual" (v) or "relevance" (h). At the start
    W₁ = W₀ = 0, b₁ = `first`, b₀ = −`first`. (B, D) or (B, D, h, w) -> logits (B, C). Class maps are those of v.
    """

    adds_names = False  # in training the logits are those of h

    def __init__(
        self, channels: int, classes: int, score: str = "visual", first: float = 3.0, rate: float = 0.01
    ) -> None:
        super().__init__()
        self.score = score
        self.rate = rate
        self.visual = nn.Linear(channels, classes)
        self.present = nn.Linear(channels, classes)
        self.absent = nn.Linear(channels, classes)
        for layer, bias in ((self.present, first), (self.absent, -first)):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)

    def forward(self, features: Tensor) -> Output:
        pooled = pool(features)
        visual: Tensor = self.visual(pooled)
        if not self.training and self.score == "visual":
            return Output(visual, pooled)
        logits = relevance(
            at_least_float32(visual),
            at_least_float32(self.present(self.rate * pooled)),
            at_least_float32(self.absent(self.rate * pooled)),
        )
        return Output(logits, pooled)

    def class_maps(self, maps: Tensor) -> Tensor:
        return torch.einsum("cd,bdhw->bchw", self.visual.weight, maps) + self.visual.bias.view(1, -1, 1, 1)

    @torch.no_grad()
    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        """Start the visual classifier from W and b."""
        self.visual.weight.copy_(weight)
        self.visual.bias.copy_(bias)


@method(
    serves=REGIMES,
    paper="Misra, Zitnick, Mitchell, Girshick 2016: Seeing through the Human Reporting Bias",
    lr=1e-3,
    tune={"score": ("visual", "relevance")},
)
def latent_noise(
    score: Literal["visual", "relevance"] = "visual",
    unknown: Unknown = "auto",
    first: NonNegative = 3.0,
    noise_rate: NonNegative = 0.01,
) -> Method:
    """Learns what an image shows and, separately, whether people report it; labels depend on both.

    Use it for labels that people chose to mention: tags, keywords, captions. If each label was asked for and answered,
    there is little reporting bias, and it is close to `logistic`.

        v = σ(W f + b)                                       the visual classifier: what is present
        r₁ = σ(ρ W₁ f + b₁),   r₀ = σ(ρ W₀ f + b₀)           probability of a report if present, if absent
        h = r₁ v + r₀ (1 − v);   L = 1/(B·C) Σ BCE(h, y)     the relevance: what is reported

    score: what is predicted and evaluated: visual (v) or relevance (h). Training is the same. unknown: as in `warp`.
    first: b₁ and −b₀ at the start (3: 95 % of present labels are reported, and 5 % of absent ones). noise_rate (ρ): how
    much slower than v the noise learns from the image. With 1 the noise learns what v should learn, and v is useless.

    Do not take unknown as not reported if most labels were never asked for.

    The slow noise, `noise_rate`, is our addition; Huynh 2020 starts from a trained classifier instead.
    """
    return Method(BCE(), UnknownAs(unknown), head=partial(LatentNoiseHead, score=score, first=first, rate=noise_rate))
