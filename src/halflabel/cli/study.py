"""The command `study`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape

from halflabel.cli import app
from halflabel.cli.grid import (
    Budget,
    GridBar,
    TestImages,
    TestLabels,
    TestShare,
    grid_config,
    no_result_error,
    parse_shares,
    print_table,
    rerun_command,
    resumable_grid,
    show_how_to_resume,
    split_words,
)
from halflabel.cli.options import (
    GroupedCommand,
    ImageFolder,
    LabelFile,
    ReadLabels,
    check_image_folder,
    panel,
    read_grouped,
    takes_label_options,
    takes_training_options,
)
from halflabel.cli.terminal import console, plain_table, show_audit, show_message, show_next, show_written
from halflabel.fitting.config import COMMON
from halflabel.system.format import counted, group_digits, points
from halflabel.system.reporter import Reporter

if TYPE_CHECKING:
    from halflabel.comparison.study_result import Growth, Study


@app.command(cls=GroupedCommand)
@takes_label_options
@takes_training_options("study")
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
    budget: Budget = None,
    force: Annotated[bool, panel(COMMON, "Replace a study that the folder already holds.", "--force")] = False,
    test: TestLabels = None,
    test_images: TestImages = None,
    test_share: TestShare = 0.2,
) -> None:
    """Measure on your images how best to spend labels, and whether more labels would help.

    Hides labels of fully labelled images in several ways: some labels of every image (partial), all labels of some
    images (dense), all labels with some of them wrong (noisy), one positive per image (noisy+). With --grow: the
    learning curve of the labels, and what twice as many would give. Finished runs are saved: the same command resumes.

    Example: halflabel study labels.csv photos/ --budgets 0.1,0.2,0.5,1

    Example: halflabel study labels.csv photos/ --grow --worth 0.5
    """
    check_image_folder(images, test_images)
    shares = parse_shares(budgets, "--budgets") if budgets is not None else None
    group = training.get("group")
    label_import, training["group"] = read_grouped(read, labels, group)
    test_rows = read_grouped(read, test, group)[0].rows if test is not None else None
    table = label_import.table()
    show_audit(label_import.audit, table)

    from halflabel.cli.progress import Bar
    from halflabel.comparison import study as studies

    folder = out if out is not None else Path("runs") / ("growth" if grow else "study")
    options: dict[str, Any] = {
        "out": folder,
        "method": method,
        "seeds": seeds,
        "test": test_rows,
        "test_images": test_images,
        "test_share": test_share,
        "budget": budget,
        "lr": training.get("lr"),
        "config": grid_config({"held_out": 0.0, **training}, len(table), held_out=training.get("held_out") or None),
        "force": force,
        "command": shlex.split(rerun_command()),
    }
    with resumable_grid(folder), GridBar() as task_bar, Bar("features") as bar:
        options |= {"reporter": Reporter(bar, show_message, task_bar)}
        result: Study | Growth
        if grow:
            result = studies.grow(label_import.rows, images, shares=shares or studies.GROWTH, worth=worth, **options)
        else:
            names = split_words(strategies)
            result = studies.study(
                label_import.rows, images, budgets=shares or studies.BUDGETS, strategies=names, **options
            )
    _show(result)
    if result.left_out:
        show_how_to_resume(result.waiting)
    if not result.points:
        raise no_result_error(result.waiting, result.left_out > 0)
    show_written(folder, ": study.csv, study.json")
    show_next("report", folder)


def _show(study: Study | Growth) -> None:
    console.print()
    rows = plain_table("strategy", numbers=("clean labels", "known to training", "test mAP (95 %)", "seeds"))
    before = ""
    for point in study.points:
        rows.add_row(
            f"[bold]{escape(point.strategy)}[/]" if point.strategy != before else "",
            f"{100 * point.share:.3g} %",
            group_digits(point.labels),
            f"{points(point.mAP)} ({points(point.low)} – {points(point.high)})",
            str(point.seeds) + (f" + {further}" if (further := len(point.per_seed) - point.seeds) else ""),
        )
        before = point.strategy
    if study.points:
        print_table(rows)
    for line in study.failures:
        console.print(f"[red]failed:[/] {escape(line)}")
    if study.left_out:
        console.print(f"[yellow]not run within the time limit:[/] {counted(study.left_out, 'run')}")
    if not study.points:
        return
    from halflabel.comparison.study_result import Growth

    if isinstance(study, Growth):
        console.print(f"\n[bold]{escape(study.advice)}[/]")
        if study.control:
            console.print(escape(study.control))
    else:
        for line in study.conclusions:
            console.print(f"[bold]{escape(line)}[/]")
    for line in study.protocol:
        console.print(f"[bright_black]{escape(line)}[/]")
