"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halflabel.cli import app
from halflabel.cli.progress import Bar
from halflabel.cli.sequence import after_report
from halflabel.cli.terminal import show_command, show_next, show_written
from halflabel.errors import UserError
from halflabel.filling import run as fill_run
from halflabel.report import comparison_page, layout, run_facts, run_page
from halflabel.runs import folder as run_folder
from halflabel.system.files import refuse_remote
from halflabel.system.reporter import Reporter


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The output folder of `train`, `compare` or `study`.")],
    images: Annotated[Path | None, typer.Option(help="The image folder: adds galleries of labels to check.")] = None,
    out: Annotated[Path | None, typer.Option(help="The HTML file to write (default: RUN/report.html).")] = None,
    scan: Annotated[
        int,
        typer.Option(
            help="Largest number of training images to score for the galleries; 0: only held-out images.", min=0
        ),
    ] = 20_000,
    maps: Annotated[
        bool, typer.Option("--maps", help="Colour where the model sees the class in each photo; takes longer.")
    ] = False,
) -> None:
    """Write an HTML report of a run: the known labels, the training, the evaluation and labels to check.

    For a comparison, the report shows the evaluation, the best method for each share of labels, and the costs; for a
    study, how to spend labels or what more labels would give, with confidence intervals. The page needs no network and
    contains no folder names of this machine. With --images it contains small copies of some images.

    Example: halflabel report runs/first --images photos/

    Example: halflabel report runs/compare

    Example: halflabel report runs/study
    """
    if out is not None:
        layout.check_page_path(out)
    if run_facts.is_comparison(run) and not (run / "config.yaml").exists():
        if images is not None:
            raise UserError("the page of a comparison or study shows no images", "leave --images out")
        page = layout.write_page(out or run / "report.html", lambda: comparison_page.build_comparison(run))
        show_written(page.path, f" ({page.size / 1000:.0f} kB)")
        return

    refuse_remote(run)
    opened = run_folder.RunFolder.open(run)
    with Bar("scores") as bar:
        page = run_page.write_report(opened, out, images=images, scan=scan, maps=maps, reporter=Reporter(bar))
    show_written(page.path, f" ({page.size / 1000:.0f} kB)")
    if images is None:
        show_next("report", run, "--images", "PHOTOS", why="galleries of likely missing and wrong labels")
    else:
        only_positives = fill_run.has_only_positives(opened)
        why = "missing labels" if only_positives else "the questions that help the model most"
        show_command(after_report(run, images, only_positives=only_positives), why=why)
