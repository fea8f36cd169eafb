"""The exponential moving average (EMA) of a model's weights."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from halflabel.features.heads import Model


class ModelEma(nn.Module):
    """average ← decay · average + (1 − decay) · weights after each step, for parameters and running statistics.

    The first update copies. decay = min(`decay`, (1 + n) / (10 + n)) after n updates. torch's AveragedModel is not
    used: it takes ten times as long, stalls the GPU at each update, and would average integer buffers.
    """

    updates: Tensor

    def __init__(self, model: Model, decay: float) -> None:
        super().__init__()
        self.model = deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._updates = -1  # `updates` as a Python number, as reading the tensor would wait for the GPU; -1: not read
        self._averaged: tuple[list[Tensor], list[Tensor]] = ([], [])  # tensors of the average, tensors of the model
        self._copied: tuple[list[Tensor], list[Tensor]] = ([], [])

    def train(self, mode: bool = True) -> ModelEma:
        return self

    @torch.no_grad()
    def update(self, model: Model) -> None:
        if self._updates < 0:
            self._updates = int(self.updates)
            self._averaged = self._pairs(model, is_float=True)
            self._copied = self._pairs(model, is_float=False)
        decay = min(self.decay, (1 + self._updates) / (10 + self._updates)) if self._updates else 0.0
        # All tensors in one call: one by one they would cost more than a step of a small network.
        torch._foreach_lerp_(*self._averaged, 1 - decay)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)
        self._updates += 1
        self.updates.add_(1)

    def _pairs(self, model: Model, *, is_float: bool) -> tuple[list[Tensor], list[Tensor]]:
        average, current = self.model.state_dict(keep_vars=True), model.state_dict(keep_vars=True)
        names = [name for name, value in average.items() if value.is_floating_point() == is_float]
        return [average[name].detach() for name in names], [current[name].detach() for name in names]
