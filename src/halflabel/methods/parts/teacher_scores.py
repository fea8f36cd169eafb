"""Scores of another model for the training images, from a file: image, class, probability."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.formats._csv import CsvTable
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
    sheet = CsvTable(path)
    sheet.check_columns(COLUMNS)
    has_class = pc.not_equal(sheet.column("class"), "")  # blank: an image that could not be read
    probability = sheet.numbers("probability", "write numbers from 0 to 1", least=0, most=1)
    image, label = (pc.dictionary_encode(sheet.column(name).filter(has_class)) for name in COLUMNS[:2])
    return _Scores(
        Names(image.dictionary),
        Names(label.dictionary),
        image.indices.to_numpy().astype(np.int64),
        label.indices.to_numpy().astype(np.int64),
        probability[has_class.to_numpy(zero_copy_only=False)],
    )
