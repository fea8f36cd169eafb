"""A thread that scores images of concurrent requests together, in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

_IDLE_SECONDS = 1.0  # without work, until `on_idle` is called


@dataclass(eq=False)
class Batcher:
    """The only thread that uses the model: scores waiting images together, at most `max_batch` at a time.

    The first image of a batch waits at most `wait` seconds for others. `score` maps (B, 3, S, S) uint8 to (B, C).
    `on_idle` is called after a second without work.
    """

    score: Callable[[Sequence[Tensor]], Tensor]
    max_batch: int
    wait: float
    on_idle: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.images = self.batches = 0
        self._queue: queue.Queue[tuple[Tensor, Future[Tensor]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="halflabel-batches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Score the waiting images, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, image: Tensor) -> Future[Tensor]:
        """Queue one image (3, S, S); the future gets its scores (C,). A cancelled future is not scored."""
        future: Future[Tensor] = Future()
        self._queue.put((image, future))
        return future

    def _run(self) -> None:
        while (first := self._wait_for_first()) is not None:
            batch, deadline, is_last = [first], time.monotonic() + self.wait, False
            while len(batch) < self.max_batch:
                try:
                    item = self._queue.get(timeout=max(deadline - time.monotonic(), 0))
                except queue.Empty:
                    break
                if item is None:
                    is_last = True
                    break
                batch.append(item)
            self._score_batch(batch)
            if is_last:
                break

    def _wait_for_first(self) -> tuple[Tensor, Future[Tensor]] | None:
        try:
            return self._queue.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            self.on_idle()
            return self._queue.get()

    def _score_batch(self, batch: Sequence[tuple[Tensor, Future[Tensor]]]) -> None:
        active = [(image, future) for image, future in batch if future.set_running_or_notify_cancel()]
        if not active:
            return
        try:
            scores = self.score([image for image, _ in active])
        except Exception as error:  # the waiting requests get it; the thread continues
            for _, future in active:
                future.set_exception(error)
            return
        self.images, self.batches = self.images + len(active), self.batches + 1
        for (_, future), row in zip(active, scores, strict=True):
            future.set_result(row)
