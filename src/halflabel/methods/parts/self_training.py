"""Self-training on two views of each image: labels guessed on one view train the other (srcr)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halflabel.features.heads import Head, Model, load_class_maps, pool
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler
from halflabel.types import Batch, Output, Targets, at_least_float32


class SaliencyHead(Head):
    """Class maps A = W · features + b at each place; the score is their mean, shifted by the mean of their top k cells.

        a_c = mean(A_c),   s_c = mean of the k largest cells of A_c,   x_c = a_c + α s_c    (Wang 2023, eq. 3 to 5)

    (B, D, h, w) -> logits (B, C), maps (B, C, h, w). With fewer than k cells s_c is the mean of all; pooled features
    (B, D) are maps of one cell, where x_c = (1 + α) A_c. `infer` "mean" leaves the shift out in evaluation mode.
    Memory: 4·(D + 1) bytes per class.
    """

    needs_maps = True

    def __init__(self, channels: int, classes: int, k: int = 5, alpha: float = 0.5, infer: str = "shifted") -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, classes, 1)
        self.k = k
        self.alpha = alpha
        self.infer = infer

    @property
    def words(self) -> str:
        return f"class maps, saliency of the {self.k} strongest places" if self.alpha else "class maps"

    def forward(self, features: Tensor) -> Output:
        places = features if features.ndim == 4 else features[:, :, None, None]
        maps = at_least_float32(self.class_maps(places))  # in half precision the shift could overflow
        logits = maps.mean(dim=(2, 3))
        if self.alpha and (self.training or self.infer == "shifted"):
            cells = maps.flatten(2)
            salient = cells.topk(min(self.k, cells.shape[2]), sorted=False).values.mean(dim=2)
            logits = logits + self.alpha * salient
        return Output(logits, pool(features), maps)

    def class_maps(self, maps: Tensor) -> Tensor:
        scores: Tensor = self.conv(maps)
        return scores

    def load_linear(self, weight: Tensor, bias: Tensor) -> None:
        load_class_maps(self.conv, weight / (1 + self.alpha), bias / (1 + self.alpha))


class SelfTraining(Method):
    """L = L_s + weight · L_u: the loss of known labels, and of those the relabeler guesses, each reduced separately.

    All views go through the model as one batch: one pass, with shared batch-norm statistics. The relabeler guesses
    labels on the first view, and L_u trains the last view with them; with one view it is both. L_s uses the views
    `supervise` ("first", "last" or "both"). Unless `shifted`, L_u uses the plain means of the class maps, a_c.
    """

    words = "one view teaches the other"

    def __init__(
        self,
        relabel: Relabeler,
        *,
        supervise: str,
        shifted: bool,
        weight: float,
        **parts: Any,
    ) -> None:
        super().__init__(BCE(), relabel, **parts)
        self.supervise = supervise
        self.shifted = shifted
        self.weight = weight

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output: Output = model(torch.cat(batch.views))
        count = len(batch.labels)
        scores = output.logits
        if not self.shifted:
            assert output.maps is not None, "a head without class maps has no plain means"
            scores = output.maps.mean(dim=(2, 3))
        targets = self.relabel(batch, scores[:count].detach(), epoch)
        unknown = batch.labels == 0
        known = Targets(targets.pos.masked_fill(unknown, 0), targets.neg.masked_fill(unknown, 0))
        guessed = Targets(targets.pos.masked_fill(~unknown, 0), targets.neg.masked_fill(~unknown, 0))

        logits = output.logits
        if self.supervise != "both":
            logits = logits[:count] if self.supervise == "first" else logits[-count:]
        repeats = len(logits) // max(count, 1)
        known = Targets(known.pos.repeat(repeats, 1), known.neg.repeat(repeats, 1))
        supervised = self.reduce(self.loss(logits, known), known)
        return supervised + self.weight * self.reduce(self.loss(scores[-count:], guessed), guessed)
