"""The command `study`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    COMMON,
    GroupedCommand,
    ImageFolder,
    LabelFile,
    ReadLabels,
    check_image_folder,
    panel,
    takes_label_options,
    takes_training_options,
)
from halflabel.cli.terminal import console, show_audit
from halflabel.system.format import counted, group_digits, points
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.experiments.study import Growth, Study
    from halflabel.labels.audit import LabelImport

EVALUATION = "Evaluation"


@app.command(cls=GroupedCommand)
@takes_label_options
@takes_training_options("study", held_out=0.0)
def study(
    labels: LabelFile,
    images: ImageFolder,
    read: ReadLabels,
    training: dict[str, Any],
    grow: Annotated[
        bool, panel(COMMON, "Compute a learning curve instead: what would twice as many labels give?", "--grow")
    ] = False,
    method: Annotated[str, panel(COMMON, "The training method: a name, name:option=value, or auto.")] = "bn-bce",
    budgets: Annotated[
        str | None, panel(COMMON, "Shares of the labels, such as 0.1,0.2,0.5,1.", show_default=False)
    ] = None,
    strategies: Annotated[str, panel(COMMON, "Ways to spend the labels.")] = "partial,dense,noisy,noisy+",
    seeds: Annotated[int, panel(COMMON, "Runs per point, to measure the variation.", min=1)] = 3,
    worth: Annotated[
        float, panel(COMMON, "With --grow: the smallest gain, in points of mAP, that is worth it.", min=0)
    ] = 1.0,
    out: Annotated[
        Path | None,
        panel(
            COMMON,
            "The folder for results (default: runs/study or runs/growth); a study that it already holds is resumed.",
        ),
    ] = None,
    budget: Annotated[
        str | None, panel(COMMON, "Time limit: 90s, 30m, 2h.", show_default=False, metavar="TIME")
    ] = None,
    force: Annotated[bool, panel(COMMON, "Replace a study that the folder already holds.", "--force")] = False,
    test: Annotated[
        Path | None,
        panel(EVALUATION, "Labels of other images to test on (default: a part of LABELS).", metavar="FILE"),
    ] = None,
    test_images: Annotated[
        Path | None, panel(EVALUATION, "The images of --test (default: IMAGES).", metavar="DIR")
    ] = None,
    test_share: Annotated[float, panel(EVALUATION, "Without --test: the share of the images to test on.")] = 0.2,
) -> None:
    """How to spend labels, and whether to get more: trained and judged on your own images.

    Takes labels away from fully labelled images in several ways: some of every image (partial), all of some images
    (dense), all with some wrong (noisy), one positive per image (noisy+). With --grow: the learning curve of the labels
    as they are, and what twice as many would give. Every finished run is kept: the same command goes on.

    Example: halflabel study labels.csv photos/ --budgets 0.1,0.2,0.5,1

    Example: halflabel study labels.csv photos/ --grow --worth 0.5
    """
    check_image_folder(images, test_images)
    shares = shares_in(budgets, "--budgets") if budgets is not None else None
    found: LabelImport = read(labels)
    test_rows = read(test).rows if test is not None else None
    table = found.table()
    show_audit(found.audit, table)

    from halflabel.cli.progress import Bar
    from halflabel.experiments import study as studies
    from halflabel.methods.auto import epochs_for
    from halflabel.training.config import Config

    lr = training.pop("lr")
    epochs = training.pop("epochs") or epochs_for(len(table), training["tune"])
    config = Config.from_options({**training, "epochs": epochs})
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
    }
    with kept(place), GridBar() as task_bar, Bar("features") as bar:
        how |= {"reporter": Reporter(bar, console.print, task_bar)}
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
