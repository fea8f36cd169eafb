"""Callbacks: objects that are called while training runs, such as progress bars and log writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halflabel.errors import UserError

__all__ = ["Callback", "CallbackList", "EpochLog", "TensorBoard"]


class EpochLog(dict[str, Any]):
    """One line of the training log: epoch, loss, lr, images_per_s, and the numbers of validation and relabelling."""


class Callback:
    """Base class of all callbacks. Each method does nothing; a subclass overrides the ones it needs.

    Training calls the epoch and step methods. A comparison of many trainings calls the task methods too.
    """

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        """Epoch number `epoch` of `epochs` (counted from 1) starts; it has `images` images."""

    def on_step_end(self, images: int, loss: float | None) -> None:
        """A batch of `images` images is done. `loss` is the epoch's mean so far, or None if it was not read."""

    def on_epoch_end(self, log: EpochLog) -> None:
        """An epoch is finished, and its checkpoint is written."""

    def on_task_start(self, task: Any, number: int, total: int, seconds_left: float | None) -> None:
        """Task `number` of `total` (counted from 1) of a comparison starts; `seconds_left` is None if unknown."""

    def on_task_end(self, task: Any, outcome: Any, number: int, total: int) -> None:
        """A task of a comparison is finished or has failed."""


class CallbackList(Callback):
    """Calls several callbacks in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        for callback in self.callbacks:
            callback.on_epoch_start(epoch, epochs, images)

    def on_step_end(self, images: int, loss: float | None) -> None:
        for callback in self.callbacks:
            callback.on_step_end(images, loss)

    def on_epoch_end(self, log: EpochLog) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end(log)

    def on_task_start(self, task: Any, number: int, total: int, seconds_left: float | None) -> None:
        for callback in self.callbacks:
            callback.on_task_start(task, number, total, seconds_left)

    def on_task_end(self, task: Any, outcome: Any, number: int, total: int) -> None:
        for callback in self.callbacks:
            callback.on_task_end(task, outcome, number, total)


class TensorBoard(Callback):
    """Writes the numbers of each epoch to TensorBoard event files; needs the package `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed", "pip install 'halflabel[tensorboard]'") from None
        self.writer = SummaryWriter(str(folder))

    def on_epoch_end(self, log: EpochLog) -> None:
        for name, value in log.items():
            if name != "epoch":
                self.writer.add_scalar(name, value, log["epoch"])
        self.writer.flush()
