"""Reading a number from the GPU without waiting for the GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["AsyncScalar", "ScalarReading"]


class ScalarReading(NamedTuple):
    """A number, and the count of batches after which it was taken."""

    value: float
    batches: int


class AsyncScalar:
    """Each call returns the value of the previous call, copied asynchronously, so reading the loss never stalls a GPU.

    Waiting for the current value would leave the GPU without work while the CPU prepares the next batch. On a CPU the
    current value is returned at once.

    >>> loss_reader = AsyncScalar(torch.device("cpu"))
    >>> loss_reader(torch.tensor(1.5), 20)
    ScalarReading(value=1.5, batches=20)
    """

    def __init__(self, device: torch.device) -> None:
        self.is_delayed = device.type == "cuda"
        self.pending: tuple[Tensor, int, torch.cuda.Event] | None = None

    def __call__(self, value: Tensor, batches: int) -> ScalarReading | None:
        if not self.is_delayed:
            return ScalarReading(float(value), batches)
        previous = self.pending
        copy = torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self.pending = copy, batches, copied
        if previous is None:
            return None
        previous[2].synchronize()
        return ScalarReading(float(previous[0]), previous[1])

    def reset(self) -> None:
        """Drop the pending value."""
        self.pending = None
