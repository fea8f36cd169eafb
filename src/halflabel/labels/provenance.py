"""Provenance: which labels a model made, and the gate that keeps those labels out of every evaluation.

The source of a row tells who made the label. "model:METHOD:RUN" marks labels that a model filled in, and labels that
rules derived from them; "model" and "machine" mark models without a name. Every other source stands for people. "rule"
does too: it marks labels that rules derived from labels made by people. Answers of `halflabel review` say whether their
question was chosen or drawn at random, and who answered: "person:asked:NAME" or "person:control:NAME".

A model may learn from labels made by a model, but must never be evaluated by them. Code that computes a metric, chooses
a threshold or an epoch, calibrates scores, holds out images or compares methods takes its labels from
`training_and_evaluation_tables` (a table) or `evaluation_rows` (rows), and from nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from halflabel.labels.labels import MODEL_PREFIX, Labels, is_model_source

if TYPE_CHECKING:
    from halflabel.labels.table import Table

ASKED_SOURCE = "person:asked"  # an answer to a question that was chosen: no random sample
CONTROL_SOURCE = "person:control"  # an answer to a question that was drawn at random
_ANSWERS = (ASKED_SOURCE, CONTROL_SOURCE)
_FEWEST_POSITIVES = 5  # known beside answers to chosen questions; with fewer, these answers are used as well
RULE_SOURCE = "rule"  # derived by rules from labels that people made


def training_and_evaluation_tables(labels: Labels | Table) -> tuple[Table, Table]:
    """(all labels, the labels that no model made), over the same images and classes.

    Train with the first table; evaluate, calibrate and split with the second. Everything that evaluates must get its
    labels here or from `evaluation_rows`. A Table has no sources, so both tables are the given one: a caller
    that builds one from rows must already have passed this gate.

    A label counts by the row that holds: a person's label holds against those of models, in any order.

    >>> from halflabel.labels.names import Names
    >>> image, column, value = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([1, -1, 1])
    >>> source, sources = np.array([0, 1, 1]), ("person", "model:bce:runs/1")
    >>> rows = Labels.build(Names("ab"), Names("xy"), image, column, value, source, None, sources)
    >>> [table.dense().tolist() for table in training_and_evaluation_tables(rows)]
    [[[1, -1], [0, 1]], [[1, 0], [0, 0]]]
    """
    if not isinstance(labels, Labels):
        return labels, labels
    table = labels.resolve()
    model_made = labels.is_model_made()
    if not model_made.any():
        return table, table
    # The entries of a table have the order of the rows that hold: by image and class.
    return table, table.keep(~model_made[labels.holding()])


def calibration_tables(labels: Labels | Table) -> tuple[Table, Table, Table | None]:
    """(all labels, the labels to evaluate and calibrate on, answers to control questions or None).

    Answers to chosen questions ("person:asked:NAME") are not a random sample: they are trained on, but neither
    evaluated nor calibrated on, unless hardly anything else is known. Answers to control questions, drawn at random,
    are like other labels; where the other labels are nearly all positive they come as a third table, as the two kinds
    of labels then need different treatment.
    """
    table, people = training_and_evaluation_tables(labels)
    if not isinstance(labels, Labels):
        return table, people, None
    rows = evaluation_rows(labels)
    kind = np.array([_answer_kind(name) for name in rows.sources])[rows.source]
    given = people.keep(kind == 0)
    if int((people.keep(kind != 1).value > 0).sum()) < _FEWEST_POSITIVES:
        return table, people, None
    if not given.known or 10 * int((given.value < 0).sum()) >= int((given.value > 0).sum()):
        return table, people.keep(kind != 1), None
    return table, given, people.keep(kind == 2) if (kind == 2).any() else None


def choosing_table(labels: Labels | Table) -> Table:
    """Return the labels by which training chooses strength and similar images: those that it is evaluated on.

    Where people know more than twice as many positives, because the others are answers to chosen questions, all of
    people's labels: a few random answers choose worse than many chosen ones, and a choice is not a result.
    """
    people, evaluation = training_and_evaluation_tables(labels)[1], calibration_tables(labels)[1]
    has_most = 2 * int((evaluation.value > 0).sum()) >= int((people.value > 0).sum())
    return evaluation if has_most else people


def _answer_kind(source: str) -> int:
    """Return 1 for an answer to a chosen question, 2 for one to a random question, and 0 for another source."""
    return next((n for n, kind in enumerate(_ANSWERS, 1) if source == kind or source.startswith(f"{kind}:")), 0)


def is_answer_source(source: str) -> bool:
    """Whether a label is an answer of `halflabel review`.

    >>> is_answer_source("person:asked:ann"), is_answer_source("person:control"), is_answer_source("person:ann")
    (True, True, False)
    """
    return _answer_kind(source) > 0


def evaluation_rows(rows: Labels) -> Labels:
    """The rows that hold and that no model made; all images, classes and sources stay.

    `evaluation_rows(rows).resolve()` is the second table of `training_and_evaluation_tables(rows)`. Use it where the
    source and score of a label are needed as well.
    """
    holding = rows.holding()
    return rows.select(holding[~rows.is_model_made()[holding]])


def model_source(name: str) -> str:
    """The source for labels made by the model `name`, as another tool calls it.

    >>> model_source("yolo-v8"), model_source("model:bce:runs/1"), model_source("")
    ('model:yolo-v8', 'model:bce:runs/1', 'model')
    """
    if not name:
        return "model"
    return name if is_model_source(name) else MODEL_PREFIX + name
