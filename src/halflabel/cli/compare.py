"""The command `compare`."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from halflabel.cli import app
from halflabel.cli.options import (
    Device,
    ImageFolder,
    LabelFile,
    Optimizer,
    Precision,
    Resize,
    Tune,
    check_method,
    takes_policy,
)
from halflabel.cli.screen import console, show_audit
from halflabel.errors import UserError
from halflabel.points import points

if TYPE_CHECKING:
    from halflabel.compare import Comparison, Row, Task
    from halflabel.compare.grid import Outcome
    from halflabel.labels.audit import Import

TRAINING, JUDGING = "How all are trained", "How they are judged"

Select = StrEnum("Select", ["known", "hidden"])
Search = StrEnum("Search", ["small", "none"])


def _panel(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


@app.command()
@takes_policy
def compare(
    labels: LabelFile,
    images: ImageFolder,
    read: Callable[[Path], Any],
    methods: Annotated[
        str,
        typer.Option(help="Names with commas; auto: a short list that suits the labels. em:alpha=0.05 sets options."),
    ] = "auto",
    seeds: Annotated[int, typer.Option(help="Runs per method and share, to see how much is chance.", min=1)] = 3,
    shares: Annotated[
        str | None, typer.Option(help="Keep such shares of each image's labels, such as 0.1,0.3,1.", show_default=False)
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="Hide labels otherwise: NAME:option=value, see `halflabel drop --help`. May be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for results; the same one goes on where it stopped.")] = Path(
        "runs/compare"
    ),
    budget: Annotated[
        str | None, typer.Option(help="Time for this call: 90s, 30m, 2h.", show_default=False, metavar="TIME")
    ] = None,
    search: Annotated[
        Search, typer.Option(help="small: try 3 learning rates, then the key option, per method. none: defaults.")
    ] = Search.small,
    force: Annotated[bool, typer.Option("--force", help="Start again in a folder that holds a comparison.")] = False,
    test: Annotated[
        Path | None, _panel(JUDGING, "Labels of other images to judge by (default: a part of LABELS).", metavar="FILE")
    ] = None,
    test_images: Annotated[Path | None, _panel(JUDGING, "Where they are (default: IMAGES).", metavar="DIR")] = None,
    test_share: Annotated[float, _panel(JUDGING, "Without --test: the share of the images set aside.")] = 0.2,
    held_out: Annotated[float, _panel(JUDGING, "Share of the other images kept for validation.")] = 0.2,
    select: Annotated[
        Select, _panel(JUDGING, "What epochs and settings are chosen by: known labels, or the hidden truth.")
    ] = Select.known,
    tune: Annotated[Tune, _panel(TRAINING, "head: frozen backbone, features cached, quick on a CPU.")] = Tune.head,
    backbone: Annotated[str, _panel(TRAINING, "efficientnet-lite0 comes with the package; or any timm model.")] = (
        "efficientnet-lite0"
    ),
    weights: Annotated[Path | None, _panel(TRAINING, "A local file with the backbone's weights.")] = None,
    size: Annotated[int | None, _panel(TRAINING, "Image size in pixels (default: the backbone's own).")] = None,
    resize: Annotated[Resize, _panel(TRAINING, "squash: whole image; crop: centre square.")] = Resize.squash,
    epochs: Annotated[
        int | None, _panel(TRAINING, "Passes over the training images (default: by their number).", min=1)
    ] = None,
    batch_size: Annotated[int, _panel(TRAINING, "Images per step.", min=1)] = 32,
    lr: Annotated[
        float | None, _panel(TRAINING, "One learning rate for all (default: the methods' own).", min=0)
    ] = None,
    optimizer: Annotated[Optimizer, _panel(TRAINING, "What takes the steps.")] = Optimizer.adamw,
    ema: Annotated[float, _panel(TRAINING, "Decay of the weight average; 0 = none.", min=0, max=1)] = 0.0,
    patience: Annotated[int, _panel(TRAINING, "Stop after so many epochs without gain; 0 = never.", min=0)] = 0,
    device: Annotated[Device, _panel(TRAINING, "Where to compute.")] = Device.auto,
    precision: Annotated[Precision, _panel(TRAINING, "no is float32.")] = Precision.no,
    workers: Annotated[int, _panel(TRAINING, "Processes that decode images.", min=0)] = 2,
    max_bad: Annotated[float, _panel(TRAINING, "Stop above this share of unreadable images.", min=0, max=1)] = 0.01,
) -> None:
    """Compare methods on your own data: seeds, intervals, paired differences, time and memory.

    Images are divided into those to learn from, those to choose epochs and settings by, and those to judge by. Labels
    are hidden (--shares, --protocol) from the first two only. Every finished run is kept: the same command goes on
    where it stopped, also after --budget is spent, and methods, shares and seeds may be added to it.

    Example: halflabel compare labels.csv photos/ --methods bce,em,asl --budget 30m

    Example: halflabel compare labels.csv photos/ --methods auto --shares 0.1,0.3,1 --out runs/shares

    Example: halflabel compare labels.csv photos/ --methods an,em:alpha=0.05 --protocol single-positive --test test.csv
    """
    for folder in (images, test_images):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{folder} is no folder", "name the folder with the images")
    kept_shares = _numbers(shares)
    for name in _words(methods):
        if name != "auto":
            check_method(name.partition(":")[0])
    found: Import = read(labels)
    table = found.table()
    other = read(test).table() if test is not None else None
    show_audit(found.audit, table)

    from halflabel.auto import epochs_for
    from halflabel.compare import compare as compare_methods
    from halflabel.experiment import Config
    from halflabel.train import Settings

    chosen: dict[str, Any] = {"optimizer": optimizer.value, "precision": precision.value}
    shapes: dict[str, Any] = {"resize": resize.value, "tune": tune.value}
    settings = Settings(
        epochs=epochs if epochs is not None else epochs_for(len(table), tune.value),
        batch_size=batch_size,
        ema=ema,
        patience=patience,
        device=device.value,
        **chosen,
    )
    config = Config(
        backbone=backbone,
        weights=str(weights.absolute()) if weights else None,
        size=size,
        held_out=held_out,
        max_bad=max_bad,
        workers=workers,
        settings=settings,
        **shapes,
    )
    from halflabel.cli.progress import Bar

    where = escape(str(out))
    with kept(out), GridBar() as watch, Bar("features") as bar:
        result = compare_methods(
            table,
            images,
            _words(methods),
            out=out,
            shares=kept_shares,
            protocols=protocol or (),
            seeds=seeds,
            test=other,
            test_images=test_images,
            test_share=test_share,
            select=select.value,  # type: ignore[arg-type]  # typer has checked it
            search=search.value,  # type: ignore[arg-type]
            budget=budget,
            lr=lr,
            config=config,
            force=force,
            watch=watch,
            say=console.print,
            progress=bar,
        )
    show_comparison(result)
    if not result.rows:
        raise UserError("not one run could be finished", "see the reasons above")
    if result.left_out:
        console.print(f"To go on:  {escape(_again())}", soft_wrap=True)
    console.print(f"Wrote [bold]{where}[/]: comparison.csv, comparison.json, plots/", soft_wrap=True)
    best = next((row for row in result.rows if row.labels == "all"), result.rows[0])
    words = ["halflabel", "train", str(labels), str(images), "--method", best.method.partition(":")[0]]
    words += ["--lr", f"{best.lr:.3g}"]
    for name, value in best.options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    console.print(f"Next:  {escape(shlex.join(words))}", soft_wrap=True)


@contextmanager
def kept(place: Path) -> Iterator[None]:
    """Let Ctrl-C end a grid of runs with one line: what is finished is kept."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped; what is finished is in {place}: the same command goes on", err=True)
        raise typer.Exit(130) from None


