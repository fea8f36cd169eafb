"""Who made a label: a person, or a model. What models made may be learnt from, but nothing is judged by it.

A row's source says it. "model:METHOD:RUN" is what that model filled in, and what rules make of its labels; "model" and
"machine" are models without a name. All else was said by people, "rule" too: it follows from what people said. So a
label that a rule derives is as good as the label it was derived from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.rows import Rows
from halflabel.labels.standing import standing

if TYPE_CHECKING:
    from halflabel.labels.table import LabelTable

__all__ = ["MODEL", "RULE", "by_model", "decisive", "model_source", "pick", "tables"]

MODEL = "model:"  # what the source of a filled row begins with: model:METHOD:RUN
RULE = "rule"  # the source of what follows by rules from labels that people made
_OTHERS = ("model", "machine")  # a model without a name; the guesses that Open Images comes with


def by_model(rows: Rows) -> NDArray[np.bool_]:
    """Which rows a model made, by their source (R,)."""
    return np.array([_is_model(name) for name in rows.sources], bool)[rows.source]


def model_source(name: str) -> str:
    """The source of what a model made that others call so.

    >>> model_source("yolo-v8"), model_source("model:bce:runs/1"), model_source("")
    ('model:yolo-v8', 'model:bce:runs/1', 'model')
    """
    return (name if _is_model(name) else MODEL + name) if name else "model"


def _is_model(source: str) -> bool:
    return source.startswith(MODEL) or source in _OTHERS


def decisive(rows: Rows) -> Rows:
    """The rows that hold alone, by image and class, with their source and score; all images and classes stay."""
    at = standing(rows)
    if len(at) == len(rows) and bool(np.all(at[1:] > at[:-1])):
        return rows
    return pick(rows, at)


def pick(rows: Rows, at: NDArray[np.int64] | NDArray[np.bool_]) -> Rows:
    """Some of the rows, by number or by mask; all images, classes and sources stay."""
    image, column, value = rows.image[at], rows.column[at], rows.value[at]
    return Rows.build(rows.images, rows.classes, image, column, value, rows.source[at], rows.score[at], rows.sources)


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
