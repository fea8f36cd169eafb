"""GPU memory: store less for the gradient; where it runs out, split batches and undo the failed attempt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halflabel.errors import UserError

_MAX_STATE_BYTES = 1 << 26  # a larger method state is not copied before every step


class MicroBatcher:
    """Splits batches so that they fit into memory: whole at first, halved each time memory runs out."""

    def __init__(self) -> None:
        self.limit = 0  # images that fit at once; 0 means no limit met yet

    def pieces(self, images: int) -> int:
        """Return into how many pieces, equal to within one image, a batch is split."""
        return math.ceil(images / self.limit) if self.limit else 1

    def run(self, network: Callable[[Tensor], Tensor], views: Tensor) -> Tensor:
        """Apply a network without side effects to B images piece by piece: (B, …) -> (B, …)."""
        while True:
            try:
                outputs = [network(part) for part in views.tensor_split(self.pieces(len(views)))]
                return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
            except torch.OutOfMemoryError:
                pass  # the active exception keeps its tensors alive: memory can be freed only after this block
            self.halve(len(views))

    def halve(self, images: int, consequence: str = "") -> None:
        """Halve the limit and warn; a single image that does not fit raises a UserError."""
        before = min(self.limit or images, images)
        if before <= 1:
            raise out_of_gpu_memory("for a single image")
        self.limit = (before + 1) // 2
        warnings.warn(
            f"out of GPU memory at batch {before}: going on with {self.pieces(images)} × {self.limit}{consequence}",
            stacklevel=3,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def out_of_gpu_memory(what: str) -> UserError:
    """Return the error for a GPU with too little memory `what`."""
    return UserError(
        f"the GPU's memory is not enough {what}",
        "use a smaller ‹size› or ‹batch_size›, ‹precision=bf16›, ‹tune=head›, or ‹device=cpu›",
    )


class Snapshot:
    """Copies of a model's buffers and a method's state, to restore them after a failed step."""

    def __init__(self, model: nn.Module, method: nn.Module) -> None:
        self.method = method
        self.buffers = list(model.buffers())
        self.copies = [torch.empty_like(buffer) for buffer in self.buffers]
        self.state: dict[str, Tensor] | None = None  # None: too large to copy before every step

    def save(self) -> None:
        if self.buffers:
            torch._foreach_copy_(self.copies, self.buffers)
        state = self.method.state_dict()
        small = sum(value.nbytes for value in state.values()) <= _MAX_STATE_BYTES
        self.state = {name: value.clone() for name, value in state.items()} if small else None

    def restore(self) -> None:
        if self.buffers:
            torch._foreach_copy_(self.buffers, self.copies)
        if self.state is not None:
            self.method.load_state_dict(self.state)


def in_chunks(
    function: Callable[..., Tensor], size: int, *split: Tensor, whole: Sequence[Tensor] = (), dim: int = 0
) -> Tensor:
    """Return function(*whole, *split), computed in chunks of `size` rows of `split` that are joined along `dim`.

    The backward pass recomputes chunks instead of storing them. A model that is exported is not split.
    """
    if torch.compiler.is_exporting() or len(split[0]) <= size:
        return function(*whole, *split)
    chunks = list(zip(*(torch.split(part, size) for part in split), strict=True))
    if not torch.is_grad_enabled():
        return torch.cat([function(*whole, *chunk) for chunk in chunks], dim)
    # The function is not random, so the states of the random generators need not be stored.
    recomputed = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([recomputed(*whole, *chunk) for chunk in chunks], dim)
