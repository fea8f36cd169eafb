"""One thread that alone uses the model, and scores together what waits together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

__all__ = ["Batcher"]

_IDLE = 1.0  # seconds without work after which it rests


class Batcher:
    """A thread that alone uses the model: it scores what waits together, at most `most` images at a time.

    The first image waits at most `wait` seconds for company. `score` takes (B, 3, S, S) uint8 and gives (B, C). `rest`
    is called when there was nothing to do for a while.
    """

    def __init__(
        self,
        score: Callable[[Tensor], Tensor],
        *,
        most: int,
        wait: float,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.score, self.most, self.wait, self.rest = score, most, wait, rest
        self.images = self.batches = 0
        self._queue: queue.Queue[tuple[Tensor, Future[Tensor]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="halflabel-batches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end."""
        self._queue.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, image: Tensor) -> Future[Tensor]:
        """The scores (C,) of one image (3, S, S), when its batch is done. Cancelling it takes it out of the queue."""
        future: Future[Tensor] = Future()
        self._queue.put((image, future))
        return future

    def _work(self) -> None:
        while (first := self._first()) is not None:
            batch, due, last = [first], time.monotonic() + self.wait, False
            while len(batch) < self.most:
                try:
                    item = self._queue.get(timeout=max(due - time.monotonic(), 0))
                except queue.Empty:
                    break
                if item is None:
                    last = True
                    break
                batch.append(item)
            self._answer(batch)
            if last:
                break

    def _first(self) -> tuple[Tensor, Future[Tensor]] | None:
        try:
            return self._queue.get(timeout=_IDLE)
        except queue.Empty:
            self.rest()
            return self._queue.get()

    def _answer(self, batch: Sequence[tuple[Tensor, Future[Tensor]]]) -> None:
        live = [(image, future) for image, future in batch if future.set_running_or_notify_cancel()]
        if not live:
            return
        try:
            scores = self.score(torch.stack([image for image, _ in live]))
        except Exception as error:  # whatever the model raises is the answer; the next batch is another matter
            for _, future in live:
                future.set_exception(error)
            return
        self.images, self.batches = self.images + len(live), self.batches + 1
        for (_, future), row in zip(live, scores, strict=True):
            future.set_result(row)
