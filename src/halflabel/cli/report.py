"""The command that makes the page of a run, of a comparison, or of a study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.terminal import console
from halflabel.errors import UserError
from halflabel.system.reporter import Reporter


@app.command()
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder that `train`, `compare` or `study` wrote (its --out).")
    ],
    images: Annotated[
        Path | None, typer.Option(help="The folder with the photos: adds galleries of labels to look at.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The page to write (default: RUN/report.html).")] = None,
    scan: Annotated[
        int,
        typer.Option(help="Score at most so many training images for the galleries; 0 = held-out ones only.", min=0),
    ] = 20_000,
) -> None:
    """Show a run as one HTML page: what was known, how it learned, what it is worth, and which labels to look at.

    Of a comparison it shows how the methods were judged, who does best with how many labels, and at what cost; of a
    study how labels are best spent, or what more of them would bring, and how sure that is. The file needs no network,
    and holds no folder names of this machine. With --images it holds small copies of some photos.

    Example: halflabel report runs/first --images photos/

    Example: halflabel report runs/compare

    Example: halflabel report runs/study
    """
    from halflabel.cli.progress import Bar
    from halflabel.report.layout import check_page_path
    from halflabel.report.run_facts import is_comparison, is_study
    from halflabel.report.run_page import write_report
    from halflabel.runs.folder import RunFolder

    if out is not None:
        check_page_path(out)
    of_study = is_study(run)
    if not (run / "config.yaml").exists() and (of_study or is_comparison(run)):
        if images is not None:
            raise UserError(
                f"the page of a {'study' if of_study else 'comparison'} has no photos", "leave --images out"
            )
        # These bring torch along.
        if of_study:
            from halflabel.report.study_page import write_study as write
        else:
            from halflabel.report.comparison_page import write_comparison as write
        made = write(run, out)
        console.print(f"Wrote [bold]{escape(str(made.path))}[/] ({made.size / 1000:.0f} kB)", soft_wrap=True)
        return

    with Bar("scores") as bar:
        made = write_report(RunFolder.open(run), out, images=images, scan=scan, reporter=Reporter(bar))
    console.print(f"Wrote [bold]{escape(str(made.path))}[/] ({made.size / 1000:.0f} kB)", soft_wrap=True)
    if images is None:
        console.print(
            f"For galleries of likely missing and wrong labels:  halflabel report {escape(shlex.quote(str(run)))} "
            "--images PHOTOS",
            soft_wrap=True,
        )
