"""The command `study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from halflabel.cli import app
from halflabel.cli.compare import show_result
from halflabel.cli.grid import (
    Budget,
    GridBar,
    TestImages,
    TestLabels,
    TestShare,
    grid_config,
    parse_shares,
    resumable_grid,
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
from halflabel.cli.terminal import show_audit, show_message, show_next
from halflabel.fitting.config import COMMON
from halflabel.system.reporter import Reporter


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
    with resumable_grid(folder), GridBar() as task_bar, Bar("features") as bar:
        options: dict[str, Any] = {
            "out": folder,
            "method": method,
            "seeds": seeds,
            "test": test_rows,
            "test_images": test_images,
            "test_share": test_share,
            "budget": budget,
            "lr": training.get("lr"),
            "config": grid_config(training, len(table), held_out=0.0),
            "force": force,
            "reporter": Reporter(bar, show_message, task_bar),
        }
        if grow:
            result = studies.grow(label_import.rows, images, shares=shares or studies.GROWTH, worth=worth, **options)
        else:
            names = split_words(strategies)
            result = studies.study(
                label_import.rows, images, budgets=shares or studies.BUDGETS, strategies=names, **options
            )
    show_result(result, folder)
    show_next("report", folder)
