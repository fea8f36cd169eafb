"""The command `compare`."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from halflabel.cli import app
from halflabel.cli.options import (
    COMMON,
    GroupedCommand,
    ImageFolder,
    LabelFile,
    ReadLabels,
    check_image_folder,
    check_method,
    panel,
    takes_label_options,
    takes_training_options,
)
from halflabel.cli.terminal import console, show_audit, warnings_in_a_line
from halflabel.errors import UserError
from halflabel.system.format import counted, group_digits, points
from halflabel.system.reporter import Reporter
from halflabel.training.callbacks import Callback, EpochLog

if TYPE_CHECKING:
    from halflabel.experiments import Comparison, ComparisonRow, Task
    from halflabel.experiments.grid import Outcome
    from halflabel.labels.audit import LabelImport

EVALUATION = "Evaluation"

_NO_EDGE = 10_000  # columns
_OWN = {"labels", "images", "out", "force", "lr"}  # what means another thing to `train`, or what is said anyway

Select = StrEnum("Select", ["known", "hidden"])
Search = StrEnum("Search", ["small", "none"])


@app.command(cls=GroupedCommand)
@takes_label_options
@takes_training_options("compare", ema=0.0)
def compare(
    ctx: typer.Context,
    labels: LabelFile,
    images: ImageFolder,
    read: ReadLabels,
    training: dict[str, Any],
    methods: Annotated[
        str,
        panel(
            COMMON,
            "Names, separated by commas; auto: a short list that suits the labels. em:alpha=0.05 sets an option.",
        ),
    ] = "auto",
    seeds: Annotated[int, panel(COMMON, "Runs per method and share of labels, to measure the variation.", min=1)] = 3,
    shares: Annotated[
        str | None,
        panel(COMMON, "Keep these shares of each image's labels, such as 0.1,0.3,1.", show_default=False),
    ] = None,
    out: Annotated[
        Path, panel(COMMON, "The folder for results; a comparison that it already holds is resumed.")
    ] = Path("runs/compare"),
    budget: Annotated[
        str | None, panel(COMMON, "Time limit: 90s, 30m, 2h.", show_default=False, metavar="TIME")
    ] = None,
    force: Annotated[bool, panel(COMMON, "Replace a comparison that the folder already holds.", "--force")] = False,
    protocol: Annotated[
        list[str] | None,
        panel(
            EVALUATION,
            "Hide labels in another way: NAME:option=value, see `halflabel drop --help`. May be repeated.",
        ),
    ] = None,
    search: Annotated[
        Search,
        panel(EVALUATION, "small: for each method, try 3 learning rates, then its main option. none: use defaults."),
    ] = Search.small,
    test: Annotated[
        Path | None,
        panel(EVALUATION, "Labels of other images to test on (default: a part of LABELS).", metavar="FILE"),
    ] = None,
    test_images: Annotated[
        Path | None, panel(EVALUATION, "The images of --test (default: IMAGES).", metavar="DIR")
    ] = None,
    test_share: Annotated[float, panel(EVALUATION, "Without --test: the share of the images to test on.")] = 0.2,
    select: Annotated[
        Select, panel(EVALUATION, "The labels that choose the epoch and the settings: known, or hidden.")
    ] = Select.known,
) -> None:
    """Compare methods on your own data: seeds, intervals, paired differences, time and memory.

    Images are divided into those to learn from, those to choose epochs and settings by, and those to judge by. Labels
    are hidden (--shares, --protocol) from the first two only. Every finished run is kept: the same command goes on
    where it stopped, also after --budget is spent, and methods, shares and seeds may be added to it.

    Example: halflabel compare labels.csv photos/ --methods bce,em,asl --budget 30m

    Example: halflabel compare labels.csv photos/ --methods auto --shares 0.1,0.3,1 --out runs/shares

    Example: halflabel compare labels.csv photos/ --methods an,em:alpha=0.05 --protocol single-positive --test test.csv
    """
    check_image_folder(images, test_images)
    kept_shares = shares_in(shares or "", "--shares")
    for name in _words(methods):
        if name != "auto":
            check_method(name.partition(":")[0])
    found: LabelImport = read(labels)
    test_rows = read(test).rows if test is not None else None
    table = found.table()
    show_audit(found.audit, table)

    from halflabel.experiments import compare as compare_methods
    from halflabel.methods.auto import epochs_for
    from halflabel.training.config import Config

    lr = training.pop("lr")
    epochs = training.pop("epochs") or epochs_for(len(table), training["tune"])
    config = Config.from_options({**training, "epochs": epochs})
    from halflabel.cli.progress import Bar

    where = escape(str(out))
    with kept(out), GridBar() as task_bar, Bar("features") as bar:
        result = compare_methods(
            found.rows,
            images,
            _words(methods),
            out=out,
            shares=kept_shares,
            protocols=protocol or (),
            seeds=seeds,
            test=test_rows,
            test_images=test_images,
            test_share=test_share,
            select=select.value,  # type: ignore[arg-type]  # typer has checked it
            search=search.value,  # type: ignore[arg-type]
            budget=budget,
            lr=lr,
            config=config,
            force=force,
            reporter=Reporter(bar, console.print, task_bar),
        )
    show_comparison(result)
    if result.left_out:
        show_waiting(result.waiting)
        console.print(f"To go on:  {escape(again())}", soft_wrap=True)
    if not result.rows:
        raise nothing_finished(result.waiting, bool(result.left_out))
    console.print(f"Wrote [bold]{where}[/]: comparison.csv, comparison.json", soft_wrap=True)
    best = next((row for row in result.rows if row.labels == "all"), None)
    if best is None:
        said = "labels were hidden from all of these. To choose a method for the labels as they are, compare without"
        console.print(f"Next:  {said} --protocol and --shares, or with --shares 1", soft_wrap=True)
        return
    words = ["halflabel", "train", str(labels), str(images), "--method", best.method.partition(":")[0]]
    words += ["--lr", f"{best.lr:.6g}"]
    for name, value in best.options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    console.print(f"Next:  {escape(shlex.join([*words, *_shared_options(ctx)]))}", soft_wrap=True)


def _shared_options(ctx: typer.Context) -> list[str]:
    """The options given to this command that `train` takes too, so that it reads and trains alike."""
    group: Any = ctx.find_root().command
    takes = {flag for parameter in group.commands["train"].params for flag in parameter.opts}
    words: list[str] = []
    for parameter in ctx.command.params:
        name, flag = parameter.name or "", parameter.opts[0]
        source = ctx.get_parameter_source(name)
        if name in _OWN or flag not in takes or source is None or source.name != "COMMANDLINE":
            continue
        value = ctx.params[name]
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [flag, str(one)]
    return words


def show_waiting(waiting: tuple[int, int] | None) -> None:
    """Say that it was not the runs that took the time."""
    if waiting is not None:
        done, total = (group_digits(part) for part in waiting)
        console.print(f"The budget ended while features were computed: {done} of {total} images done, which are kept.")


def nothing_finished(waiting: tuple[int, int] | None, out_of_time: bool) -> UserError:
    """What to say where there is no result."""
    if waiting is not None:
        done, total = (group_digits(part) for part in waiting)
        return UserError(
            f"the budget ended while features were computed ({done} of {total} images done)",
            "the same command goes on from there; a longer --budget gets further",
        )
    if out_of_time:
        return UserError("the budget ended before one run was finished", "give the same command a longer --budget")
    return UserError("not one run could be finished", "see the reasons above")


def print_table(table: Table) -> None:
    """A table as wide as it is where it goes to a file or a pipe: these have no right edge."""
    if console.is_terminal:
        console.print(table)
    else:
        Console(file=console.file, width=_NO_EDGE, highlight=False).print(table)


@contextmanager
def kept(place: Path) -> Iterator[None]:
    """Let Ctrl-C end a grid of runs with one line: what is finished is kept. Warnings take one line too."""
    try:
        with warnings_in_a_line():
            yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped; what is finished is in {place}: the same command goes on", err=True)
        raise typer.Exit(130) from None


class GridBar(Callback):
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
        self._number, self._due, self._note, self._epochs = 0, math.nan, "", 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_task_start(self, task: Task, number: int, total: int, seconds_left: float | None) -> None:
        self._progress.stop()  # it may have to wait for features, which have a bar of their own
        self._number, self._note = number, task.describe()
        self._due = math.nan if seconds_left is None else time.monotonic() + seconds_left
        if not self._progress.task_ids:
            self._progress.add_task("", total=total, number=number, left="", note="")
        self._show(0.0)

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self._epochs = epochs

    def on_epoch_end(self, log: EpochLog) -> None:
        self._progress.start()
        self._show(log["epoch"] / self._epochs)

    def on_task_end(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
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
    if found.rows:
        table = _wide(found)
        if console.is_terminal and console.measure(table, options=console.options.update(width=_NO_EDGE)).maximum > (
            console.width
        ):
            _show_narrow(found)
        else:
            print_table(table)
        unsure = [row for row in found.rows if "≈" in _behind(row, row is found.best(row.labels))]
        if unsure:
            few = any(row.seeds < 3 for row in unsure)
            more = "; with fewer than 3 seeds the interval says most about the seeds: more of them narrow it"
            console.print(f"[bright_black]≈: cannot be told from the best{more if few else ''}[/]")
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
        console.print(
            f"[yellow]left out for want of time:[/] {counted(runs, 'run')} ({escape('; '.join(parts))})", soft_wrap=True
        )
    for sentence in found.protocol:
        console.print(f"[bright_black]{escape(sentence)}[/]")


def _cells(row: ComparisonRow, best: bool) -> dict[str, str]:
    """What a row shows, by title."""
    return {
        "test mAP (95 %)": f"{points(row.mAP)} ({points(row.mAP_low)} – {points(row.mAP_high)})",
        "to the best (95 %)": _behind(row, best),
        "seeds": f"{row.seeds} + {row.unused_seeds}" if row.unused_seeds else str(row.seeds),
        "s/run": f"{row.seconds:.3g}",
        "memory": "—" if math.isnan(row.memory) else f"{row.memory / 2**20:.0f} MB",
        "lr": f"{row.lr:.2g}",
        "options": " ".join(f"{name}={value}" for name, value in row.options.items()) or "—",
        "tried": str(row.tried) if row.tried == row.to_try else f"{row.tried} of {row.to_try}",
    }


def _wide(found: Comparison) -> Table:
    """One line per row."""
    shown = [_cells(row, row is found.best(row.labels)) for row in found.rows]
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("labels", "method", *shown[0]):
        rows.add_column(title, justify="left" if title in ("labels", "method", "options") else "right", no_wrap=True)
    before = ""
    for row, cells in zip(found.rows, shown, strict=True):
        if row.labels != before and before:
            rows.add_row()
        first = row.labels if row.labels != before else ""
        rows.add_row(escape(first), f"[bold]{escape(row.method)}[/]", *map(escape, cells.values()))
        before = row.labels
    return rows


def _show_narrow(found: Comparison) -> None:
    """Two lines per row, in columns by hand: a table that is too wide would be cut, and figures with it."""
    shown = [_cells(row, row is found.best(row.labels)) for row in found.rows]
    first = list(shown[0])[:3]
    widths = [max(len(cells[title]) for cells in [*shown, {t: t for t in first}]) for title in first]
    name = max(len(row.method) for row in found.rows)
    before = ""
    for row, cells in zip(found.rows, shown, strict=True):
        if row.labels != before:
            console.print(f"{'' if not before else chr(10)}[bold]labels {escape(row.labels)}[/]", soft_wrap=True)
            heads = "  ".join(title.rjust(width) for title, width in zip(first, widths, strict=True))
            console.print(f"  [bold]{'method'.ljust(name)}  {heads}[/]", soft_wrap=True)
        before = row.labels
        figures = "  ".join(cells[title].rjust(width) for title, width in zip(first, widths, strict=True))
        console.print(f"  [bold]{escape(row.method.ljust(name))}[/]  {escape(figures)}", soft_wrap=True)
        rest = ", ".join(f"{title} {value}" for title, value in cells.items() if title not in first and value != "—")
        console.print(Padding(Text(rest, "bright_black"), (0, 0, 0, 4)))


def _behind(row: ComparisonRow, best: bool) -> str:
    if best:
        return "best"
    if math.isnan(row.behind):
        return "—"
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


def shares_in(text: str, option: str) -> list[float]:
    """Shares written with commas, as an option gives them."""
    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise UserError(f"{text!r} are no shares", f"write them with commas, such as {option} 0.1,0.3,1") from None


def again() -> str:
    """This very command, without what would start from nothing again."""
    return shlex.join(["halflabel", *(word for word in sys.argv[1:] if word != "--force")])
