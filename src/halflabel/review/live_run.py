"""A live review of a run, or of photos without any label; and its end, a new run that learned from the answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.features.backbone_names import DEFAULT
from halflabel.filling.run import NotShown, fill, write_filled
from halflabel.fitting.config import Config
from halflabel.labels.answers import AnswerStore
from halflabel.questions.choose import asked_entries
from halflabel.review.live import LiveReview
from halflabel.runs.crossfit import open_inputs
from halflabel.runs.folder import RunFolder, next_run_folder
from halflabel.runs.from_nothing import FROM_NOTHING, without_labels
from halflabel.runs.new_run import continue_training
from halflabel.system.files import absolute_path


def start_without_labels(folder: Path, images: Path, classes: Sequence[str], backbone: str | None) -> RunFolder:
    """Start a run folder with the photos of a folder and these classes, and no label."""
    run = RunFolder.create(folder)
    labels = without_labels(images, classes)
    run.folder.mkdir(parents=True, exist_ok=True)
    backbone, place = backbone or DEFAULT, absolute_path(images)
    config = Config(method=FROM_NOTHING, images=place, backbone=backbone, fit="auto", from_nothing=True)
    run.start(labels, config.as_dict())
    return run


def open_live_review(run: RunFolder, images: Path, precision: float) -> LiveReview:
    """Load features and labels of a run; features that are not in the cache are computed."""
    config, labels = Config.from_dict(run.read_config()), run.read_rows()
    # Random questions of `fill` are a sample of the likeliest entries only: answers do not measure the others.
    asked = asked_entries(run.control)
    image = labels.images.index([name for name, _ in asked]).tolist()
    column = labels.classes.index([name for _, name in asked]).tolist()
    fill_weights = dict(zip(zip(image, column, strict=True), asked.values(), strict=True))
    return LiveReview(open_inputs(config, labels, images, run.cache), config, labels, precision, fill_weights)


def finish_review(
    run: RunFolder,
    images: Path,
    answers: str | Path,
    *,
    precision: float,
    write_report: Callable[..., Any] | None,
    step: Callable[[str], None],
) -> dict[str, Any]:
    """Train a new run beside `run` from its labels and the answers; write its filled labels and its report.

    Return the paths of the run, of `filled` labels ("" for none) and of the report, numbers, and a note on what could
    not be done. `step` receives a description of each step.
    """
    rows = run.read_rows()
    with closing(AnswerStore(answers)) as store:
        answered = store.label_rows(rows.images, rows.classes)
    if not len(answered):
        raise UserError("there are no answers yet", "answer some questions first")
    step("training")
    new = RunFolder.create(next_run_folder(run.folder))
    job = continue_training(run, new, answers=answered, images=images)
    job.start()
    result: dict[str, Any] = {"run": str(new.folder), "answers": len(answered), "filled": "", "filled_labels": 0}
    step("filling unknown labels")
    try:
        tally = write_filled(fill(new, images, precision=precision), new.filled, base=job.labels)
        result |= {"filled": str(new.filled), "filled_labels": int((tally.present + tally.absent).sum()), "note": ""}
    except NotShown:
        command = shlex.join(["halflabel", "fill", str(new.folder), str(images), "--precision", f"{precision:g}"])
        result["note"] = f"No labels were filled: that needs answers to random questions, which this asks: {command}"
    except UserError as error:
        result["note"] = f"No labels were filled: {error}."
    if write_report is not None:
        step("writing the report")
        write_report(new, images=images)
    return result | {"report": "" if write_report is None else str(new / "report.html")}
