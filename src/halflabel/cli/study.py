"""The command `study`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from halflabel.cli import app
from halflabel.cli.compare import (
    GridBar,
    again,
    kept,
    nothing_finished,
    print_table,
    shares_in,
    show_waiting,
)
from halflabel.cli.options import (
    Device,
    ImageFolder,
    LabelFile,
    Optimizer,
    Precision,
    Resize,
    Tune,
    panel,
    takes_policy,
)
from halflabel.cli.terminal import console, show_audit
from halflabel.errors import UserError
from halflabel.system.format import counted, group_digits, points

if TYPE_CHECKING:
    from halflabel.experiments.study import Growth, Study
    from halflabel.labels.audit import LabelImport

TRAINING, JUDGING = "How all are trained", "How they are judged"


@app.command()
@takes_policy
def study(
    labels: LabelFile,
    images: ImageFolder,
    read: Callable[[Path], Any],
    grow: Annotated[
        bool, typer.Option("--grow", help="Learning curve instead: what would twice the labels give?")
    ] = False,
    method: Annotated[str, typer.Option(help="How to learn: a name, name:option=value, or auto.")] = "bn-bce",
    budgets: Annotated[
        str | None, typer.Option(help="Shares of the labels, such as 0.1,0.2,0.5,1.", show_default=False)
    ] = None,
    strategies: Annotated[str, typer.Option(help="How to spend them.")] = "partial,dense,noisy,noisy+",
    seeds: Annotated[int, typer.Option(help="Runs per point, to see how much is chance.", min=1)] = 3,
    worth: Annotated[float, typer.Option(help="--grow: the gain in points of mAP that is worth it.", min=0)] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for results (default: runs/study or runs/growth); it is gone on with."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time for this call: 90s, 30m, 2h.", show_default=False, metavar="TIME")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Start again in a folder that holds a study.")] = False,
    test: Annotated[
        Path | None, panel(JUDGING, "Labels of other images to judge by (default: a part of LABELS).", metavar="FILE")
    ] = None,
    test_images: Annotated[Path | None, panel(JUDGING, "Where they are (default: IMAGES).", metavar="DIR")] = None,
    test_share: Annotated[float, panel(JUDGING, "Without --test: the share of the images set aside.")] = 0.2,
    held_out: Annotated[
        float, panel(JUDGING, "Share of the other images to choose the epoch by; 0: the last epoch.", min=0, max=0.9)
    ] = 0.0,
    tune: Annotated[Tune, panel(TRAINING, "head: frozen backbone, features cached, quick on a CPU.")] = Tune.head,
    backbone: Annotated[str, panel(TRAINING, "efficientnet-lite0 comes with the package; or any timm model.")] = (
        "efficientnet-lite0"
    ),
    weights: Annotated[Path | None, panel(TRAINING, "A local file with the backbone's weights.")] = None,
    size: Annotated[int | None, panel(TRAINING, "Image size in pixels (default: the backbone's own).")] = None,
    resize: Annotated[Resize, panel(TRAINING, "squash: whole image; crop: centre square.")] = Resize.squash,
    epochs: Annotated[
        int | None, panel(TRAINING, "Passes over the training images (default: by their number).", min=1)
    ] = None,
    batch_size: Annotated[int, panel(TRAINING, "Images per step.", min=1)] = 32,
    lr: Annotated[float | None, panel(TRAINING, "Learning rate (default: the method's own).")] = None,
    clip: Annotated[float, panel(TRAINING, "Largest gradient norm; 0 = any.", min=0)] = 0.0,
    optimizer: Annotated[Optimizer, panel(TRAINING, "What takes the steps.")] = Optimizer.adamw,
    device: Annotated[Device, panel(TRAINING, "Where to compute.")] = Device.auto,
    precision: Annotated[Precision, panel(TRAINING, "no is float32.")] = Precision.no,
    workers: Annotated[int, panel(TRAINING, "Processes that decode images.", min=0)] = 2,
    max_bad: Annotated[float, panel(TRAINING, "Stop above this share of unreadable images.", min=0, max=1)] = 0.01,
) -> None:
    """How to spend labels, and whether to get more: trained and judged on your own images.

    Takes labels away from fully labelled images in several ways: some of every image (partial), all of some images
    (dense), all with some wrong (noisy), one positive per image (noisy+). With --grow: the learning curve of the labels
    as they are, and what twice as many would give. Every finished run is kept: the same command goes on.

    Example: halflabel study labels.csv photos/ --budgets 0.1,0.2,0.5,1

    Example: halflabel study labels.csv photos/ --grow --worth 0.5
    """
    for folder in (images, test_images):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{folder} is not a folder", "name the folder with the images")
    shares = shares_in(budgets, "--budgets") if budgets is not None else None
    found: LabelImport = read(labels)
    test_rows = read(test).rows if test is not None else None
    table = found.table()
    show_audit(found.audit, table)

    from halflabel.cli.progress import Bar
    from halflabel.experiments import study as studies
    from halflabel.methods.auto import epochs_for
    from halflabel.training.config import Config, Settings

    chosen: dict[str, Any] = {"optimizer": optimizer.value, "precision": precision.value, "device": device.value}
    shapes: dict[str, Any] = {"resize": resize.value, "tune": tune.value}
    settings = Settings(
        epochs=epochs if epochs is not None else epochs_for(len(table), tune.value),
        batch_size=batch_size,
        clip=clip,
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
    place = out if out is not None else Path("runs") / ("growth" if grow else "study")
    how: dict[str, Any] = {
        "out": place,
        "method": method,
        "seeds": seeds,
        "test": test_rows,
        "test_images": test_images,
        "test_share": test_share,
        "budget": budget,
        "lr": lr,
        "config": config,
        "force": force,
        "command": shlex.split(again()),
        "say": console.print,
    }
    with kept(place), GridBar() as task_bar, Bar("features") as bar:
        how |= {"callback": task_bar, "progress": bar}
        result: Study | Growth
        if grow:
            result = studies.grow(found.rows, images, shares=shares or studies.GROWTH, worth=worth, **how)
        else:
            names = [word.strip() for word in strategies.split(",") if word.strip()]
            result = studies.study(found.rows, images, budgets=shares or studies.BUDGETS, strategies=names, **how)
    _show(result)
    if result.left_out:
        show_waiting(result.waiting)
        console.print(f"To go on:  {escape(again())}", soft_wrap=True)
    if not result.points:
        raise nothing_finished(result.waiting, result.left_out > 0)
    console.print(f"Wrote [bold]{escape(str(place))}[/]: study.csv, study.json", soft_wrap=True)
    console.print(f"For a page of it:  halflabel report {escape(shlex.quote(str(place)))}", soft_wrap=True)


def _show(found: Study | Growth) -> None:
    console.print()
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows.add_column("strategy")
    for title in ("clean labels", "known to training", "test mAP (95 %)", "seeds"):
        rows.add_column(title, justify="right")
    before = ""
    for point in found.points:
        rows.add_row(
            f"[bold]{escape(point.strategy)}[/]" if point.strategy != before else "",
            f"{100 * point.share:.3g} %",
            group_digits(point.labels),
            f"{points(point.mAP)} ({points(point.low)} – {points(point.high)})",
            str(point.seeds) + (f" + {further}" if (further := len(point.per_seed) - point.seeds) else ""),
        )
        before = point.strategy
    if found.points:
        print_table(rows)
    for line in found.failures:
        console.print(f"[red]failed:[/] {escape(line)}", soft_wrap=True)
    if found.left_out:
        console.print(f"[yellow]left out for want of time:[/] {counted(found.left_out, 'run')}")
    if not found.points:
        return
    from halflabel.experiments.study import Growth

    if isinstance(found, Growth):
        console.print(f"\n[bold]{escape(found.advice)}[/]", soft_wrap=True)
        if found.control:
            console.print(escape(found.control), soft_wrap=True)
    else:
        for line in found.conclusions:
            console.print(f"[bold]{escape(line)}[/]", soft_wrap=True)
    for line in found.protocol:
        console.print(f"[bright_black]{escape(line)}[/]", soft_wrap=True)
