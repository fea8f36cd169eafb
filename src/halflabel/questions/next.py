"""Choose the questions that a person should answer next, for `halflabel next`."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.answers import answered_entries
from halflabel.labels.table import Table
from halflabel.questions.choose import Question, choose_questions, open_entries
from halflabel.questions.doubtful_labels import doubtful_labels
from halflabel.runs.folder import RunFolder
from halflabel.runs.scores import ScoredImages, scored_images
from halflabel.system.reporter import SILENT, Reporter

_COLUMNS = ("image", "class", "probability")
_FEWEST = 0.05  # difference of two models that is worth a question


class NextQuestions(NamedTuple):
    """Questions about entries of `table`, the labels of the run that people made."""

    questions: list[Question]
    table: Table
    held_out: int  # images the model was not trained on
    crossfitted: bool  # whether doubtful labels were scored by heads that were trained without them


def next_questions(
    run: RunFolder | str | Path,
    images: str | Path,
    count: int = 200,
    *,
    wrong: bool = False,
    disagree: str | Path | None = None,
    control: float = 0.1,
    per_image: int = 2,
    folds: int = 3,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> NextQuestions:
    """Return the unknown entries most worth asking about, or with `wrong` the known labels that look wrong.

    With `disagree`, another run or a file of probabilities, the unknown entries where both differ most.
    Entries answered in `halflabel review` are left out. Labels made by a model do not count as known. `control` and
    `seed` are for unknown entries; `folds` is for labels that look wrong, which are scored by heads that were trained
    without them (0: scored by the model itself).
    """
    run = run if isinstance(run, RunFolder) else RunFolder.open(run)
    images = Path(images)
    scored = scored_images(run, images, reporter)
    table, held_out = scored.table, int(scored.held_out.sum())
    skip = answered_entries(run.answers, table)
    if disagree is not None:
        other = other_scores(Path(disagree), scored, reporter)
        questions = largest_differences(scored.scores, other, table, count, per_image=per_image, skip=skip)
        return NextQuestions(questions, table, held_out, crossfitted=False)
    if not wrong:
        questions = choose_questions(
            scored.scores,
            table,
            scored.thresholds,
            count,
            features=scored.features,
            control=control,
            per_image=per_image,
            skip=skip,
            seed=seed,
        )
        return NextQuestions(questions, table, held_out, crossfitted=False)
    scores, crossfitted = scored.scores, run.score_kind == "out-of-fold"
    if not crossfitted and folds >= 2 and run.read_config().get("tune", "head") == "head":  # else as long as training
        from halflabel.runs.crossfit import fit_again

        fitted = fit_again(run, images, run.read_labels(), folds=folds, reporter=reporter)
        scores, crossfitted = fitted.probabilities(run.read_calibration()), True
    kind: dict[str, Any] = {"score_kind": "cross-fitted score"} if crossfitted else {"trained_on": ~scored.held_out}
    questions = doubtful_labels(scores, table, count, per_image=per_image, skip=skip, **kind)
    return NextQuestions(questions, table, held_out, crossfitted)


def other_scores(other: Path, scored: ScoredImages, reporter: Reporter = SILENT) -> NDArray[np.float32]:
    """Return the probabilities (N, C) of another run or of a file, for the entries of `scored`; NaN where unknown."""
    if not other.is_dir():
        return read_probabilities(other, scored.table, scored.paths)
    theirs = scored_images(RunFolder.open(other), scored.folder, reporter)
    table = scored.table
    if (theirs.table.images, theirs.table.classes) == (table.images, table.classes):
        return theirs.scores
    image = theirs.table.images.index(table.images.array)
    column = theirs.table.classes.index(table.classes.array)
    scores = np.full(table.shape, np.nan, np.float32)
    scores[np.ix_(image >= 0, column >= 0)] = theirs.scores[np.ix_(image[image >= 0], column[column >= 0])]
    return scores


def read_probabilities(path: Path, table: Table, paths: Sequence[str | None]) -> NDArray[np.float32]:
    """Read a CSV file with image, class and probability into an array (N, C); other images and classes are ignored.

    Images may be named as in the labels or by their file. `halflabel predict --format csv` writes such a file.
    """
    fix = "give a CSV file with the columns image,class,probability, or a run folder"
    rows = {name: i for i, name in enumerate(paths) if name} | {name: i for i, name in enumerate(table.images)}
    columns = {name: c for c, name in enumerate(table.classes)}
    scores = np.full(table.shape, np.nan, np.float32)
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
                raise LabelError(f"there is no column {missing[0]!r}", fix, path, line=1)
            for row in reader:
                i, c = rows.get(row["image"]), columns.get(row["class"])
                if i is not None and c is not None:
                    scores[i, c] = _probability(row["probability"], path, reader.line_num)
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error})", fix) from None
    if np.isnan(scores).all():
        raise UserError(f"{path} has no probability for an image and a class of the run", fix)
    return scores


def _probability(text: str | None, path: Path, line: int) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        value = -1.0
    if value < 0 or value > 1:
        raise LabelError(
            f"{text!r} is not a probability", "use a number from 0 to 1", path, line=line, column="probability"
        )
    return value


def largest_differences(
    scores: NDArray[Any],
    other: NDArray[Any],
    table: Table,
    count: int,
    *,
    per_image: int = 2,
    skip: Iterable[tuple[int, int]] = (),
) -> list[Question]:
    """Return the unknown entries with the largest |p − q| of two models' probabilities (N, C), largest first."""
    entries = open_entries(scores, table, skip, count * 8, -_FEWEST, lambda index, block: -np.abs(block - other[index]))
    asked: Counter[int] = Counter()
    questions: list[Question] = []
    for i, c, _ in entries:
        if asked[i] < per_image and len(questions) < count:
            asked[i] += 1
            why = f"disagreement; the other model says {other[i, c]:.2f}"
            questions.append(Question(i, c, float(scores[i, c]), why))
    return questions
