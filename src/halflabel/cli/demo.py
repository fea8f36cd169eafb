"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from halflabel.cli import app
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.system.format import points
from halflabel.system.reporter import Reporter


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the runs and the table.")] = Path("demo"),
    images: Annotated[int, typer.Option(help="Number of training images to generate.", min=100)] = 1500,
    every_method: Annotated[
        bool, typer.Option("--every-method", help="Train every method that suits the labels, not a selection.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of the generated images.")] = 0,
) -> None:
    """Demonstrate all steps on generated images of handwritten digits with most labels hidden.

    Hides labels in two ways (10 % kept; one positive per image), trains the methods that suit each, and reports how
    much of the gap between "unknown means absent" and full labels each method closes.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    from halflabel.cli.progress import Bar
    from halflabel.experiments.demo import run_demo

    with Bar("features") as bar:
        rows = run_demo(out, images=images, every_method=every_method, seed=seed, reporter=Reporter(bar, console.print))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("labels known")
    table.add_column("method")
    for title in ("test mAP", "gap closed", "seconds"):
        table.add_column(title, justify="right")
    kinds = list(dict.fromkeys(row.known for row in rows))
    for row in sorted(rows, key=lambda row: (kinds.index(row.known), -row.mAP)):
        gap = "—" if row.gap is None else f"{100 * row.gap:.0f} %".replace("-", "−")
        table.add_row(row.known, row.method, points(row.mAP), gap, f"{row.seconds:.1f}")
    console.print()
    console.print(table)
    console.print(
        f"\nWrote {escape(str(out))}: runs, demo.csv. Next, with your own labels:  halflabel inspect LABELS.csv",
        soft_wrap=True,
    )
