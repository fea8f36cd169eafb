"""Questions where two models differ most: two runs, or a run and a file of another model's probabilities."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.table import Table
from halflabel.questions.choose import LowestCost, Question, open_blocks, sorted_entries
from halflabel.runs.folder import RunFolder
from halflabel.runs.scores import ScoredImages, scored_images
from halflabel.system.reporter import SILENT, Reporter

_COLUMNS = ("image", "class", "probability")
_FEWEST = 0.05  # difference that is worth a question


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
    best = LowestCost(1, min(count * 8, table.shape[0] * table.shape[1]), np.float64(-_FEWEST))
    for index, block, unknown in open_blocks(scores, table, sorted_entries(skip)):
        cost = -np.abs(block.astype(np.float64) - other[index[0] : index[-1] + 1])
        row, column = np.nonzero(unknown & (cost < best.limit[0]))
        best.add(np.zeros_like(row), index[row], column, cost[row, column])
    asked: Counter[int] = Counter()
    questions: list[Question] = []
    for i, c in zip(best.image.tolist(), best.column.tolist(), strict=True):
        if asked[i] < per_image and len(questions) < count:
            asked[i] += 1
            why = f"disagreement; the other model says {other[i, c]:.2f}"
            questions.append(Question(i, c, float(scores[i, c]), why))
    return questions
