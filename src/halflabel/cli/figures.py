"""The command that draws the papers' figures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.system.reporter import Reporter


@app.command()
def figures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `train --out` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder to write pictures and numbers into.")],
    photos: Annotated[
        Path | None, typer.Argument(metavar="PHOTOS", help="The folder with its images, or a pack: for more figures.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Some figures alone, such as densities,maps.", metavar="NAME,NAME")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another run, whose maps are to stand beside this one's.", metavar="RUN2")
    ] = None,
    scan: Annotated[
        int, typer.Option(help="Score at most so many training images, for histograms and neighbours.", min=1)
    ] = 2000,
) -> None:
    """Draw the papers' figures of a run, as PNG, with the numbers behind each as JSON or CSV beside it.

    densities: how far scores of true positives and true negatives lie apart (Zhou 2022); best after train --truth.

    histograms: present, absent and unknown entries by score (Wang 2023); with PHOTOS also of training images.

    maps: where the model sees a class (Wang 2023). Needs PHOTOS; with --against, two runs side by side.

    neighbours: which labels and, with PHOTOS, which images the method imcl has found to be similar (Huynh 2020).

    Figures that a run cannot have are skipped, and the reason is said.

    Example: halflabel figures runs/first photos/ --out figures

    Example: halflabel figures runs/srcr photos/ --only maps --against runs/bce --out figures
    """
    from halflabel.papers.figures.draw import FIGURES, draw_figures
    from halflabel.runs.folder import RunFolder

    names = FIGURES if only is None else tuple(name.strip() for name in only.split(",") if name.strip())
    if not names:
        raise UserError("--only names no figure", f"choose from {', '.join(FIGURES)}")
    opened, other = RunFolder.open(run), RunFolder.open(against) if against is not None else None

    from halflabel.cli.progress import Bar

    with Bar("figures") as bar:
        drawn = draw_figures(opened, out, photos=photos, only=names, against=other, scan=scan, reporter=Reporter(bar))
    for figure in drawn:
        if figure.files:
            files = ", ".join(path.name for path in figure.files)
            console.print(f"[bold]{figure.name}[/]: {escape(files)}. {escape(figure.remark)}", soft_wrap=True)
        else:
            console.print(f"[bold]{figure.name}[/]: skipped; {escape(figure.remark)}", soft_wrap=True)
    if any(figure.files for figure in drawn):
        console.print(f"Wrote [bold]{escape(str(out))}[/]", soft_wrap=True)
