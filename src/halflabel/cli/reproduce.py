"""The commands `reproduce` and `figures`: published tables and figures."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from halflabel.cli import show
from halflabel.cli.compare import Budget, Force, GridBar, resumable_grid
from halflabel.cli.options import RunArgument, argument, command, option, panel
from halflabel.cli.progress import Bar
from halflabel.cli.show import console, plain_table
from halflabel.errors import UserError
from halflabel.fitting.config import COMMON
from halflabel.papers import datasets, settings, tables
from halflabel.papers import figures as paper_figures
from halflabel.papers import result as paper_result
from halflabel.papers import run as paper_run
from halflabel.runs import folder as run_folder
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter

DATA = "Data"


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
    rows: Annotated[
        list[str] | None, panel(COMMON, "Only these rows: names, parts of names or methods, separated by commas.")
    ] = None,
    conditions: Annotated[list[str] | None, panel(COMMON, "Only these columns or groups of columns.")] = None,
    seeds: Annotated[int, panel(COMMON, "Runs per cell, with different seeds.", min=1)] = 1,
    out: Annotated[
        Path | None,
        panel(COMMON, "The folder for results, resumed if it holds some (default: runs/reproduce/TABLE)."),
    ] = None,
    budget: Budget = None,
    force: Force = False,
    dataset: Annotated[
        str | None, panel(DATA, "Run the table on this data set instead, such as voc2012; without differences.")
    ] = None,
    cache: Annotated[
        Path | None,
        panel(DATA, "The folder for cached features and starting models, of several tables (default: beside --out)."),
    ] = None,
) -> None:
    """Reproduce a published table with its protocol, and show the published numbers beside the measured ones.

    Without a table, all tables are listed. With a table alone, its protocol, its rows and the data it needs are shown.
    Settings are those of the paper, but for the options given here.
    Every difference from the paper is listed under the result. Finished runs are saved: the same command resumes.

    Example: halflabel reproduce S5-table data/voc2012 --conditions VOC --rows "AN loss,EM loss" --seeds 3

    Example: halflabel reproduce S4-table2 data/coco --conditions "10 %" --tune head --backbone efficientnet-lite0

    Example: halflabel reproduce S4-table2 data/voc2012 --dataset voc2012 --tune head --backbone efficientnet-lite0
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
    out: Annotated[Path, option("The folder for the figures and their numbers.")],
    photos: Annotated[
        Path | None, argument("PHOTOS", "The folder with the images of the run, or a pack; some figures need it.")
    ] = None,
) -> None:
    """Draw the figures of the papers for a run, as PNG files with their numbers as JSON or CSV.

    densities: distributions of the scores of true positives and true negatives (Zhou 2022); best after train --truth.

    neighbours: the similar labels and, with PHOTOS, similar images that the method imcl found (Huynh 2020).

    Figures that are not possible for a run are skipped, with the reason.

    Example: halflabel figures runs/first photos/ --out figures
    """
    with Bar("figures") as bar:
        drawn = paper_figures.draw_figures(run_folder.RunFolder.open(run), out, photos=photos, reporter=Reporter(bar))
    for figure in drawn:
        result = f"{', '.join(path.name for path in figure.files)}." if figure.files else "skipped;"
        console.print(f"[bold]{figure.name}[/]: {escape(f'{result} {figure.remark}')}")
    if any(figure.files for figure in drawn):
        show.written(out)
