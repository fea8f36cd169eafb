"""Blocks of images on a Ray cluster, for `--engine ray`: the feature cache and the predictors send their work here.

Plain actors and not Ray Data: a block must keep the batches of a single process, so that results are equal bit for bit.
"""

from __future__ import annotations

import atexit
import io
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from halflabel.errors import UserError
from halflabel.system import distributed

ENGINES = ("local", "ray")
_ATTEMPTS = 4  # of a block whose workers die
_QUEUED = 4  # blocks that a worker holds: the next one is there when one is finished
_OBJECT_STORE_BYTES = 1 << 29  # shared memory of a cluster on this machine

_POLL_SECONDS = 5.0  # between two checks whether the head of the cluster answers
_SILENT_CHECKS = 3  # after which it is gone; Ray itself waits for 60 s and then ends this process

_is_active = False


class _HeadGone(UserError):
    """The head of the cluster does not answer: nothing can be asked of Ray any more, not even to end."""


@contextmanager
def use_engine(name: str) -> Iterator[None]:
    """Compute features and scores with the engine "local", this process, or "ray".

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
    end = ray.shutdown
    try:
        yield
    except _HeadGone:
        end = partial(atexit.register, _end_process)
        raise
    finally:
        _is_active = False
        end()


def _end_process() -> None:
    """End the process at once: without the head of its cluster, Ray crashes when Python ends."""
    sys.stdout.flush()
    os._exit(2)


def _connect() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    # Ray reports dead workers on the standard output, where predictions go.
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
    except Exception as error:  # Ray raises Exception itself
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


class _Worker:
    """An actor that holds a copy of the work, which it loads before its first block."""

    work: Callable[[Any], Any] | None = None

    def run(self, shared: list[Any], block: Any) -> tuple[Any, tuple[str, str] | None]:
        """Return the result of a block, or the message and the fix of a UserError."""
        try:
            self.work = self.work or _load(shared)
        except Exception as error:  # unpickling may raise anything
            return None, (f"Ray workers cannot start ({error})", "install the same halflabel on all machines")
        try:
            return self.work(block), None
        except UserError as error:
            return None, (error.message, error.fix)


def _load(shared: list[Any]) -> Callable[[Any], Any]:
    from halflabel.system import plugins

    plugins.load()  # before the work is unpickled: it may use their classes
    data = io.BytesIO(import_module("ray").get(shared[0]))
    # To the CPU: the driver may have had it on a GPU that this machine does not have. The work moves it.
    work: Callable[[Any], Any] = import_module("torch").load(data, map_location="cpu", weights_only=False)
    return work


def map_blocks(work: Callable[[Any], Any], make_block: Callable[[int], Any], count: int) -> Iterator[Any]:
    """Yield work(make_block(number)) for each number below `count`, in order, computed by the workers of the cluster.

    Ray starts a worker that died again, and gives it its blocks again. A UserError of the work is raised here.
    """
    ray, actor_pool = import_module("ray"), import_module("ray.util").ActorPool
    data = io.BytesIO()
    import_module("torch").save(work, data, pickle_module=ray.cloudpickle)
    shared = [ray.put(data.getvalue())]
    options = {"num_cpus": 1, "num_gpus": 1 if gpus() else 0, "max_restarts": -1, "max_task_retries": _ATTEMPTS - 1}
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    actors = [ray.remote(**options)(_Worker).remote() for _ in range(min(workers(), count))]
    try:
        pool = actor_pool(actors * _QUEUED)
        for number in range(count):
            pool.submit(lambda actor, number: actor.run.remote(shared, make_block(number)), number)
        while pool.has_next():
            result, error = _next_result(pool, (host, int(port)))
            if error is not None:
                raise UserError(*error)
            yield result
    except ray.exceptions.RayTaskError:  # an error of this package
        raise
    except ray.exceptions.RayError as death:
        reason = str(death).strip().partition("\n")[0][:200]
        fix = "look for an image that crashes the decoder, or too little memory; then run the same command again"
        raise UserError(f"Ray workers died {_ATTEMPTS} times ({reason})", fix) from None
    except _HeadGone:
        actors = []
        raise
    finally:
        for actor in actors:
            ray.kill(actor)


def _next_result(pool: Any, head: tuple[str, int]) -> Any:
    """Return the next result of a pool; UserError if the head of the cluster has not answered several times."""
    for _ in range(_SILENT_CHECKS):
        answers = True
        while answers:
            try:
                return pool.get_next(timeout=_POLL_SECONDS)
            except TimeoutError:
                answers = _answers(head)
    raise _HeadGone("the head of the Ray cluster does not answer", "start the cluster, then run the same command again")


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _POLL_SECONDS).close()
    except OSError:
        return False
    return True