class GridBar:
    """A bar over the whole grid with the time left, and a line for each finished run."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("run {task.fields[number]}/{task.total:.0f}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._number, self._due, self._note = 0, math.nan, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def task_starts(self, task: Task, number: int, total: int, left: float | None) -> None:
        self._progress.stop()  # it may have to wait for features, which have a bar of their own
        self._number, self._note = number, task.describe()
        self._due = math.nan if left is None else time.monotonic() + left
        if not self._progress.task_ids:
            self._progress.add_task("", total=total, number=number, left="", note="")
        self._show(0.0)

    def epoch_ends(self, epoch: int, epochs: int) -> None:
        self._progress.start()
        self._show(epoch / epochs)

    def task_ends(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
        what = f"[bright_black]{number:>{len(str(total))}}/{total}[/]  {escape(task.describe())}"
        if outcome.error:
            console.print(f"{what}: [red]failed[/]: {escape(outcome.error)}", soft_wrap=True)
        else:
            kind = "mAP (unknown = absent)" if outcome.measure == "assumed_mAP" else "mAP"
            judged = f"validation {kind} {points(outcome.select)}" if outcome.measure else "last epoch"
            console.print(f"{what}: {judged}  {_time(outcome.seconds)}", soft_wrap=True)
        self._show(1.0)
        if number == total:
            self._progress.stop()

    def _show(self, part: float) -> None:
        left = "" if math.isnan(self._due) else f"{_time(max(self._due - time.monotonic(), 0))} left"
        self._progress.update(
            self._progress.task_ids[0],
            completed=self._number - 1 + part,
            number=self._number,
            left=left,
            note=self._note,
        )


def show_comparison(found: Comparison) -> None:
    """The table, what failed, what was left out, and how it was judged."""
    console.print()
    if found.select == "hidden":
        console.print("[bold red]Chosen on hidden truth:[/] too good for anyone who lacks those labels.\n")
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows.add_column("labels", no_wrap=True)
    rows.add_column("method", no_wrap=True)
    for title in ("test mAP (95 %)", "to the best (95 %)", "seeds", "s/run", "memory", "lr", "options", "tried"):
        rows.add_column(title, justify="left" if title == "options" else "right")
    before = ""
    for row in found.rows:
        if row.labels != before and before:
            rows.add_row()
        shown = row.labels if row.labels != before else ""
        before = row.labels
        rows.add_row(
            escape(shown),
            f"[bold]{escape(row.method)}[/]",
            f"{points(row.mAP)} ({points(row.mAP_low)} – {points(row.mAP_high)})",
            _behind(row, row is found.best(row.labels)),
            str(row.seeds),
            f"{row.seconds:.3g}",
            "—" if math.isnan(row.memory) else f"{row.memory / 2**20:.0f} MB",
            f"{row.lr:.2g}",
            escape(" ".join(f"{name}={value}" for name, value in row.options.items()) or "—"),
            str(row.tried) if row.tried == row.to_try else f"{row.tried} of {row.to_try}",
        )
    if found.rows:
        console.print(rows)
        if found.memory_kind:
            console.print(f"[bright_black]memory: {found.memory_kind} during a run; tried: settings, with seed 0[/]")
    for failure in found.failures:
        what = failure.method if failure.what == "all" else failure.what
        console.print(
            f"[red]failed:[/] {escape(what)} (labels {escape(failure.labels)}): {escape(failure.reason)}",
            soft_wrap=True,
        )
    if found.left_out:
        parts = [f"{left.method} at {left.labels}: {left.runs}" for left in found.left_out]
        runs = sum(left.runs for left in found.left_out)
        console.print(f"[yellow]left out for want of time:[/] {runs} runs ({escape('; '.join(parts))})", soft_wrap=True)
    for sentence in found.protocol:
        console.print(f"[bright_black]{escape(sentence)}[/]")


def _behind(row: Row, best: bool) -> str:
    if best:
        return "best"
    mean, low, high = (points(gap, 2, signed=True) for gap in (row.behind, row.behind_low, row.behind_high))
    value = f"{mean} ({low} to {high})"
    return value if row.behind_high < 0 else f"{value} ≈"


def _time(seconds: float) -> str:
    """
    >>> _time(4.2), _time(75), _time(8000)
    ('4.2 s', '1 min 15 s', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(word) for word in _words(text or "")]
    except ValueError:
        raise UserError(f"{text!r} are no shares", "write them with commas, such as --shares 0.1,0.3,1") from None


def _again() -> str:
    return shlex.join(["halflabel", *sys.argv[1:]])
