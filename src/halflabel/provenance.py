"""Who made a label: a person, or a model. What models made may be learnt from, but nothing is judged by it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.rows import Rows
from halflabel.labels.standing import standing

if TYPE_CHECKING:
    from halflabel.labels.table import LabelTable

__all__ = ["MODEL", "by_model", "decisive", "tables"]

MODEL = "model:"  # what the source of a filled row begins with: model:METHOD:RUN
_OTHERS = ("model", "machine")  # a model without a name; the guesses that Open Images comes with


def by_model(rows: Rows) -> NDArray[np.bool_]:
    """Which rows a model made, by their source (R,)."""
    made = [name.startswith(MODEL) or name in _OTHERS for name in rows.sources]
    return np.array(made, bool)[rows.source]


def decisive(rows: Rows) -> Rows:
    """The rows that hold alone, by image and class, with their source and score; all images and classes stay."""
    at = standing(rows)
    if len(at) == len(rows) and bool(np.all(at[1:] > at[:-1])):
        return rows
    return replace(
        rows,
        image=rows.image[at],
        column=rows.column[at],
        value=rows.value[at],
        source=rows.source[at],
        score=rows.score[at],
    )


def tables(labels: Rows | LabelTable) -> tuple[LabelTable, LabelTable]:
    """(all labels that hold, those of them that no model made), over the same images and classes.

    >>> from halflabel.labels.names import Names
    >>> at, value = np.array([0, 0, 1]), np.array([1, -1, 1])
    >>> column, source = np.array([0, 1, 1]), np.array([0, 1, 1])
    >>> rows = Rows.build(Names("ab"), Names("xy"), at, column, value, source, None, ("person", "model:bce:runs/1"))
    >>> [table.dense().tolist() for table in tables(rows)]
    [[[1, -1], [0, 1]], [[1, 0], [0, 0]]]
    """
    if not isinstance(labels, Rows):
        return labels, labels
    table = labels.resolve()
    made = by_model(labels)
    if not made.any():
        return table, table
    # The entries of a table stand in the order of the rows that hold: by image and class.
    return table, table.keep(~made[standing(labels)])
