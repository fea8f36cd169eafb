"""Progress and messages of commands that run a grid of trainings: compare, study and reproduce."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.markup import escape

from halflabel.cli.options import panel
from halflabel.cli.progress import new_progress
from halflabel.cli.terminal import console, warnings_in_a_line
from halflabel.errors import UserError
from halflabel.fitting import assembly, auto
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import COMMON, Config
from halflabel.system.format import duration, points

if TYPE_CHECKING:
    from halflabel.comparison.grid import Outcome, Task


EVALUATION = "Evaluation"

Budget = Annotated[str | None, panel(COMMON, "Time limit: 90s, 30m, 2h.", show_default=False, metavar="TIME")]
TestLabels = Annotated[
    Path | None, panel(EVALUATION, "Labels of other images to test on (default: a part of LABELS).", metavar="FILE")
]
TestImages = Annotated[Path | None, panel(EVALUATION, "The images of --test (default: IMAGES).", metavar="DIR")]
TestShare = Annotated[float, panel(EVALUATION, "Without --test: the share of the images to test on.")]


class GridBar(Callback):
    """A progress bar of the running task with the time left, and a line for each finished one."""

    def __init__(self) -> None:
        self._progress, self._due, self._epochs = new_progress(), math.nan, 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_task_start(self, task: Task, number: int, total: int, seconds_left: float | None) -> None:
        self._progress.stop()  # the features may come first, with their own bar
        self._due = math.nan if seconds_left is None else time.monotonic() + seconds_left
        for shown in self._progress.task_ids:
            self._progress.remove_task(shown)
        self._progress.add_task(f"run {number}/{total}", total=1, rate=self._time_left(), note=escape(task.describe()))

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self._epochs = epochs

    def on_epoch_end(self, log: EpochLog) -> None:
        self._progress.start()
        shown = self._progress.task_ids[0]
        self._progress.update(shown, completed=log["epoch"], total=self._epochs, rate=self._time_left())

    def on_task_end(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
        self._progress.stop()
        what = f"[bright_black]{number:>{len(str(total))}}/{total}[/]  {escape(task.describe())}"
        if outcome.error:
            console.print(f"{what}: [red]failed[/]: {escape(outcome.error)}")
            return
        kind = "mAP (unknown = absent)" if outcome.measure == "assumed_mAP" else "mAP"
        where = "validation" if outcome.best_epoch else "out-of-fold"
        judged = f"{where} {kind} {points(outcome.select)}" if outcome.measure else "last epoch"
        left = f"  {self._time_left()}" if number < total else ""
        console.print(f"{what}: {judged}  {outcome.seconds:.3g} s[bright_black]{left}[/]")

    def _time_left(self) -> str:
        return "" if math.isnan(self._due) else f"{duration(max(self._due - time.monotonic(), 0))} left"


@contextmanager
def resumable_grid(folder: Path) -> Iterator[None]:
    """On Ctrl-C, print one line and exit: finished runs are saved. Print each warning on one line."""
    try:
        with warnings_in_a_line():
            yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped; finished runs are in {folder}: the same command resumes", err=True)
        raise typer.Exit(130) from None


def grid_config(training: dict[str, Any], images: int, **defaults: Any) -> Config:
    """Return the configuration that all runs share, from the training options; `lr` is not part of it."""
    config = Config.from_options({"fit": "auto", "workers": 2, **defaults, **training, "lr": None})
    if config.tune == "head" and config.fit != "batches":
        assembly.refuse_options_of_batches(training)
    epochs = training.get("epochs") or auto.epochs_for(images, config.tune)
    return replace(config, settings=replace(config.settings, epochs=epochs))


def split_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_shares(text: str, option: str) -> list[float]:
    """Shares separated by commas, from an option."""
    try:
        return [float(word) for word in split_words(text)]
    except ValueError:
        raise UserError(f"{text!r} are not shares", f"separate them by commas, such as {option} 0.1,0.3,1") from None


def rerun_command() -> str:
    """This command without --force, which would start over."""
    return shlex.join(["halflabel", *(word for word in sys.argv[1:] if word != "--force")])
