"""Fill the labels of a run, and write the filled rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.evaluation.decisions import calibrate
from halflabel.evaluation.scores import Scores, image_blocks
from halflabel.filling.control import draw_control, plan_present
from halflabel.filling.plan import FillCounts, FillOptions, FillPlan, plan_fill
from halflabel.images.stored_features import unlisted_images
from halflabel.labels.formats.long import (
    appear_in_order,
    columns_of,
    declaration_blocks,
    record_batches,
    write_blocks,
)
from halflabel.labels.labels import MODEL_PREFIX, Labels
from halflabel.labels.names import Names
from halflabel.labels.rules import read_rules
from halflabel.labels.table import Table, are_nearly_all_positive
from halflabel.questions.choose import (
    FEWEST_ANSWERS,
    asked_entries,
    read_questions,
    recorded_weights,
    write_questions,
)
from halflabel.runs.crossfit import fit_again
from halflabel.runs.folder import RunFolder
from halflabel.system.memory import scratch_array
from halflabel.system.reporter import SILENT, Reporter


class NotShown(UserError):
    """Known labels do not show how often a filled one is wrong: answers to random questions must."""


def fill(
    run: RunFolder | str | Path,
    images: str | Path,
    *,
    labels: Labels | None = None,
    precision: float = 0.95,
    confidence: float = 0.9,
    rules: Path | None = None,
    folds: int | None = None,
    control: Labels | None = None,
    answers: Labels | None = None,
    assume_random: bool = False,
    all_photos: bool = False,
    reporter: Reporter = SILENT,
) -> FillPlan:
    """Plan how to fill the unknown labels of a run, or of `labels`: other labels of the run's classes, of any images.

    `labels` are added to those of the run, and override them, for training heads and as evidence; only their images are
    filled, and with `all_photos` the photos of the folder that no label names. Labels made by a model (source
    "model:…") stay as they are and are never evidence, nor are `answers`: further labels by people, to questions that a
    model may have chosen.

    Where only positives are known, or the scores of known labels differ from those of unknown ones, present labels are
    filled if `control` holds answers to `ControlQuestions`, or with `assume_random` under the assumption of the run's
    calibration. A run that continues another has learned from such answers: they still count for the entries that were
    asked about. NotShown is raised where nothing shows the precision.
    """
    run = run if isinstance(run, RunFolder) else RunFolder.open(run)
    further_photos = unlisted_photos(run, labels, Path(images)) if all_photos else None
    rows, table, evidence = _open_labels(run, labels, further_photos)
    config = run.read_config()
    rule_set = read_rules(rules, rows.classes) if rules is not None else None
    to_fill = np.full(len(table), labels is None)
    for names in (labels.images, further_photos or Names([])) if labels is not None else ():
        to_fill[table.images.index(names.array)] = True
    only_positives = are_nearly_all_positive(evidence.value, math.prod(evidence.shape))
    if only_positives or control is not None:
        _check_probabilities(run, folds)
    learned = None if control is not None or labels is not None else _learned_answers(run)
    reason = "hardly any label is known to be absent, so no known label shows" if only_positives else ""
    if only_positives and control is None and learned is None and not assume_random:
        raise _not_shown(reason)
    scores = _score(run, Path(images), rows, folds, reporter)
    source = f"{MODEL_PREFIX}{config['method']}{'+assumed' if control is None and assume_random else ''}:{run.address}"
    options = FillOptions(to_fill, precision, confidence, rule_set, source)
    plan = None if only_positives or control is not None else plan_fill(scores, rows, options)
    if plan is not None and plan.unlike and not assume_random:
        reason = f"{plan.unlike}, so they do not show"
        plan = None
    if plan is None:
        calibration, random, region = run.read_calibration(), None, None
        if control is not None:
            control = unlearned_answers(control, table)
            random = control.select(control.weight != 0)
            if not len(random):
                raise UserError(
                    "the run has learned from these answers, or their questions were chosen: they cannot show how "
                    "often its fills are wrong",
                    "answer new control questions, or fill by the run that the answers were asked for",
                )
        elif not assume_random:
            if learned is None:
                raise _not_shown(reason)
            random, region = learned.answers, learned.asked_about(scores, Path(images), reporter)
            calibration = calibrate(scores.logits, evidence.dense())  # without these answers
        plan = plan_present(scores, rows, calibration, random, options, region)
    if folds is not None and config.get("tune") == "all":
        caveat = "the tuned backbone has seen the labels of its training images, so precision may be overestimated"
        plan = replace(plan, warnings=(*plan.warnings, caveat))
    for further in (control, answers):
        if further is not None and len(further):
            rows = _align(rows.append(further), rows.classes)
            plan = replace(plan, answered=rows.training)
    return plan


def _not_shown(reason: str) -> NotShown:
    return NotShown(
        f"{reason} how often a filled label is wrong",
        "answer control questions (ControlQuestions), or assume that known labels are a random sample (assume_random)",
    )


@dataclass(frozen=True)
class _Learned:
    """Answers to the random questions of the run that a run continues, from which it has learned."""

    answers: Labels
    earlier: RunFolder

    def asked_about(self, scores: Scores, images: Path, reporter: Reporter) -> Scores:
        """Return the scores of the entries that the questions were drawn from; NaN: answers say nothing of others."""
        calibration, before = self.earlier.read_calibration(), self.earlier.scores(scores.images, images, reporter)
        entries = self.answers.image, self.answers.column
        lowest = np.nanmin(calibration.log_odds(np.asarray(before.logits[entries]), entries[1]))
        logits = scratch_array(scores.logits.shape)
        for index in image_blocks(*logits.shape):
            inside = calibration.log_odds(np.asarray(before.logits[index])) >= lowest
            logits[index] = np.where(inside, scores.logits[index], np.nan)
        return replace(scores, logits=logits)


def _learned_answers(run: RunFolder) -> _Learned | None:
    """Return what a continued run knows of the random questions before it; None if it has asked new ones."""
    begin_from = run.read_config().get("begin_from")
    earlier = None if begin_from is None or run.control.exists() else RunFolder(str(begin_from))
    if earlier is None or not earlier.control.exists() or run.score_kind != "out-of-fold":
        return None
    rows, asked = run.read_rows().drop_overridden(), asked_entries(earlier.control)
    weight = np.where(rows.weight > 0, recorded_weights(rows, asked), np.nan)
    rows = replace(rows, weight=weight.astype(np.float32))
    rows = rows.select(~np.isnan(rows.weight) & (np.abs(rows.value) == 1))
    return _Learned(rows, earlier) if len(rows) >= min(FEWEST_ANSWERS, len(asked)) else None


def unlearned_answers(answers: Labels, table: Table) -> Labels:
    """Return the answers yes or no about entries that a table does not know, with the numbers of the table.

    Those that a model was trained on were drawn among the likely labels of an earlier model: they would overestimate.
    """
    image = table.images.index(answers.images.array).astype(np.int32)[answers.image]
    column = table.classes.index(answers.classes.array).astype(np.int32)[answers.column]
    is_decided = np.flatnonzero((np.abs(answers.value) == 1) & (image >= 0) & (column >= 0))
    is_known = np.asarray(table.values[image[is_decided], column[is_decided]]).ravel() != 0
    rows = replace(answers, images=table.images, classes=table.classes, image=image, column=column)
    return rows.select(is_decided[~is_known])


@dataclass(frozen=True)
class ControlQuestions:
    """The random questions in RUN/control.csv whose answers show how often a filled label is wrong.

    They cover the photos of the labels and `further`, the photos of the folder beside them.
    """

    run: RunFolder
    images: Path
    labels: Labels | None = None
    further: Names | None = None
    precision: float = 0.95
    count: int = 100

    def asked(self) -> dict[tuple[str, str], float]:
        """Return the weights of the questions that are written already, without those about other photos."""
        asked = asked_entries(self.run.control)
        if self.further is None and asked:  # an earlier fill may have had further ones
            listed = self.run.read_rows().images
            listed = listed if self.labels is None else listed.union(self.labels.images)
            asked = {entry: weight for entry, weight in asked.items() if entry[0] in listed}
        return asked

    def answers_among(self, answers: Labels) -> Labels | None:
        """Return the answers to the questions that were asked, with their weights, or None if there are too few."""
        asked = self.asked()
        weight = recorded_weights(answers, asked)
        rows = replace(answers, weight=weight).select(~np.isnan(weight))
        return rows if asked and len(rows) >= min(FEWEST_ANSWERS, len(asked)) else None

    def covers(self, images: Iterable[str]) -> bool:
        """Whether the images include one of the further photos, if there are any."""
        return not self.further or any(image in self.further for image in images)

    def ask(self, reporter: Reporter = SILENT) -> None:
        """Draw questions and write them; where some are written already, further ones, about the further photos."""
        rows, table, evidence = _open_labels(self.run, self.labels, self.further)
        _check_probabilities(self.run, None)
        scores, calibration = _score(self.run, self.images, rows, None, reporter), self.run.read_calibration()
        earlier = read_questions(self.run.control, table) if self.asked() else []
        among = table.images.index(self.further.array) if earlier and self.further is not None else None
        options: dict[str, Any] = {"precision": self.precision, "count": self.count, "among": among}
        drawn = draw_control(scores, evidence, calibration, known=table, **options)
        write_questions([*earlier, *drawn], table, self.run.control)


def has_only_positives(run: RunFolder) -> bool:
    """Return whether the labels are nearly all positive, so that a fill needs control answers or an assumption."""
    evidence = run.read_rows().evaluation
    return are_nearly_all_positive(evidence.value, math.prod(evidence.shape))


def unlisted_photos(run: RunFolder, labels: Labels | None, folder: Path) -> Names:
    """Return the photos of the folder that neither run nor `labels` name."""
    names = run.read_rows().images
    return Names(unlisted_images(names if labels is None else names.union(labels.images), folder))


def _open_labels(
    run: RunFolder, labels: Labels | None, further_photos: Names | None = None
) -> tuple[Labels, Table, Table]:
    """Return the rows of a run and of `labels`, their table, and the table of the labels that no model made."""
    run.check_finished()
    rows = run_rows = run.read_rows()
    rows = rows if labels is None else rows.append(labels)
    rows = rows if further_photos is None else rows.with_images(further_photos)
    rows = _align(rows, run_rows.classes).drop_overridden()
    return rows, rows.training, rows.evaluation


def _check_probabilities(run: RunFolder, folds: int | None) -> None:
    """Raise an error, before anything is scored, where there are no probabilities for labels of positives only."""
    if folds is not None:
        raise UserError(
            "with positives only, probabilities are those of the run, and ‹folds› would train other heads",
            "leave ‹folds› out",
        )
    if not run.is_calibrated or _lacks_scores(run):
        raise UserError(
            f"{run.folder} has no out-of-fold scores, on which control questions and what is filled by them rest",
            "train with ‹fit=linear›",
        )


def _lacks_scores(run: RunFolder) -> bool:
    """Whether a run on a frozen backbone has no out-of-fold scores."""
    return run.read_config().get("tune", "head") == "head" and run.score_kind != "out-of-fold"


def _score(run: RunFolder, images: Path, labels: Labels, folds: int | None, reporter: Reporter) -> Scores:
    """Return scores of the images that can be evaluated: those of the run, or else, or with `folds`, of heads per fold.

    So known and unknown entries of an image have scores of the same kind. A tuned backbone is evaluated on the images
    that the run held out, and on those that it never had.
    """
    if folds is not None or _lacks_scores(run):
        return fit_again(run, images, labels, folds=folds, reporter=reporter)
    if run.score_kind is None and (run.split_of(labels.images) == 0).all():
        raise UserError(
            "the run tuned its backbone on every image, so no label is left to evaluate its scores",
            "train with ‹held_out=0.2›, or add ‹folds=5› to train the head again on parts of the images",
        )
    return run.scores(labels.images, images, reporter)


def check_output_name(path: Path) -> None:
    """Raise an error unless the file name ends in .csv or .parquet."""
    if path.suffix not in (".csv", ".parquet"):
        raise UserError(f"{path} cannot hold filled labels", "end the name in .csv or .parquet")


def write_filled(
    plan: FillPlan,
    path: Path,
    *,
    base: Labels | None = None,
    answers: Labels | None = None,
) -> FillCounts:
    """Write the filled rows to CSV or Parquet, by the file name; `base` and `answers` are written before them.

    With `base`, every image of it and of the plan is in the file; those without a label come last. Without `base` the
    file can be appended to the label file without its header: the last row wins.
    """
    check_output_name(path)
    counts = plan.empty_counts()
    images = Names([]) if base is None else base.images.union(plan.table.images.take(plan.images_to_fill))
    has_row = np.zeros(len(images), bool)

    def write(rows: Labels) -> Iterator[Any]:
        if base is not None:
            place = images.index(rows.images.take(np.unique(rows.image)).array)
            has_row[place[place >= 0]] = True
        yield from record_batches(rows)

    def blocks() -> Iterator[Any]:
        for rows in (base, answers):
            if rows is not None:
                yield from write(rows)
        for rows in plan.blocks(counts):
            yield from write(rows)
        if base is not None:
            if not appear_in_order(base.column, len(base.classes)):
                yield from declaration_blocks("class", base.classes)
            yield from declaration_blocks("image", images.take(np.flatnonzero(~has_row)))

    write_blocks(blocks(), path, columns_of(base, answers))
    return counts


def _align(rows: Labels, classes: Names) -> Labels:
    """Return the rows with the classes of the run; other classes are an error."""
    index = classes.index(rows.classes.array)
    if (index < 0).any():
        missing = rows.classes[int(np.flatnonzero(index < 0)[0])]
        raise UserError(
            f"the labels have a class {missing!r} that the run was not trained on",
            "train with it, or leave its rows out",
        )
    return replace(rows, classes=classes, column=index.astype(np.int32)[rows.column])
