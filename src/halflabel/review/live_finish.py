"""Finish a review: train a new run on labels and answers, fill the unknown labels, and write the report."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from halflabel.errors import UserError
from halflabel.labels.answers import AnswerStore
from halflabel.runs.folder import RunFolder
from halflabel.system.files import absolute_path


class FinishedReview(NamedTuple):
    """Where the results are, and what could not be done."""

    run: str
    answers: int
    mean_average_precision: float | None  # out of fold, on known labels
    filled: str  # the label file, "" if nothing was filled
    filled_labels: int
    report: str
    note: str


def next_run_folder(run: Path) -> Path:
    """Return RUN-2, or the first such name that is not taken; after RUN-2 comes RUN-3."""
    base, _, digits = run.name.rpartition("-")
    if digits.isdecimal() and base and run.with_name(base).exists():
        run = run.with_name(base)
    number = 2
    while (folder := run.with_name(f"{run.name}-{number}")).exists():
        number += 1
    return folder


def finish_review(
    run: RunFolder,
    images: Path,
    answers: str | Path,
    *,
    precision: float,
    write_report: Callable[..., Any] | None,
    step: Callable[[str], None],
) -> FinishedReview:
    """Train a new run beside `run` from its labels and the answers; write its filled labels and its report.

    The settings stay; a review that started without labels learns as it did meanwhile. `step` receives a description
    of each step.
    """
    from halflabel.filling.run import fill, has_only_positives, write_filled
    from halflabel.fitting.config import Config
    from halflabel.runs.from_nothing import learn_from_answers
    from halflabel.runs.train import train

    rows = run.read_rows()
    with closing(AnswerStore(answers)) as store:
        answered = store.label_rows(rows.images, rows.classes)
    if not len(answered):
        raise UserError("there are no answers yet", "answer some questions first")
    labels = rows.append(answered)
    config = replace(Config.from_dict(run.read_config()), images=absolute_path(images))
    if not rows.training.known:
        config = learn_from_answers(config, labels.training)
    folder = next_run_folder(run.folder)
    step("training")
    new = RunFolder.create(folder)
    evaluation = train(labels, images, config, new)
    new.inherit_fill_options(run)
    note, filled, count = "", "", 0
    if has_only_positives(new):
        command = shlex.join(["halflabel", "fill", str(folder), str(images), "--precision", f"{precision:g}"])
        note = f"No labels were filled: that needs answers to random questions, which this command asks: {command}"
    else:
        step("filling unknown labels")
        try:
            plan = fill(new, images, precision=precision)
            tally = write_filled(plan, new.filled, base=labels)
            filled, count = str(new.filled), int((tally.present + tally.absent).sum())
        except UserError as error:
            note = f"No labels were filled: {error}."
    if write_report is not None:
        step("writing the report")
        write_report(new, images=images)
    score = evaluation.overall.get("mAP") if evaluation is not None else None
    known = None if score is None or score != score else float(score)
    report = str(new / "report.html") if write_report is not None else ""
    return FinishedReview(str(folder), len(answered), known, filled, count, report, note)
