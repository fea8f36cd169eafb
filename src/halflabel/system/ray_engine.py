"""Blocks of images on a Ray cluster, for `--engine ray`: the feature cache and the predictors send their work here.

Plain actors and not Ray Data: the sources of this package read the images (folders, packs, object stores), a block must
keep the batches of a single process so that results are equal bit for bit, and the feature cache already is the file
that other commands read. Ray Data would put its own readers, batches and files between them.
"""

from __future__ import annotations

import heapq
import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from halflabel.errors import UserError
from halflabel.system import distributed

ENGINES = ("local", "ray")
_ATTEMPTS = 4  # of a block whose workers die
_WINDOW = 16  # blocks per worker that may be finished before their turn
_QUEUED = 2  # blocks that a worker holds: the next one is there when one is finished
_OBJECT_STORE_BYTES = 1 << 29  # shared memory of a cluster on this machine

_is_active = False


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Compute features and scores with the engine `name`: "local" is this process, "ray" a Ray cluster.

    The cluster is the one that RAY_ADDRESS names; without it, Ray is started on this machine and ended afterwards.
    """
    global _is_active
    if name not in ENGINES:
        raise UserError(f"there is no engine {name!r}", f"use {' or '.join(ENGINES)}")
    if name == "local":
        yield
        return
    if distributed.is_distributed():
        raise UserError("‹engine=ray› cannot be combined with torchrun", "start one process: Ray starts the others")
    ray = _connect()
    _is_active = True
    try:
        yield
    finally:
        _is_active = False
        ray.shutdown()


def _connect() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    # Ray reports dead workers on the standard output, where predictions go; `map_blocks` warns of them.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise UserError(f"‹engine=ray› needs the package ray ({error})", "pip install 'halflabel[ray]'") from None
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address}
    if not address:
        options = {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        ray.init(**options, logging_level="ERROR", log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        fix = "check RAY_ADDRESS; without it Ray is started on this machine"
        raise UserError(f"the Ray cluster cannot be reached ({reason})", fix) from None
    return ray


def is_active() -> bool:
    """Return whether blocks of images go to Ray."""
    return _is_active


def gpus() -> int:
    """Return the number of GPUs of the cluster."""
    return _resource("GPU")


def workers() -> int:
    """Return the number of workers: one per GPU, or one per core of a cluster without GPUs."""
    return gpus() or max(1, _resource("CPU"))


def _resource(kind: str) -> int:
    resources: dict[str, float] = import_module("ray").cluster_resources()
    return int(resources.get(kind, 0))


class BlockQueue:
    """Which blocks are to be computed, and the results of finished ones in order.

    A block whose worker died is handed out again before all others. No block is handed out that is more than `window`
    blocks after the first one without a result, so that few results wait for their turn.
    """

    def __init__(self, count: int, window: int) -> None:
        self.count = count
        self.window = window
        self.popped = 0  # blocks whose results were popped
        self._new = 0
        self._again: list[int] = []
        self._results: dict[int, Any] = {}
        self._deaths: Counter[int] = Counter()

    def take(self) -> int | None:
        """Return the number of a block to compute; None if there is none now."""
        if self._again:
            return heapq.heappop(self._again)
        if self._new >= min(self.count, self.popped + self.window):
            return None
        self._new += 1
        return self._new - 1

    def put(self, number: int, result: Any) -> None:
        """Store the result of a block."""
        self._results[number] = result

    def put_back(self, number: int, reason: str) -> None:
        """Hand a block out again after its worker died; a UserError if that happens again and again."""
        self._deaths[number] += 1
        if self._deaths[number] >= _ATTEMPTS:
            fix = "look for an image that crashes the decoder, or too little memory; then run the same command again"
            raise UserError(f"{_ATTEMPTS} Ray workers died over block {number} of the images ({reason})", fix)
        heapq.heappush(self._again, number)

    def pop(self) -> Iterator[Any]:
        """Yield the results whose turn it is."""
        while self.popped in self._results:
            self.popped += 1
            yield self._results.pop(self.popped - 1)

    @property
    def is_done(self) -> bool:
        return self.popped == self.count


class _Worker:
    """An actor that holds a copy of the work."""

    def __init__(self, work: list[Any]) -> None:
        from halflabel.system import plugins

        plugins.load()  # before the work is unpickled: it may use their classes
        data = io.BytesIO(import_module("ray").get(work[0]))
        # To the CPU: the driver may have had it on a GPU that this machine does not have. The work moves it.
        self.work = import_module("torch").load(data, map_location="cpu", weights_only=False)

    def start(self) -> tuple[Any, tuple[str, str] | None]:
        return None, None

    def run(self, block: Any) -> tuple[Any, tuple[str, str] | None]:
        """Return the result of a block, or the message and the fix of a UserError."""
        try:
            return self.work(block), None
        except UserError as error:
            return None, (error.message, error.fix)


def map_blocks(work: Callable[[Any], Any], make_block: Callable[[int], Any], count: int) -> Iterator[Any]:
    """Yield work(make_block(number)) for each number below `count`, in order, computed by the workers of the cluster.

    `work` is sent to each worker once. The blocks of a worker that dies go to others, and a new worker is started.
    A UserError of the work is raised here.
    """
    ray = import_module("ray")
    number_of_workers = min(workers(), count)
    queue = BlockQueue(count, _WINDOW * max(1, number_of_workers))
    data = io.BytesIO()
    import_module("torch").save(work, data, pickle_module=ray.cloudpickle)
    shared = [ray.put(data.getvalue())]
    new_worker = ray.remote(num_cpus=1, num_gpus=1 if gpus() else 0, max_restarts=0)(_Worker)
    running: dict[Any, tuple[Any, int | None]] = {}  # reference of a result -> worker, and block or None for its start
    starts_failed = 0
    causes = ray.exceptions
    deaths = causes.RayActorError, causes.ObjectLostError, causes.NodeDiedError, causes.OutOfMemoryError

    def start() -> None:
        worker = new_worker.remote(shared)
        running[worker.start.remote()] = worker, None

    def give(worker: Any) -> bool:
        number = queue.take()
        if number is not None:
            running[worker.run.remote(make_block(number))] = worker, number
        return number is not None

    idle: list[Any] = []
    dead: set[Any] = set()
    try:
        for _ in range(number_of_workers):
            start()
        while not queue.is_done:
            (reference,), _ = ray.wait(list(running), num_returns=1)
            worker, number = running.pop(reference)
            try:
                result, error = ray.get(reference)
            except deaths as death:
                reason = str(death).strip().partition("\n")[0][:200]
                if number is not None:
                    queue.put_back(number, reason)
                else:
                    starts_failed += 1
                    if starts_failed >= _ATTEMPTS:
                        fix = "install the same halflabel on all machines of the cluster"
                        raise UserError(f"Ray workers cannot start ({reason})", fix) from None
                if worker not in dead:  # it may live, if only its result was lost with a machine
                    warnings.warn(f"a Ray worker died, its images go to another: {reason}", stacklevel=2)
                    dead.add(worker)
                    ray.kill(worker)
                    start()
                continue
            if error is not None:
                raise UserError(*error)
            if number is None:
                idle += [worker] * _QUEUED
            else:
                starts_failed = 0
                queue.put(number, result)
                idle.append(worker)
            yield from queue.pop()
            idle = [each for each in idle if each not in dead and not give(each)]
    finally:
        for worker in {worker for worker, _ in running.values()} | set(idle):
            ray.kill(worker)
