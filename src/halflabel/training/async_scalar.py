"""A look at a number on the device that does not wait for the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Glance", "Seen"]


class Seen(NamedTuple):
    """A number, and after how many batches it was that."""

    value: float
    batches: int


class Glance:
    """Says, each time it is given a number of a GPU's, what the one before was: by now that has arrived.

    To ask for the present one would let the GPU run out of work while the CPU prepares more. Numbers of a CPU are there
    at once.

    >>> glance = Glance(torch.device("cpu"))
    >>> glance(torch.tensor(1.5), 20)
    Seen(value=1.5, batches=20)
    """

    def __init__(self, device: torch.device) -> None:
        self.late = device.type == "cuda"
        self.sent: tuple[Tensor, int, torch.cuda.Event] | None = None

    def __call__(self, number: Tensor, batches: int) -> Seen | None:
        if not self.late:
            return Seen(float(number), batches)
        before = self.sent
        there = torch.empty((), dtype=number.dtype, pin_memory=True).copy_(number, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self.sent = there, batches, arrived
        if before is None:
            return None
        before[2].synchronize()
        return Seen(float(before[0]), before[1])

    def forget(self) -> None:
        """What was sent is of no use any more."""
        self.sent = None
