"""Commands on models: evaluate, predict, methods, demo."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from halflabel.cli import app
from halflabel.cli.options import ImageFolder, LabelFile, RunFolder, takes_label_options
from halflabel.cli.terminal import console, paragraphs, show_audit, show_evaluation
from halflabel.errors import UserError
from halflabel.system import distributed
from halflabel.system.files import read_json, write_json
from halflabel.system.format import points
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.labels.audit import LabelImport
    from halflabel.runs.predictor import Prediction

Shape = StrEnum("Shape", ["table", "json", "csv"])


@app.command()
@takes_label_options
def evaluate(
    run: RunFolder,
    labels: LabelFile,
    images: ImageFolder,
    read: Callable[[Path], Any],
    threshold: Annotated[
        float | None,
        typer.Option(
            help="F1, precision and recall at this one (calibrated) probability for all classes, such as 0.5, instead "
            "of the run's own threshold of each class.",
            min=0,
            max=1,
            show_default="the run's own",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out whatever it holds.")] = False,
) -> None:
    """Measure a trained run on other labels: known entries only, with intervals.

    Example: halflabel evaluate runs/first test.csv photos/
    """
    from halflabel.runs.folder import model_kind

    model_kind(run)
    if not images.is_dir():
        raise UserError(f"{images} is not a folder", "name the folder with the images")
    if out is not None and out.exists() and not force and not _is_evaluation(out):
        raise UserError(
            f"{out} is there already and holds no evaluation", "choose another --out, or add --force to overwrite it"
        )
    found: LabelImport = read(labels)
    table = found.table()

    from halflabel.cli.progress import Bar
    from halflabel.runs.predictor import open_model

    predictor = open_model(run)
    show_audit(found.audit, table)
    with Bar("scores") as bar:
        result = predictor.evaluate(found.rows, images, Reporter(bar), labels_name=str(labels), threshold=threshold)
    named = set(table.classes)
    if unnamed := [name for name in predictor.classes if name not in named]:
        shown = ", ".join(unnamed[:8]) + (" …" if len(unnamed) > 8 else "")
        console.print(
            f"\n{labels} has no row on {len(unnamed)} of the run's {len(predictor.classes)} classes: {shown}",
            markup=False,
            soft_wrap=True,
        )
    show_evaluation(result)
    if out is not None and distributed.is_main():
        one = {} if threshold is None else {"threshold": threshold}
        content = {"protocol": result.protocol, **one, **result.overall, "per_class": result.per_class}
        write_json(out, content)
        console.print(f"Wrote {escape(str(out))}", soft_wrap=True)


def _is_evaluation(path: Path) -> bool:
    try:
        content = read_json(path, "")
    except UserError:
        return False
    return isinstance(content, dict) and {"protocol", "per_class"} <= content.keys()


@app.command()
def predict(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files and folders; - reads file names from stdin.")],
    shape: Annotated[Shape, typer.Option("--format", help="How to print the labels.")] = Shape.table,
    top: Annotated[int, typer.Option(help="Show at least so many labels per image.", min=0)] = 3,
    all_scores: Annotated[bool, typer.Option("--all", help="All classes, not only the likely ones.")] = False,
) -> None:
    """Say what is in images: each label with its probability.

    Labels over their threshold are marked; JSON and CSV go to standard output, for other programs.

    Example: halflabel predict runs/first photo.jpg holiday/ --format csv > labels.csv
    """
    from halflabel.runs.folder import model_kind

    model_kind(run)

    from halflabel.cli.progress import Bar
    from halflabel.runs.predictor import open_model, predict_files

    predictor = open_model(run)
    names = (line.rstrip("\n") for line in sys.stdin)
    with Bar("scores") as bar:
        found = predict_files(predictor, images, names, top=top, all_scores=all_scores, reporter=Reporter(bar))
    _PRINT[shape](found)
    if all(item.error for item in found):
        raise UserError("not one image could be read", "check the paths")


def _print_json(found: Sequence[Prediction]) -> None:
    typer.echo(json.dumps([item._asdict() for item in found], indent=1, ensure_ascii=False))


def _print_csv(found: Sequence[Prediction]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "class", "probability", "present", "error"])
    for item in found:
        for label in item.labels:
            writer.writerow([item.image, label["class"], f"{label['probability']:.6f}", int(label["present"]), ""])
        if item.error:
            writer.writerow([item.image, "", "", "", item.error])


def _print_table(found: Sequence[Prediction]) -> None:
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows.add_column("image", overflow="fold")
    rows.add_column("labels (*: over the threshold)")
    for item in found:
        if item.error:
            rows.add_row(escape(item.image), f"[red]{escape(item.error)}[/]")
            continue
        parts = [
            f"[bold]{escape(label['class'])} {label['probability']:.2f}*[/]"
            if label["present"]
            else f"[bright_black]{escape(label['class'])} {label['probability']:.2f}[/]"
            for label in item.labels
        ]
        rows.add_row(escape(item.image), "  ".join(parts))
    console.print(rows)


_PRINT = {Shape.json: _print_json, Shape.csv: _print_csv, Shape.table: _print_table}


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method: show its page.")] = None,
    regime: Annotated[str | None, typer.Option(help="Only methods for such labels, such as single-positive.")] = None,
) -> None:
    """List the methods, or show one method's page: what it does, formula, options."""
    from halflabel.methods import REGIMES

    if name is not None:
        from halflabel.methods.base import recipe as find_recipe

        how = find_recipe(name)
        console.print(f"[bold]{how.name}[/]  ({escape(how.paper)})\n")
        for line in paragraphs(how.page):
            console.print(escape(line), soft_wrap=line.startswith(" "))  # formulas stay as they are set
        console.print(f"\n[bold]learns from[/] {', '.join(how.serves)} labels")
        console.print(f"[bold]defaults[/] --lr {how.lr:g} --weight-decay {how.weight_decay:g}")
        for option, parameter in how.options.items():
            shown = '""' if parameter.default == "" else str(parameter.default)
            console.print(f"  --{option.replace('_', '-')} {escape(shown)}")
        return
    if regime is not None and regime not in REGIMES:
        raise UserError(f"no label regime is called {regime!r}", f"use one of: {', '.join(REGIMES)}")
    from halflabel.methods.base import recipes

    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("method", "labels", "what it does"):
        rows.add_column(title)
    for recipe in recipes().values():
        if regime is None or regime in recipe.serves:
            serves = "any" if set(recipe.serves) == set(REGIMES) else ", ".join(recipe.serves)
            rows.add_row(f"[bold]{recipe.name}[/]", serves, escape(recipe.summary))
    console.print(rows)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the runs and the table.")] = Path("demo"),
    images: Annotated[int, typer.Option(help="Training scenes to make.", min=100)] = 1500,
    every: Annotated[bool, typer.Option("--every-method", help="All methods that fit, not a selection.")] = False,
    seed: Annotated[int, typer.Option(help="Another seed makes other scenes.")] = 0,
) -> None:
    """Show the whole job on embedded data: scenes of handwritten digits, most labels hidden.

    Hides labels in two ways (10 % kept; one positive per image), trains methods that fit on each, and says how
    much of the gap between assuming "absent" and knowing everything each method closes.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    from halflabel.cli.demo import run_demo
    from halflabel.cli.progress import Bar

    with Bar("features") as bar:
        result = run_demo(out, images=images, every=every, seed=seed, reporter=Reporter(bar, console.print))
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows.add_column("labels known")
    rows.add_column("method")
    for title in ("test mAP", "gap closed", "seconds"):
        rows.add_column(title, justify="right")
    kinds = list(dict.fromkeys(row.known for row in result))
    for row in sorted(result, key=lambda row: (kinds.index(row.known), -row.mAP)):
        gap = "—" if row.gap is None else f"{100 * row.gap:.0f} %".replace("-", "−")
        rows.add_row(row.known, row.method, points(row.mAP), gap, f"{row.seconds:.1f}")
    console.print()
    console.print(rows)
    where = escape(str(out))
    console.print(
        f"\nWrote {where}: runs, demo.csv. Next, with your own labels:  halflabel inspect LABELS.csv",
        soft_wrap=True,
    )
