"""Which rows hold in the end, for formats that have one place per (image, class) and keep source and score there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.rows import Rows
from halflabel.labels.table import last_of_each

__all__ = ["standing"]


def standing(rows: Rows) -> NDArray[np.int64]:
    """The numbers of the rows that hold, by image and class: of several the last, and none where it retracts.

    >>> from halflabel.labels.names import Names
    >>> image, column, value = np.array([1, 0, 1, 0]), np.array([0, 0, 0, 1]), np.array([1, 1, -1, 0])
    >>> standing(Rows.build(Names("ab"), Names("xy"), image, column, value)).tolist()
    [1, 2]
    """
    last = last_of_each(rows.image, rows.column)
    if isinstance(last, slice):
        return np.flatnonzero(rows.value)
    kept: NDArray[np.int64] = last[rows.value[last] != 0]
    return kept
