"""The commands of experiments: `compare`, `study`, `reproduce` and `figures`."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from halflabel.cli import show
from halflabel.cli.options import (
    ImageFolder,
    LabelFile,
    LabelReader,
    RunArgument,
    argument,
    check_image_folder,
    command,
    option_words,
    panel,
    shared,
    training_words,
)
from halflabel.cli.progress import Bar, CallbackBar
from halflabel.cli.show import SafeConsole, console, plain_table, warnings_in_a_line
from halflabel.comparison import compare as comparing
from halflabel.comparison import study as studies
from halflabel.errors import UserError
from halflabel.fitting import assembly, auto
from halflabel.fitting.callbacks import EpochLog
from halflabel.fitting.config import COMMON, Config
from halflabel.methods import base
from halflabel.papers import datasets, settings, tables
from halflabel.papers import figures as paper_figures
from halflabel.papers import result as paper_result
from halflabel.papers import run as paper_run
from halflabel.runs import folder as run_folder
from halflabel.system.format import counted, duration, points
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.comparison.grid import Outcome, Task
    from halflabel.comparison.result import Row, Trials


WIDE, UNLIMITED_WIDTH = 160, 10_000  # columns
EVALUATION, DATA = "Evaluation", "Data"

Budget = Annotated[str | None, shared("Time limit: 90s, 30m, 2h.", metavar="TIME", rich_help_panel=COMMON)]
Force = Annotated[bool, shared("Replace results that the folder already holds.", "--force", rich_help_panel=COMMON)]
Seeds = Annotated[
    int, shared("Runs per method and set of labels, to measure the variation.", min=1, rich_help_panel=COMMON)
]
Test = Annotated[
    Path | None,
    shared(
        "Labels of other images to test on (default: a part of LABELS).", metavar="FILE", rich_help_panel=EVALUATION
    ),
]
TestImages = Annotated[
    Path | None, shared("The images of --test (default: IMAGES).", metavar="DIR", rich_help_panel=EVALUATION)
]


@command()
def compare(
    labels: LabelFile,
    images: ImageFolder,
    read: LabelReader,
    training: dict[str, Any],
    methods: str = panel(
        COMMON, "auto", "Names, separated by commas, such as em:alpha=0.05,bce; auto: some that suit."
    ),
    shares: str = panel(COMMON, "", "Keep these shares of each image's labels, such as 0.1,0.3,1."),
    seeds: Seeds = 3,
    budget: Budget = None,
    out: Path = panel(COMMON, Path("runs/compare"), "The folder for results; a comparison that it holds is resumed."),
    force: Force = False,
    protocol: list[str] | None = panel(
        EVALUATION, None, "Hide labels in another way, as `halflabel drop`; may be repeated."
    ),
    test: Test = None,
    test_images: TestImages = None,
    search: Literal["small", "none"] = panel(EVALUATION, "small", "small: try main options and learning rates."),
    references: bool = panel(
        EVALUATION, True, "Also train with unknown as absent, with all labels, and bce in batches."
    ),
) -> None:
    """Compare methods on your data, with confidence intervals, paired differences, F1 and time.

    Each method is trained as `halflabel train` would train it. A part of the images is for the test; labels are hidden
    only from the others. Finished runs are saved: the same command resumes, and methods, shares and seeds can be added.

    Example: halflabel compare labels.csv photos/ --methods bce,em:alpha=0.05 --shares 0.1,0.3,1 --budget 30m
    """
    label_shares = _parse_shares(shares, "--shares")
    for name in _split(methods):
        if name != "auto":
            base.recipe(name.partition(":")[0])  # an unknown name is an error before the label file is read
    result = _run_trials(
        comparing.compare,
        (labels, images),
        read,
        training,
        methods=_split(methods),
        out=out,
        shares=label_shares,
        protocols=protocol or (),
        search=search,
        references=references,
        seeds=seeds,
        budget=budget,
        test=test,
        test_images=test_images,
        force=force,
    )
    rows = [row for row in result.rows if row.labels == "all" and row.role not in ("oracle", "base")]
    if not rows:
        console.print(
            "Next:  labels were hidden from all of these. To choose a method for all labels, compare without "
            "--protocol and --shares, or with --shares 1"
        )
    else:
        best = max(rows, key=lambda row: row.mAP)
        rate = {"lr": f"{best.lr:.6g}"} if best.fit == "batches" else {}
        sets = {"set": [f"{name}={value}" for name, value in best.options.items()]}
        words = option_words({"method": best.method.partition(":")[0], **rate, **sets, **read.given})
        show.next_command("train", labels, images, *words, *training_words({**training, "lr": None}))
    show.next_command("report", out, why="the comparison as a page")


@command()
def study(
    labels: LabelFile,
    images: ImageFolder,
    read: LabelReader,
    training: dict[str, Any],
    grow: bool = panel(COMMON, False, "Compute a learning curve: what would twice as many labels give?", "--grow"),
    method: str = panel(COMMON, "bn-bce", "The training method: a name, name:option=value, or auto."),
    budgets: str = panel(COMMON, "", "Shares of the labels, such as 0.1,0.2,0.5,1."),
    worth: float = panel(COMMON, 1.0, "With --grow: the smallest gain, in points of mAP, that is worth it.", min=0),
    seeds: Seeds = 3,
    budget: Budget = None,
    out: Path | None = panel(COMMON, None, "The folder for results, resumed (default: runs/study or runs/growth)."),
    force: Force = False,
    test: Test = None,
    test_images: TestImages = None,
) -> None:
    """Measure on your images how best to spend labels, and whether more labels would help.

    Hides labels of fully labelled images in several ways: some labels of every image (partial), all labels of some
    images (dense), all labels with some of them wrong (noisy), one positive per image (noisy+). With --grow: what twice
    as many labels would give. Finished runs are saved: the same command resumes.

    Example: halflabel study labels.csv photos/ --budgets 0.1,0.2,0.5,1
    """
    shares = _parse_shares(budgets, "--budgets")
    check_image_folder(images)
    out = out if out is not None else Path("runs") / ("growth" if grow else "study")
    _run_trials(
        studies.grow if grow else studies.study,
        (labels, images),
        read,
        training,
        held_out=0.0,
        out=out,
        method=method,
        seeds=seeds,
        budget=budget,
        test=test,
        test_images=test_images,
        force=force,
        **({"shares": shares or studies.GROWTH, "worth": worth} if grow else {"budgets": shares or studies.BUDGETS}),
    )
    show.next_command("report", out)


def _run_trials(
    function: Callable[..., Trials],
    places: tuple[Path, Path],
    read: LabelReader,
    training: dict[str, Any],
    *,
    held_out: float = Config.held_out,
    **options: Any,
) -> Trials:
    """Read the label file and images in `places`, run trials with a progress bar, and show the result.

    Finished runs are saved: an interruption prints one line and exits.
    """
    (labels, images), group, test, out = places, training.get("group"), options["test"], options["out"]
    check_image_folder(images, options["test_images"])
    label_import, training["group"] = read.grouped(labels, group)
    show.audit(label_import.audit, table := label_import.table())
    options["test"] = read.grouped(test, group)[0].rows if test is not None else None
    # All runs share this configuration; the learning rate is not part of it.
    config = Config.from_options({"fit": "auto", "workers": 2, "held_out": held_out, **training, "lr": None})
    if config.tune == "head" and config.fit != "batches":
        assembly.refuse_options_of_batches(training)
    config = replace(config, epochs=training.get("epochs") or auto.epochs_for(len(table), config.tune))
    with resumable_grid(out), GridBar() as task_bar, Bar("features") as bar:
        reporter = Reporter(bar, show.message, task_bar)
        result = function(label_import.rows, images, lr=training.get("lr"), config=config, reporter=reporter, **options)
    show_trials(result)
    if result.left_out:
        fix = "the same command resumes; use a longer --budget"
        words = [word for word in sys.argv[1:] if word != "--force"]  # which would start over
        console.print(f"To resume:  {escape(shlex.join(['halflabel', *words]))}")
        if not result.rows:
            raise UserError("the time limit was reached before the first run was finished", fix)
    if not result.rows:
        raise UserError("no run could be finished", "see the reasons above")
    show.written(out, ": comparison.csv, comparison.tex, comparison.json, trials.parquet")
    return result


def show_trials(trials: Trials) -> None:
    """Print the table, the failures, the runs that are left, the protocol and the conclusions."""
    console.print()
    if trials.rows:
        for rows in trials.panels:
            _show_panel(trials, rows)
        unsure = [row for row in trials.rows if row.behind_high >= 0 and not row.is_best]
        if unsure:
            few = any(row.seeds == 2 for row in unsure)
            more = "; more than 2 seeds narrow the interval" if few else ""
            show.paragraph(f"[bright_black]≈: not significantly different from the best{more}; =: within 1 point[/]")
        show.paragraph("[bright_black]tried: settings, with seed 0[/]")
    for failure in trials.failures:
        what = failure.method if failure.what == "all" else failure.what
        console.print(f"[red]failed:[/] {escape(what)} (labels {escape(failure.labels)}): {escape(failure.reason)}")
    if trials.left_out:
        console.print(f"[yellow]not run within the time limit:[/] {counted(trials.left_out, 'run')}")
    for sentence in trials.protocol:
        show.paragraph(f"[bright_black]{escape(sentence)}[/]")
    for sentence in trials.conclusions if trials.rows else ():
        show.paragraph(f"[bold]{escape(sentence)}[/]")


def _show_panel(trials: Trials, rows: Sequence[Row]) -> None:
    """Print one line per row; in a narrow terminal the first columns, in a file or a pipe all."""
    kinds = ("labels", "method") if trials.kind == "comparison" else ("method", "labels")
    console.print(f"[bold]{kinds[0]} {escape(trials.names(rows[0])[0])}[/]")
    columns = [shown.title for shown in rows[0].cells()]
    count = 2 if console.is_terminal and console.width < WIDE else len(columns)
    table = plain_table(kinds[1], numbers=columns[:count])
    for row in rows:
        reference = f" ({row.reference})" if row.reference else ""
        cells = [shown.text + f" ({shown.note})" * bool(shown.note) for shown in row.cells()[:count]]
        table.add_row(f"[bold]{escape(trials.names(row)[1] + reference)}[/]", *map(escape, cells))
    terminal = console.is_terminal
    SafeConsole(file=console.file, width=UNLIMITED_WIDTH, highlight=False, force_terminal=terminal).print(table)
    if missing := columns[count:]:
        show.paragraph(f"[bright_black]In a wider terminal, and in the files: {', '.join(missing)}[/]")


class GridBar(CallbackBar):
    """A progress bar of the running task with the time left, and a line for each finished one."""

    _due, _epochs, _task = math.nan, 1, ""

    def on_task_start(self, task: Task, number: int, total: int, seconds_left: float | None) -> None:
        self._due = math.nan if seconds_left is None else time.monotonic() + seconds_left
        self._bar, self._task = Bar(f"run {number}/{total}", "epochs"), task.describe()

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self._epochs = epochs

    def on_epoch_end(self, log: EpochLog) -> None:
        self._bar(log["epoch"], self._epochs, f"{self._time_left()} {self._task}")

    def on_task_end(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
        self._bar.stop()
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


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _parse_shares(text: str, option: str) -> list[float]:
    """Shares separated by commas, from an option."""
    try:
        return [float(word) for word in _split(text)]
    except ValueError:
        raise UserError(f"{text!r} are not shares", f"separate them by commas, such as {option} 0.1,0.3,1") from None


@command()
def reproduce(
    training: dict[str, Any],
    table: Annotated[
        str | None, typer.Argument(help="A published table, such as S5-table; without one, all are listed.")
    ] = None,
    data: Annotated[
        Path | None,
        argument("DATA_FOLDER", "The data set as published, or a folder with one such folder per data set."),
    ] = None,
    rows: list[str] | None = panel(COMMON, None, "Only these rows: names, parts of names or methods, with commas."),
    conditions: list[str] | None = panel(COMMON, None, "Only these columns or groups of columns."),
    seeds: int = panel(COMMON, 1, "Runs per cell, with different seeds.", min=1),
    out: Path | None = panel(COMMON, None, "The folder for results, resumed (default: runs/reproduce/TABLE)."),
    budget: Budget = None,
    force: Force = False,
    dataset: str | None = panel(DATA, None, "Run the table on this data set instead, such as voc2012."),
    cache: Path | None = panel(
        DATA, None, "The folder for cached features and starting models (default: beside --out)."
    ),
) -> None:
    """Reproduce a published table with its protocol, and show the published numbers beside the measured ones.

    Without a table, all tables are listed; with a table alone, its protocol, its rows and the data it needs. Settings
    are those of the paper, but for the options given here; every difference is listed. Finished runs are saved.

    Example: halflabel reproduce S5-table data/voc2012 --conditions VOC --rows "AN loss,EM loss" --seeds 3
    """
    if table is None:
        _show_tables()
        return
    tables.find_table(table)  # a wrong name is an error before torch is imported, which takes seconds
    if data is None:
        _show_table(table)
        return
    folder = out if out is not None else Path("runs") / "reproduce" / table
    overrides = settings.Overrides(**{**training, "tune": "head" if training.get("tune") == "head" else None})
    features = cache if cache is not None else paper_run.default_cache(folder)
    if features.exists() and not features.is_dir():
        raise UserError(f"{features} is a file", "name a folder for features and models with --cache")
    with resumable_grid(folder), GridBar() as task_bar, Bar("features") as bar:
        result = paper_run.reproduce(
            table,
            data,
            out=folder,
            overrides=overrides,
            cache=features,
            rows=rows or (),
            conditions=conditions or (),
            dataset=dataset,
            seeds=seeds,
            budget=budget,
            force=force,
            reporter=Reporter(bar, show.message, task_bar),
        )
    _show(result)
    show.written(folder, ": reproduction.csv, reproduction.json")
    if features.is_dir():
        console.print(f"Cached features and starting models, also for other tables: {escape(str(features))}")
    if not result.finished and result.failures:
        raise UserError("no number could be measured", "see the reasons above")


def _show_tables() -> None:
    shown = plain_table("table", "paper", "what", "data sets", "rows")
    for table in tables.TABLES.values():
        sets = dict.fromkeys(datasets.DATASETS[condition.dataset].title.split(",")[0] for condition in table.conditions)
        runnable = sum(row.method is not None for row in table.rows)
        paper, what = table.paper.partition(":")[0], table.caption
        shown.add_row(
            f"[bold]{table.id}[/]", escape(paper), escape(what), ", ".join(sets), f"{runnable} of {len(table.rows)}"
        )
    console.print(shown)
    console.print("\nrows: how many rows of the table can be run; the others show only published numbers")
    console.print("figures and S3-noise: drawn in the papers, without numbers")
    console.print("Next:  halflabel reproduce TABLE      what it needs\n       halflabel reproduce TABLE DATA_FOLDER")


def _show_table(id: str) -> None:
    """Print what a table needs: its protocol, its rows and its data."""
    table = tables.find_table(id)
    console.print(f"[bold]{table.id}[/]  {escape(table.paper)}\n{escape(table.caption)}")
    console.print("conditions: " + escape("; ".join(condition.name for condition in table.conditions)))
    console.print("rows: " + escape("; ".join(row.name for row in table.rows if row.method)))
    for name, reason in table.skipped().items():
        console.print(f"[bright_black]skipped: {escape(name)}: {escape(reason)}[/]")
    console.print("\n[bold]protocol[/]")
    for line in paper_result.describe_table(table):
        console.print(f"  {escape(line)}")
    for note in table.protocol:
        console.print(f"  {escape(note)}")
    layouts = {each.dataset: datasets.dataset_layout(each.dataset, **each.dataset_options) for each in table.conditions}
    for name, layout in layouts.items():
        console.print(f"\n[bold]{name}[/]: {escape(layout.source)}")
        for line in layout.tree:
            console.print(f"  {escape(line)}")
    console.print(f"\nNext:  halflabel reproduce {id} DATA_FOLDER")


def _show(result: paper_result.Reproduction) -> None:
    console.print(f"\n[bold]{result.id}[/]  {escape(result.paper)}\n{escape(result.caption)}")
    if result.on_hidden:
        console.print(
            f"[bold red]Epochs chosen by hidden labels[/] ({escape(', '.join(result.on_hidden))}), as the paper does: "
            "better than what is possible without them."
        )
    several = len({figure.measure for figure in result.figures}) > 1
    for condition, group in groupby(result.figures, key=lambda figure: figure.condition):
        figures = list(group)
        named = "in points of 100" if several else f"{figures[0].measure}, in points of 100"
        console.print(f"\n[bold]{escape(condition)}[/]  {escape(named)}")
        _show_condition(figures)
    console.print()
    for title, colour, lines in (
        ("protocol", "bold", paper_result.group_lines(result.protocol, most=3)),
        ("skipped", "bold", result.skipped),
        ("not available", "yellow", [f"{name}: {why}" for name, why in result.missing.items()]),
        ("failed", "red", result.failures),
        ("not as in the paper", "yellow", result.differs),
        ("left open by the paper", "bold", result.unsaid),
        ("note", "bold", result.notes),
        ("measure", "bold", result.measures),
    ):
        for line in lines:
            console.print(f"[{colour}]{title}:[/] {escape(line)}")
    if result.left_out:
        runs = counted(result.left_out, "run")
        console.print(f"[yellow]not run within the time limit:[/] {runs}; the same command resumes")


def _show_condition(figures: list[paper_result.TableFigure]) -> None:
    shown = plain_table("row", "measure", numbers=("published", "ours", "difference", "seeds"), left=2)
    shown.add_column("")
    before = note = ""
    for figure in figures:
        if figure.row == before and math.isnan(figure.published) and not figure.seeds:
            continue  # the first line of the row says why there is no number
        # Printed once for all measures of a row.
        remark = "" if figure.row == before and figure.note == note else figure.note
        shown.add_row(
            escape(figure.row) if figure.row != before else "",
            escape(figure.measure),
            _number(figure.published, figure.published_spread),
            _number(figure.ours, figure.ours_sd),
            "" if math.isnan(figure.difference) else f"{figure.difference:+.2f}".replace("-", "−"),
            str(figure.seeds or ""),
            f"[bright_black]{escape(remark)}[/]",
        )
        before, note = figure.row, figure.note
    console.print(shown)
    if not all(math.isnan(figure.published) for figure in figures) and (elsewhere := figures[0].published_on):
        console.print(f"  [yellow]published on {escape(elsewhere)}, ours on another data set[/]")


def _number(value: float, spread: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.2f}".replace("-", "−") + ("" if math.isnan(spread) else f"±{spread:.2f}")


@command()
def figures(
    run: RunArgument,
    out: Annotated[Path, shared("The folder for the figures and their numbers.")],
    photos: Annotated[
        Path | None, argument("PHOTOS", "The folder with the images of the run, or a pack; some figures need it.")
    ] = None,
) -> None:
    """Draw the figures of the papers for a run, as PNG files with their numbers as JSON or CSV.

    Distributions of the scores of true positives and negatives (Zhou 2022), best after train --truth; similar labels
    and, with PHOTOS, images that the method imcl found (Huynh 2020). What is not possible is skipped, with the reason.

    Example: halflabel figures runs/first photos/ --out figures
    """
    with Bar("figures") as bar:
        drawn = paper_figures.draw_figures(run_folder.RunFolder.open(run), out, photos=photos, reporter=Reporter(bar))
    for figure in drawn:
        result = f"{', '.join(path.name for path in figure.files)}." if figure.files else "skipped;"
        console.print(f"[bold]{figure.name}[/]: {escape(f'{result} {figure.remark}')}")
    if any(figure.files for figure in drawn):
        show.written(out)
