"""The processes of one job, as `torchrun` and `accelerate launch` start them: who they are, and how they agree.

With one process nothing here waits, sends or changes anything. What several call together (`on_first`, `gather`,
`to_first`, `together`, `merge`, `agree`) all of them must call, in the same order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from halflabel.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "agree",
    "claim",
    "count",
    "gather",
    "here",
    "is_first",
    "leave",
    "lost",
    "merge",
    "on_first",
    "rank",
    "several",
    "start",
    "to_first",
    "together",
    "whole",
]

# Longer than what one process may do while the others wait: checksums of a large cache, metrics, plots.
_PATIENCE = timedelta(hours=1)
_SENT = 1 << 26  # bytes sent at a time
_WORDS = 1 << 20  # looked at together for a checksum
_LOST = re.compile(r"connection (closed|reset)( by peer)?|broken pipe|timed out|gloo|nccl", re.IGNORECASE)

T = TypeVar("T")

_store: Any = None  # what all processes can write to, also when one of them has ended


def count() -> int:
    """How many processes work together."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ["RANK"]) if several() else 0


def here() -> int:
    """How many of them are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if several() else 1


def several() -> bool:
    """Whether there is more than one."""
    return count() > 1


def is_first() -> bool:
    """Whether this is the process that writes and speaks."""
    return rank() == 0


def start() -> None:
    """Meet the other processes, once; each takes the GPU of its number on its machine, where there are any."""
    global _store
    if not several():
        return
    import torch
    from torch import distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        return
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    # NCCL wants a GPU for each process; Gloo also lets several share one.
    backend = "cpu:gloo,cuda:nccl" if gpus >= here() and dist.is_nccl_available() else "gloo"
    try:
        found, number, total = next(rendezvous("env://", timeout=_PATIENCE))
        dist.init_process_group(backend, store=found, rank=number, world_size=total, timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the {count()} processes of this job cannot reach each other ({reason})",
            "start them with torchrun or accelerate launch, with the same address and port on all machines",
        ) from None
    _store = PrefixStore("halflabel", found)


def leave() -> None:
    """Part from the others, when all is done."""
    if several():
        from torch import distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def gather(value: Any) -> list[Any]:
    """What each process gives, by its number."""
    if not several():
        return [value]
    from torch import distributed as dist

    start()
    found: list[Any] = [None] * count()
    dist.all_gather_object(found, value)
    return found


def to_first(value: Any) -> list[Any]:
    """What each process gives, by its number, in the first one; nothing in the others."""
    if not several():
        return [value]
    from torch import distributed as dist

    start()
    found: list[Any] = [None] * count() if is_first() else []
    dist.gather_object(value, found if is_first() else None)
    return found


def on_first(work: Callable[[], T]) -> T:
    """Let the first process do it; the others wait and get its result, or its UserError."""
    if not several():
        return work()
    from torch import distributed as dist

    start()
    box: list[Any] = [None, None]
    if is_first():
        try:
            box[0] = work()
        except UserError as error:
            box[1] = (error.message, error.fix)
    dist.broadcast_object_list(box, 0)
    if box[1] is not None:
        raise UserError(*box[1])
    result: T = box[0]
    return result


def together(check: Callable[[], None]) -> None:
    """Let every process check something at the same time; a UserError of any of them is raised in all."""
    refused = None
    try:
        check()
    except UserError as error:
        refused = (error.message, error.fix)
    for found in gather(refused):
        if found is not None:
            raise UserError(*found)


def merge(found: dict[str, Tensor], plan: Sequence[NDArray[np.int64]]) -> dict[str, Tensor]:
    """Rows (N, width) on the CPU, of which each process has those of its batches `plan[rank::count]`: give each all.

    No row is sent twice, and none is made up. A process that has nothing under a name gets the whole. What it gets goes
    to the place where the table is, in memory or in a scratch file; 64 MB more are taken while it is sent.
    """
    if not several():
        return found
    import numpy as np
    import torch
    from torch import distributed as dist

    from halflabel.system import scratch

    shapes: dict[str, tuple[int, ...]] = {}
    for described in gather({name: tuple(value.shape) for name, value in found.items()}):
        shapes |= described
    parts = [torch.from_numpy(np.concatenate([np.arange(0), *plan[owner :: count()]])) for owner in range(count())]
    tables = {}
    for name, shape in sorted(shapes.items()):
        if name in found:
            tables[name] = found[name]
        else:
            tables[name] = scratch.zeros(shape, what=f"the {name} of {shape[0]} images take")
            tables[name][parts[rank()]] = torch.nan  # it could read none of its images
    for owner, images in enumerate(parts):
        for values in tables.values():
            for rows in torch.split(images, max(_SENT // max(values[:1].nbytes, 1), 1)):
                sent = values[rows]
                dist.broadcast(sent, owner)
                if owner != rank():
                    values[rows] = sent
    return tables


def agree(tensors: Iterable[Tensor]) -> int:
    """Make the tensors of all processes those of the first; how many differed.

    They are the same by construction, but for sums that a GPU takes in any order; checksums show whether to send them.
    """
    if not several():
        return 0
    from torch import distributed as dist

    held = list(tensors)
    sums = gather([_checksum(value) for value in held])
    differ = [value for value, *each in zip(held, *sums, strict=True) if len(set(each)) > 1]
    for value in differ:
        sent = value.detach().contiguous()
        dist.broadcast(sent, 0)
        value.detach().copy_(sent)
    return len(differ)


def _checksum(value: Tensor) -> int:
    """Of the bytes and their places, wherever the tensor is."""
    import torch

    flat = value.detach().contiguous().view(-1)
    if flat.element_size() > 4:  # complex numbers and 64 bits as pairs of words
        flat = flat.view(torch.int32)
    words = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[flat.element_size()])
    total = 0
    for number, part in enumerate(torch.split(words, _WORDS)):
        places = torch.arange(1, len(part) + 1, device=part.device)
        total = hash((total, number, int((part.to(torch.int64) * places).sum())))
    return total


def whole(number: Tensor) -> Tensor:
    """A sum over a weight, whose parts may lie in different processes (`--shard`), over all of it; with its gradient.

    Methods that charge for weights call it, all processes in the same order. Any other number stays as it is.
    """
    full: Callable[[], Tensor] | None = getattr(number, "full_tensor", None)
    return number if full is None else full()


def claim(what: str) -> bool:
    """Whether this process is the one of all to say something that each of them could say."""
    if _store is None:
        return is_first()
    try:
        return bool(_store.add(what, 1) == 1)
    except RuntimeError:  # the process that kept it has ended: better said twice than not at all
        return True


def lost(error: RuntimeError) -> str:
    """What is wrong, in a few words, if an error means that another process is gone; else nothing."""
    if not several():
        return ""
    from torch import distributed as dist

    if found := _LOST.search(str(error)):
        return found[0].lower()
    return type(error).__name__ if isinstance(error, dist.DistError) else ""
