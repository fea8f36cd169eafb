"""Consistency with a weight average of the model (Tarvainen & Valpola 2017, mean teacher)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from halflabel.features.ema import ModelEma
from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import REGIMES, BelowOne, Method, NonNegative, Share, method
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.methods.parts.ranking import Unknown, UnknownAs
from halflabel.types import Batch


@method(
    serves=REGIMES,
    paper="Tarvainen & Valpola 2017: Mean teachers are better role models",
    tune={"weight": (1.0, 10.0)},
)
def mean_teacher(
    weight: NonNegative = 10.0, decay: BelowOne = 0.999, ramp_up: Share = 0.25, unknown: Unknown = "auto"
) -> Method:
    """A teacher, the average of the model over its steps, scores weak views; the model must agree on strong views.

    Use it with --tune all and few known labels: unknown labels are learned from the teacher's scores. On a frozen
    backbone strong views are a few cached ones. The teacher is what is evaluated and kept.

        L = L_BCE(model(weak), known labels) + w(e) · mean over all entries of (σ(teacher(weak)) − σ(model(strong)))²
        teacher ← α' · teacher + (1 − α') · model after each step,   α' = min(decay, (1 + n)/(10 + n)) after n steps
        w(e) = weight · exp(−5 (1 − r)²),   r = min((e − 1) / (ramp_up · epochs), 1)

    weight: weight of the consistency; decay (α): of the average; ramp_up: share of the epochs in which the weight
    rises; unknown: ignore leaves unknown labels to the teacher alone, negative also takes them as absent, auto means
    negative if no label is known to be absent.

    Differs from the paper: the labels are known or unknown per entry, not per image; the views are weak and strong
    instead of two draws of the same noise; and the teacher has no dropout.
    """
    return MeanTeacher(weight, decay, ramp_up, unknown)


class MeanTeacher(Method):
    """Two views: the loss of known labels on the weak one, agreement with the teacher on the strong one."""

    def __init__(self, weight: float, decay: float, ramp_up: float, unknown: str) -> None:
        super().__init__(BCE(), UnknownAs(unknown), reduce=over_known, views=("weak", "strong"))
        self.weight, self.decay, self.ramp_up = weight, decay, ramp_up
        self.ramp_epochs = 0.0
        self.teacher: ModelEma | None = None

    def plan(self, epochs: int) -> None:
        super().plan(epochs)
        self.ramp_epochs = self.ramp_up * epochs

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        if model is not None:
            self.teacher = ModelEma(model, self.decay)

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        assert self.teacher is not None, "start has had no model"
        weak, strong = model(torch.cat(batch.views)).logits.chunk(2)
        with torch.no_grad():
            teacher = model.run(self.teacher.model, batch.views[0]).logits
        loss = self.label_loss(weak, batch, epoch)
        return loss + self.weight_in(epoch) * (torch.sigmoid(teacher) - torch.sigmoid(strong)).square().mean()

    def weight_in(self, epoch: int) -> float:
        """w(e) of the formula."""
        progress = min((epoch - 1) / self.ramp_epochs, 1.0) if self.ramp_epochs else 1.0
        return self.weight * math.exp(-5 * (1 - progress) ** 2)

    def after_step(self, model: Model) -> None:
        if self.teacher is not None:
            self.teacher.update(model)

    def evaluated(self, model: Model) -> Model:
        return model if self.teacher is None else self.teacher.model
