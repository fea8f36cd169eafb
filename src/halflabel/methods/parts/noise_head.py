"""A head that separates what an image shows from what annotators report."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from halflabel.features.heads import Head, pool
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
    """A visual classifier v, and the relevance h: the probability that a class is reported. Misra 2016.

        v = σ(W f + b),   h = r₁ v + r₀ (1 − v)
        r₁ = σ(ρ W₁ f + b₁) = P(reported | present, f),   r₀ = σ(ρ W₀ f + b₀) = P(reported | absent, f)

    In training the logits are those of h; in evaluation those of `score`: "visual" (v) or "relevance" (h). At the start
    nearly every class is reported correctly: W₁ = W₀ = 0, b₁ = `first`, b₀ = −`first`. `rate` (ρ) slows down what the
    noise learns from the image: as fast as v, it would learn in place of v.

    (B, D) or (B, D, h, w) -> logits (B, C). Class maps are those of v. Memory: 12·(D + 1) bytes per class.
    """

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
