"""Progress bars in the terminal: one per job, or one per epoch of a training, followed by a line with its metrics."""

from __future__ import annotations

import time
from typing import Self

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halflabel.cli.show import console
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.system.format import duration, group_digits, plain_number, points

_LINE_SECONDS = 10.0  # between two lines of progress in a file or a pipe


class Bar:
    """A progress bar, called with (done, total); in a file or a pipe, a line on stderr every ten seconds."""

    def __init__(self, title: str, unit: str = "images") -> None:
        self.title = title
        self.unit = unit
        self._progress: Progress | None = None
        self._started = self._last_line = 0.0
        self._first = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        now = time.perf_counter()
        if self._progress is None:
            texts = (TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                *texts,
                console=console,
                transient=True,
                disable=not console.is_terminal,  # no bars in a file or a pipe
            )
            self._progress.start()
            self._progress.add_task(self.title, total=total, completed=done, rate="", note=escape(note))
            self._started = self._last_line = now
            self._first = done
        elif done > self._first:
            rate = (done - self._first) / max(now - self._started, 1e-9)
            speed = f"{rate:.{0 if rate >= 10 else 1}f} {self.unit}/s"
            self._progress.update(self._progress.task_ids[0], completed=done, rate=speed, note=escape(note))
            if not console.is_terminal and now - self._last_line >= _LINE_SECONDS:
                self._last_line = now
                left = f"{speed}, {duration((total - done) / rate)} left"
                typer.echo(f"{self.title}: {group_digits(done)} of {group_digits(total)}, {left}", err=True)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """Remove the bar; a later call shows a new one."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class CallbackBar(Callback):
    """A callback with a progress bar, which another may replace."""

    def __init__(self) -> None:
        self._bar = Bar("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class TrainingBar(CallbackBar):
    """A progress bar per epoch, then a line with its metrics."""

    def __init__(self) -> None:
        super().__init__()
        self._epochs = self._images = self._seen = self._timed = 0
        self._began = 0.0  # of the first epoch that this process trains

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self._epochs, self._images, self._seen = epochs, images, 0
        self._bar.stop()
        self._bar = Bar(f"epoch {epoch}/{epochs}")
        self._bar(0, images)  # not earlier: the features may show their own bar first
        if not self._timed:
            self._began = time.perf_counter()

    def on_step_end(self, images: int, loss: float | None) -> None:
        self._seen += images
        if loss is not None:
            self._bar(self._seen, self._images, f"loss {loss:.4f}")

    def on_epoch_end(self, log: EpochLog) -> None:
        self._bar.stop()  # another callback may show the next epoch
        parts = [f"epoch {log['epoch']:>3}/{self._epochs}", f"loss {log['loss']:.4f}"]
        for key, title in (("mAP", "mAP"), ("assumed_mAP", "mAP (unknown = absent)")):
            if key in log:
                parts.append(f"{title} {points(log[key])}")
        known = {"epoch", "loss", "lr", "images_per_s", "seconds", "mAP", "assumed_mAP", "select"}
        parts += [f"{key} {plain_number(value)}" for key, value in log.items() if key not in known]
        parts.append(f"{log['images_per_s']:.0f} images/s")
        self._timed += 1
        if left := self._epochs - log["epoch"]:
            seconds = (time.perf_counter() - self._began) / self._timed * left
            parts.append(f"about {duration(seconds)} left")
        console.print("  ".join(parts))
