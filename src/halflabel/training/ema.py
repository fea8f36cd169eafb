"""The exponential moving average of a model's weights."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from halflabel.models.heads import Model

__all__ = ["Average"]


class Average(nn.Module):
    """average ← decay · average + (1 − decay) · weights after each step, parameters and running statistics alike.

    The first update copies. decay = min(`decay`, (1 + n) / (10 + n)) after n updates, so that the first steps do not
    weigh for ever. All tensors at once: one by one they would cost more than a step of a small network.
    """

    updates: Tensor

    def __init__(self, model: Model, decay: float) -> None:
        super().__init__()
        self.model = deepcopy(model)
        self.decay = decay
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._done = -1  # `updates` as a number: reading the tensor would wait for the device
        self._pairs: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._copied: tuple[list[Tensor], list[Tensor]] = ([], [])

    @torch.no_grad()
    def update(self, model: Model) -> None:
        if self._done < 0:
            self._pair(model)
        decay = min(self.decay, (1 + self._done) / (10 + self._done)) if self._done else 0.0
        torch._foreach_lerp_(*self._pairs, 1 - decay)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)
        self._done += 1
        self.updates.add_(1)

    def _pair(self, model: Model) -> None:
        self._done = int(self.updates)
        mine, current = self.model.state_dict(keep_vars=True), model.state_dict(keep_vars=True)

        def pairs(blended: bool) -> tuple[list[Tensor], list[Tensor]]:
            names = [name for name, value in mine.items() if value.is_floating_point() == blended]
            return [mine[name].detach() for name in names], [current[name].detach() for name in names]

        # Counters, such as those of batch norm, have no average.
        self._pairs, self._copied = pairs(True), pairs(False)
