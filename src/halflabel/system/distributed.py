"""The processes of one job as `torchrun` starts them: ranks, and collective operations.

With one process nothing here waits, sends or changes anything. The collective functions (`run_on_main`, `all_gather`,
`gather_to_main`, `check_on_all`, `merge_rows`, `synchronize`) must be called by all processes in the same order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError, error_summary
from halflabel.system import memory

if TYPE_CHECKING:
    from torch import Tensor

# Longer than anything the main process does while the others wait: checksums of a large cache, metrics, plots.
_TIMEOUT = timedelta(hours=1)
_BLOCK_BYTES = 1 << 26  # sent at a time
_LOST = re.compile(r"connection (closed|reset)( by peer)?|broken pipe|timed out|gloo|nccl", re.IGNORECASE)

T = TypeVar("T")

_store: Any = None  # a key-value store that all processes can write to, even after one of them has ended


def world_size() -> int:
    """Return the number of processes of the job."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return int(os.environ["RANK"]) if is_distributed() else 0


def local_world_size() -> int:
    """Return the number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_distributed() else 1


def is_distributed() -> bool:
    return world_size() > 1


def is_main() -> bool:
    """Return whether this is process 0, which writes files and prints."""
    return rank() == 0


def initialize() -> None:
    """Connect to the other processes, once; each takes the GPU of its local rank, where there are GPUs."""
    global _store
    if not is_distributed():
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
    # NCCL needs a GPU for each process; with Gloo several processes can share one.
    backend = "cpu:gloo,cuda:nccl" if gpus >= local_world_size() and dist.is_nccl_available() else "gloo"
    try:
        store, own_rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
        dist.init_process_group(backend, store=store, rank=own_rank, world_size=size, timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the {world_size()} processes of this job cannot reach each other ({error_summary(error)})",
            "start them with torchrun, with the same address and port on all machines",
        ) from None
    _store = PrefixStore("halflabel", store)


def shut_down() -> None:
    """Disconnect from the other processes at the end of the job."""
    if is_distributed():
        from torch import distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _connected() -> Any:
    """Return torch.distributed, connected to the other processes."""
    from torch import distributed as dist

    initialize()
    return dist


def all_gather(value: Any) -> list[Any]:
    """Return the values of all processes, by rank, in every process."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * world_size()
    _connected().all_gather_object(values, value)
    return values


def gather_to_main(value: Any) -> list[Any]:
    """Return the values of all processes, by rank, in the main process; an empty list in the others."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * world_size() if is_main() else []
    _connected().gather_object(value, values if is_main() else None)
    return values


def run_on_main(work: Callable[[], T]) -> T:
    """Run `work` in the main process; the others wait and get its result, or its UserError."""
    if not is_distributed():
        return work()
    dist = _connected()
    outcome: list[Any] = [None, None]  # result, error
    if is_main():
        try:
            outcome[0] = work()
        except UserError as error:
            outcome[1] = (error.message, error.fix)
    dist.broadcast_object_list(outcome, 0)
    if outcome[1] is not None:
        raise UserError(*outcome[1])
    result: T = outcome[0]
    return result


def check_on_all(check: Callable[[], None]) -> None:
    """Run a check in every process; a UserError of any of them is raised in all."""
    failure = None
    try:
        check()
    except UserError as error:
        failure = (error.message, error.fix)
    for other in all_gather(failure):
        if other is not None:
            raise UserError(*other)


def merge_rows(tables: dict[str, Tensor], plan: Sequence[NDArray[np.int64]]) -> dict[str, Tensor]:
    """Give every process all rows of tables (N, width) on the CPU; each computed its batches `plan[rank::world_size]`.

    A process without a table of some name gets the whole of it. Rows are received in place, through a buffer of 64 MB.
    """
    if not is_distributed():
        return tables
    import torch

    dist = _connected()
    shapes: dict[str, tuple[int, ...]] = {}
    for shapes_of_rank in all_gather({name: tuple(table.shape) for name, table in tables.items()}):
        shapes |= shapes_of_rank
    size = world_size()
    images_of_rank = [torch.from_numpy(np.concatenate([np.arange(0), *plan[owner::size]])) for owner in range(size)]
    merged = {}
    for name, shape in sorted(shapes.items()):
        if name in tables:
            merged[name] = tables[name]
        else:
            merged[name] = memory.scratch_zeros(shape, what=f"the {name} of {shape[0]} images take")
            merged[name][images_of_rank[rank()]] = torch.nan  # this process could read none of its images
    for owner, images in enumerate(images_of_rank):
        for table in merged.values():
            for rows in torch.split(images, max(_BLOCK_BYTES // max(table[:1].nbytes, 1), 1)):
                block = table[rows]
                dist.broadcast(block, owner)
                if owner != rank():
                    table[rows] = block
    return merged


def synchronize(tensors: Iterable[Tensor]) -> int:
    """Copy the main process's tensors to all processes, where their checksums differ; return how many differed."""
    if not is_distributed():
        return 0
    import torch

    def checksum(tensor: Tensor) -> int:
        return crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    local = list(tensors)
    checksums = all_gather([checksum(tensor) for tensor in local])
    different = [tensor for tensor, *sums in zip(local, *checksums, strict=True) if len(set(sums)) > 1]
    for tensor in different:
        buffer = tensor.detach().contiguous()
        _connected().broadcast(buffer, 0)
        tensor.detach().copy_(buffer)
    return len(different)


def claim(key: str) -> bool:
    """Return True in exactly one process, for messages that each process could print."""
    if _store is None:
        return is_main()
    try:
        return bool(_store.add(key, 1) == 1)
    except RuntimeError:  # the process that holds the store has ended: better printed twice than not at all
        return True


def lost_connection(error: RuntimeError) -> str:
    """Return the reason, in a few words, if an error means that another process has ended; otherwise an empty text."""
    if not is_distributed():
        return ""
    from torch import distributed as dist

    if reason := _LOST.search(str(error)):
        return reason[0].lower()
    return type(error).__name__ if isinstance(error, dist.DistError) else ""
