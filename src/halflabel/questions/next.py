"""Choose the questions that a person should answer next, for `halflabel next`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.answers import answered_entries
from halflabel.labels.table import Table, are_nearly_all_positive
from halflabel.questions.choose import (
    LowestCost,
    Question,
    choose_questions,
    entry_blocks,
    open_entries,
    rank_among_equal,
    read_probabilities,
)
from halflabel.runs.folder import RunFolder
from halflabel.runs.scores import ScoredImages, scored_images
from halflabel.system.reporter import SILENT, Reporter

_SHARE_OF_MEDIAN = 0.1  # of its class, below which a present label looks wrong where negatives are unknown
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
    if not run.weights.is_file() and not run.read_rows().people.known:
        run_name = shlex.quote(run.address)
        raise UserError(
            f"{run.address} began without labels and has no model yet",
            f"answer questions with halflabel review {run_name}, then halflabel train --continue {run_name}",
        )
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

        fitted = fit_again(run, images, run.read_rows(), folds=folds, reporter=reporter)
        scores, crossfitted = fitted.probabilities(run.read_calibration()), True
    kind: dict[str, Any] = {"score_kind": "cross-fitted score"} if crossfitted else {"trained_on": ~scored.held_out}
    questions = doubtful_labels(scores, table, count, per_image=per_image, skip=skip, **kind)
    return NextQuestions(questions, table, held_out, crossfitted)


def other_scores(other: Path, scored: ScoredImages, reporter: Reporter = SILENT) -> NDArray[np.float32]:
    """Return the probabilities (N, C) of another run or of a file, for the entries of `scored`; NaN where unknown."""
    if not other.is_dir():
        return read_other_file(other, scored.table, scored.paths)
    theirs = scored_images(RunFolder.open(other), scored.folder, reporter)
    table = scored.table
    if (theirs.table.images, theirs.table.classes) == (table.images, table.classes):
        return theirs.scores
    image = theirs.table.images.index(table.images.array)
    column = theirs.table.classes.index(table.classes.array)
    scores = np.full(table.shape, np.nan, np.float32)
    scores[np.ix_(image >= 0, column >= 0)] = theirs.scores[np.ix_(image[image >= 0], column[column >= 0])]
    return scores


def read_other_file(path: Path, table: Table, paths: Sequence[str | None]) -> NDArray[np.float32]:
    """Read a CSV file with image, class and probability into an array (N, C); other images and classes are ignored.

    Images may be named as in the labels or by their file. `halflabel predict --format csv` writes such a file.
    """
    sheet = open_entries(path, "probability")
    names = sheet.column("image")
    image = table.images.index(names)
    files = {name: i for i, name in enumerate(paths) if name}
    for row in np.flatnonzero(image < 0).tolist():
        image[row] = files.get(names[row].as_py(), -1)
    column, p = table.classes.index(sheet.column("class")), read_probabilities(sheet)
    is_known = (image >= 0) & (column >= 0)
    scores = np.full(table.shape, np.nan, np.float32)
    scores[image[is_known], column[is_known]] = p[is_known]
    if np.isnan(scores).all():
        fix = "give a CSV file with the columns image,class,probability, or a run folder"
        raise UserError(f"{path} has no probability for an image and a class of the run", fix)
    return scores


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
    best = LowestCost(1, count * 8, np.float64(-_FEWEST))
    for index, block, labels, is_free in entry_blocks(scores, table, skip):
        difference = np.abs(block.astype(np.float64) - other[index])
        best.add_block(index, np.where(is_free & (labels == 0), -difference, np.inf))
    chosen = np.flatnonzero(rank_among_equal(best.image) < per_image)[:count]
    entries = zip(best.image[chosen].tolist(), best.column[chosen].tolist(), strict=True)
    why = "disagreement; the other model says {:.2f}"
    return [Question(i, c, float(scores[i, c]), why.format(other[i, c])) for i, c in entries]


def present_limits(column: NDArray[Any], probability: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Return the probability (C,) below which a present label looks wrong, from those known to be present.

    It is a tenth of the median of the class. Where hardly any negative is known, a model finds only part of the
    labels that were given: that it misses one is no evidence.
    """
    is_scored = ~np.isnan(probability)
    column, probability = column[is_scored], probability[is_scored]
    order = np.argsort(column, kind="stable")
    parts = np.split(probability[order], np.searchsorted(column[order], np.arange(1, classes)))
    return np.array([_SHARE_OF_MEDIAN * np.median(part) if len(part) else 0.0 for part in parts])


def doubtful_labels(
    scores: NDArray[Any],
    table: Table,
    count: int,
    *,
    trained_on: NDArray[np.bool_] | None = None,
    score_kind: str = "held-out score",
    per_image: int = 2,
    skip: Iterable[tuple[int, int]] = (),
) -> list[Question]:
    """Return known labels that look wrong, least probable first: p of a present label, 1 − p of an absent one.

    Only labels with a probability below 0.5 or, where hardly any label is known to be absent, below that of
    `present_limits`. No class takes more than a quarter while other classes have labels.
    Images in the mask `trained_on` (N,) were scored by a model that learned these labels; the others have scores of
    `score_kind`. `why` of a question says which.
    """
    limits = np.full(len(table.classes), 0.5)
    if are_nearly_all_positive(table.value, math.prod(table.shape)):
        is_present = table.value > 0
        at, of_class = (part[is_present] for part in table.entries()[:2])
        limits = present_limits(of_class, np.asarray(scores[at, of_class]), len(table.classes))
    best = LowestCost(len(table.classes), 2 * count, np.inf)
    for index, block, labels, is_free in entry_blocks(scores, table, skip):
        p = np.where(labels > 0, block, 1 - block).astype(np.float64)
        is_doubtful = is_free & (labels != 0) & (p < np.where(labels > 0, limits, 0.5))
        best.add_block(index, np.where(is_doubtful, p, np.inf), by_class=True)
    order = np.lexsort((best.column, best.image, best.cost))
    order = order[rank_among_equal(best.image[order]) < per_image]
    exceeds_quota = rank_among_equal(best.column[order]) >= max(2, count // 4)
    order = order[np.sort(np.argsort(exceeds_quota, kind="stable")[:count])]
    questions = []
    for i, c in zip(best.image[order].tolist(), best.column[order].tolist(), strict=True):
        label = "labelled present" if table.values[i, c] > 0 else "labelled absent"
        kind = "score of a label trained on" if trained_on is not None and trained_on[i] else score_kind
        questions.append(Question(i, c, float(scores[i, c]), f"{label}; {kind}"))
    return questions
