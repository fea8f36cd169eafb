"""Watches of training besides the screen."""

from __future__ import annotations

from pathlib import Path

from halflabel.errors import UserError
from halflabel.training.loop import Epoch, Watch

__all__ = ["Several", "TensorBoard"]


class Several:
    """Tells several watches the same."""

    def __init__(self, *watches: Watch) -> None:
        self.watches = watches

    def epoch_starts(self, epoch: int, images: int) -> None:
        for watch in self.watches:
            watch.epoch_starts(epoch, images)

    def step_done(self, images: int, loss: float | None) -> None:
        for watch in self.watches:
            watch.step_done(images, loss)

    def epoch_ends(self, line: Epoch) -> None:
        for watch in self.watches:
            watch.epoch_ends(line)


class TensorBoard:
    """Writes the numbers of each epoch where TensorBoard finds them; needs the package `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed", "pip install 'halflabel[tensorboard]'") from None
        self.writer = SummaryWriter(str(folder))

    def epoch_starts(self, epoch: int, images: int) -> None:
        pass

    def step_done(self, images: int, loss: float | None) -> None:
        pass

    def epoch_ends(self, line: Epoch) -> None:
        for name, value in line.items():
            if name != "epoch":
                self.writer.add_scalar(name, value, line["epoch"])
        self.writer.flush()
