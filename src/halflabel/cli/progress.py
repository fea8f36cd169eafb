"""Progress bars in the terminal: one per job, or one per epoch of a training, followed by a line with its metrics."""

from __future__ import annotations

import time
from typing import Self

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halflabel.cli.terminal import console
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.system.format import duration, group_digits, plain_number, points

_LINE_SECONDS = 10.0  # between two lines of progress in a file or a pipe


def new_progress() -> Progress:
    """Return a progress bar; a task has the fields `rate` and `note`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # no bars in a file or a pipe
    )


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
        self._stop()

    def __call__(self, done: int, total: int) -> None:
        if self._progress is None:
            self._progress = new_progress()
            self._progress.start()
            self._progress.add_task(self.title, total=total, completed=done, rate="", note="")
            self._started = self._last_line = time.perf_counter()
            self._first = done
        else:
            now = time.perf_counter()
            rate = (done - self._first) / max(now - self._started, 1e-9)
            self._progress.update(self._progress.task_ids[0], completed=done, rate=self._speed(rate))
            if not console.is_terminal and now - self._last_line >= _LINE_SECONDS and rate > 0:
                self._last_line = now
                left = f"{self._speed(rate)}, {duration((total - done) / rate)} left"
                typer.echo(f"{self.title}: {group_digits(done)} of {group_digits(total)}, {left}", err=True)
        if done >= total:
            self._stop()

    def _speed(self, rate: float) -> str:
        return f"{rate:.0f} {self.unit}/s" if rate >= 10 else f"{rate:.1f} {self.unit}/s"

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class TrainingBar(Callback):
    """A progress bar per epoch, then a line with its metrics; `word` is the name of an epoch."""

    def __init__(self, word: str = "epoch") -> None:
        self.epochs = 0
        self.word = word
        self._progress = new_progress()
        self._seen = 0
        self._started = 0.0
        self._began = 0.0  # of the first epoch that this process trains
        self._epochs_timed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self.epochs = epochs
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._progress.start()  # not earlier: the features may show their own bar first
        self._progress.add_task(f"{self.word} {epoch}/{self.epochs}", total=images, rate="", note="")
        self._seen, self._started = 0, time.perf_counter()
        if not self._epochs_timed:
            self._began = self._started

    def on_step_end(self, images: int, loss: float | None) -> None:
        self._seen += images
        if loss is not None:
            rate = self._seen / max(time.perf_counter() - self._started, 1e-9)
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=self._seen, rate=f"{rate:.0f} images/s", note=f"loss {loss:.4f}")

    def on_epoch_end(self, log: EpochLog) -> None:
        self._progress.stop()  # another callback may show the next epoch
        parts = [f"{self.word} {log['epoch']:>3}/{self.epochs}", f"loss {log['loss']:.4f}"]
        for key, title in (("mAP", "mAP"), ("assumed_mAP", "mAP (unknown = absent)")):
            if key in log:
                parts.append(f"{title} {points(log[key])}")
        known = {"epoch", "loss", "lr", "images_per_s", "seconds", "mAP", "assumed_mAP", "select"}
        parts += [f"{key} {plain_number(value)}" for key, value in log.items() if key not in known]
        parts.append(f"{log['images_per_s']:.0f} images/s")
        self._epochs_timed += 1
        if left := self.epochs - log["epoch"]:
            seconds = (time.perf_counter() - self._began) / self._epochs_timed * left
            parts.append(f"about {duration(seconds)} left")
        console.print("  ".join(parts))
