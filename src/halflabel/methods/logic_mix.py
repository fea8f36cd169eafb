"""Images are mixed, and their labels joined by OR, which is right for unknown labels too (Chong 2024, LogicMix)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from halflabel.features.heads import Model
from halflabel.methods.base import REGIMES, Method, NonNegative, method
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.system.validate import between
from halflabel.types import Batch


@method(
    serves=REGIMES,
    paper="Chong, Guo, Yang, Ke, Wang 2024: Free Performance Gain from Mixing Multiple Partially Labeled Samples "
    "in Multi-label Image Classification (LogicMix)",
    tune={"weight": (0.3, 1.0)},
)
def logic_mix(members: int = 2, weight: NonNegative = 1.0, unknown: Unknown = "auto") -> Method:
    """Besides each image the model learns the mean of it and of other images, whose labels are joined by OR.

    Use it with --tune all, where photos are mixed and the mixtures keep a network from memorising few photos. On a
    frozen backbone it mixes cached features; it is then trained in batches (--fit batches).

        x̃ = mean of x_1 … x_k,   ỹ = y_1 OR … OR y_k:   1 if any is 1, absent if all are absent, else unknown
        L = L_BCE(x, y) + weight · L_BCE(x̃, ỹ),   each divided by the number of labels used

    members (k): images in a mixture, drawn from the batch; weight: of the mixtures; unknown: as in `warp`.

    Differs from the paper: images and mixtures are in the same batch instead of alternating, and k is fixed.
    """
    between(2, 16, members=members)
    return LogicMix(members, weight, unknown)


class LogicMix(Method):
    """The loss of a batch and that of its mixtures."""

    samples = True

    def __init__(self, members: int, weight: float, unknown: str) -> None:
        super().__init__(BCE(), UnknownAs(unknown), reduce=over_known)
        self.members, self.weight = members, weight

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        view = batch.views[0]
        mixed, labels = view.float() if not view.is_floating_point() else view, batch.labels
        for _ in range(self.members - 1):
            order = torch.randperm(len(labels), device=labels.device)
            mixed = mixed + model.take(view, order)
            labels = torch.maximum(labels, batch.labels[order])  # OR, as absent < unknown < present
        mixed = mixed / self.members
        if view.dtype == torch.uint8:
            mixed = mixed.round()
        outputs = model(torch.cat([view, mixed.to(view.dtype)])).logits.chunk(2)
        losses = []
        for logits, joined in zip(outputs, (batch, replace(batch, labels=labels, soft=None)), strict=True):
            losses.append(self.label_loss(logits, joined, epoch))
        return losses[0] + self.weight * losses[1]
