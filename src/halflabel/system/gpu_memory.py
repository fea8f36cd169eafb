"""When a GPU's memory runs out: give the network fewer images at once, and undo what the failed try has changed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from halflabel.errors import UserError

__all__ = ["Kept", "Room", "no_room"]

_MOST = 1 << 26  # bytes of a method's state that are copied before every step


class Room:
    """How many images a network gets at once: as many as come, until memory runs out, then half as many."""

    def __init__(self) -> None:
        self.most = 0  # 0: no limit met yet

    def pieces(self, images: int) -> int:
        """In how many pieces, equal to within one image, a batch goes through the network."""
        return math.ceil(images / self.most) if self.most else 1

    def run(self, network: Callable[[Tensor], Tensor], views: Tensor) -> Tensor:
        """What the network, which changes nothing, says of each of B images: (B, …) -> (B, …)."""
        while True:
            try:
                found = [network(part) for part in views.tensor_split(self.pieces(len(views)))]
                return found[0] if len(found) == 1 else torch.cat(found)
            except torch.OutOfMemoryError:
                pass  # whoever handles an error still holds what it was about: free nothing in here
            self.halve(len(views))

    def halve(self, images: int, also: str = "") -> None:
        """Give half as many from now on, and say so; one image that is too many is an error."""
        before = min(self.most or images, images)
        if before <= 1:
            raise no_room("for a single image")
        self.most = (before + 1) // 2
        warnings.warn(
            f"out of GPU memory at batch {before}: going on with {self.pieces(images)} × {self.most}{also}",
            stacklevel=3,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def no_room(what: str) -> UserError:
    """The error for a GPU whose memory does not do."""
    return UserError(
        f"the GPU's memory is not enough {what}",
        "use a smaller --size or --batch-size, --precision bf16, --tune head, or --device cpu",
    )


class Kept:
    """A model's buffers and a method's state as they were before a step, to go back to."""

    def __init__(self, model: nn.Module, method: nn.Module) -> None:
        self.method = method
        self.buffers = list(model.buffers())
        self.copies = [torch.empty_like(buffer) for buffer in self.buffers]
        self.state: dict[str, Tensor] | None = None  # None: too large to be copied before every step

    def take(self) -> None:
        if self.buffers:
            torch._foreach_copy_(self.copies, self.buffers)
        state = self.method.state_dict()
        small = sum(value.nbytes for value in state.values()) <= _MOST
        self.state = {name: value.clone() for name, value in state.items()} if small else None

    def put_back(self) -> None:
        if self.buffers:
            torch._foreach_copy_(self.buffers, self.copies)
        if self.state is not None:
            self.method.load_state_dict(self.state)
