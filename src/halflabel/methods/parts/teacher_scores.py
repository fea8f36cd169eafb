"""Scores of another model for the training images, from a file: image, class, probability."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._csv import read_lines
from halflabel.labels.names import Names
from halflabel.labels.table import Table

COLUMNS = ("image", "class", "probability")


class _Scores(NamedTuple):
    images: Names
    classes: Names
    image: NDArray[np.int64]  # of each row
    label: NDArray[np.int64]
    probability: NDArray[np.float32]


def teacher_probabilities(path: str, table: Table) -> NDArray[np.float32]:
    """Return the teacher's probabilities (N, C) for the entries of a table; NaN where the file has none.

    The file is CSV with the columns image, class and probability, as `halflabel predict` writes it with --format csv
    --all; other columns are ignored.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{path} is not a file", "give a CSV file with the columns image, class and probability")
    scores = _read(file.resolve(), file.stat().st_mtime_ns)
    probabilities = np.full(table.shape, np.nan, np.float32)
    row, column = table.images.index(scores.images.array)[scores.image], table.classes.index(scores.classes.array)
    column = column[scores.label]
    inside = (row >= 0) & (column >= 0)
    probabilities[row[inside], column[inside]] = scores.probability[inside]
    if not inside.any():
        raise UserError(
            f"{path} has no image and class of the training labels",
            f"use the same names: images such as {table.images[0]!r}, classes such as {table.classes[0]!r}",
        )
    return probabilities


@lru_cache(maxsize=1)
def _read(path: Path, changed: int) -> _Scores:
    """Read the file once, until it changes."""
    reader = csv.reader(read_lines(path))
    header = next(reader, [])
    if missing := [name for name in COLUMNS if name not in header]:
        raise LabelError(f"there is no column {missing[0]!r}", f"name the columns {', '.join(COLUMNS)}", path, line=1)
    at = [header.index(name) for name in COLUMNS]
    images: dict[str, int] = {}
    classes: dict[str, int] = {}
    rows: list[tuple[int, int, float]] = []
    for line in reader:
        if len(line) <= max(at) or not line[at[1]]:  # an image that could not be read
            continue
        image, name, text = (line[place] for place in at)
        try:
            probability = float(text)
        except ValueError:
            probability = np.nan
        if not 0 <= probability <= 1:
            raise LabelError(f"{text!r} is not a probability", "write numbers from 0 to 1", path, line=reader.line_num)
        rows.append((images.setdefault(image, len(images)), classes.setdefault(name, len(classes)), probability))
    if not rows:
        raise LabelError("the file has no scores", f"write rows of {', '.join(COLUMNS)}", path)
    image_numbers, class_numbers, values = zip(*rows, strict=True)
    return _Scores(
        Names(list(images)),
        Names(list(classes)),
        np.array(image_numbers),
        np.array(class_numbers),
        np.array(values, np.float32),
    )
