"""Which rows hold in the end, for formats that have one place per (image, class) and keep source and score there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.rows import Rows

__all__ = ["standing"]


def standing(rows: Rows) -> NDArray[np.int64]:
    """The numbers of the rows that hold, by image and class: of several the last, and none where it retracts.

    >>> from halflabel.labels.names import Names
    >>> image, column, value = np.array([1, 0, 1, 0]), np.array([0, 0, 0, 1]), np.array([1, 1, -1, 0])
    >>> standing(Rows.build(Names("ab"), Names("xy"), image, column, value)).tolist()
    [1, 2]
    """
    key = rows.image.astype(np.int64) * len(rows.classes) + rows.column
    _, from_end = np.unique(key[::-1], return_index=True)
    last = len(key) - 1 - from_end
    kept: NDArray[np.int64] = last[rows.value[last] != 0]
    return kept
