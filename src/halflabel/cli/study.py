"""The command `study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from halflabel.cli import app
from halflabel.cli.compare import run_trials
from halflabel.cli.grid import Budget, TestImages, TestLabels, TestShare, parse_shares, split_words
from halflabel.cli.options import (
    GroupedCommand,
    ImageFolder,
    LabelFile,
    ReadLabels,
    check_image_folder,
    panel,
    takes_label_options,
    takes_training_options,
)
from halflabel.cli.terminal import show_next
from halflabel.comparison import study as studies
from halflabel.fitting.config import COMMON


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
    out = out if out is not None else Path("runs") / ("growth" if grow else "study")
    kind: dict[str, Any] = {"budgets": shares or studies.BUDGETS, "strategies": split_words(strategies)}
    run_trials(
        studies.grow if grow else studies.study,
        (labels, images),
        read,
        training,
        held_out=0.0,
        out=out,
        method=method,
        seeds=seeds,
        test=test,
        test_images=test_images,
        test_share=test_share,
        budget=budget,
        force=force,
        **({"shares": shares or studies.GROWTH, "worth": worth} if grow else kind),
    )
    show_next("report", out)
