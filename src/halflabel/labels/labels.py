"""Labels: rows in the order they were written, each with its source (who made it), score and weight (how it was asked).

The source "model:METHOD:RUN" marks labels that a model filled in, and labels that rules derived from them; "model" and
"machine" mark models without a name. Every other source stands for people, as "rule": derived from labels of people;
"person:NAME": an answer of `halflabel review`.

A model may learn from labels made by a model, but must never be evaluated by them: code that computes a metric, chooses
a threshold or an epoch, calibrates, holds out images or compares methods uses `Labels.people`, `Labels.evaluation` or
`Labels.choosing`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import UNCERTAIN, Table, last_of_each

MODEL_PREFIX = "model:"
WEIGHT_COLUMN = "inclusion_weight"  # of files with answers
RULE_SOURCE = "rule"  # derived by rules from labels that people made
UNLISTED_SOURCE = "unlisted"  # absent because a complete list does not name it
# "machine": the machine-generated labels of Open Images; the others: how tables call a model.
_UNNAMED_MODELS = ("model", "machine", "ai", "auto", "automatic", "algorithm", "prediction", "predicted")
_FEWEST_POSITIVES = 5  # known beside answers to chosen questions; with fewer, these answers are used as well
_MAX_SOURCES = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, eq=False)
class Labels:
    """Rows of (image, class, value, source, score, weight), in order; rows may contradict each other.

    For each (image, class) the last row holds, and value 0 retracts the label. A label made by a person holds against
    rows made by a model, in any order, until a person retracts it. Value 2 means that the annotator was uncertain: the
    entry is unknown, and a later row of a model may decide it. `score` is NaN where the file has none. `weight` says
    how the label was asked for: NaN where nobody was asked, 0 for the answer to a chosen question; for a question drawn
    at random the number of entries that it stands for, 1 / the probability that it was drawn.
    """

    images: Names
    classes: Names
    image: NDArray[np.int32]
    column: NDArray[np.int32]
    value: NDArray[np.int8]
    source: NDArray[np.int16]  # indices into `sources`
    score: NDArray[np.float32]
    weight: NDArray[np.float32]
    sources: tuple[str, ...] = ("",)

    @classmethod
    def build(
        cls,
        images: Names,
        classes: Names,
        image: NDArray[Any],
        column: NDArray[Any],
        value: NDArray[Any],
        source: NDArray[Any] | str = "",
        score: NDArray[Any] | None = None,
        sources: Sequence[str] | None = None,
        weight: NDArray[Any] | None = None,
    ) -> Labels:
        """Build rows; `source` may be one string for all rows, a missing score or weight becomes NaN."""
        if isinstance(source, str):
            sources, source = (source,), np.broadcast_to(np.int16(0), len(image))
        sources = tuple(sources if sources is not None else ("",))
        _check_sources(sources)
        nothing = np.broadcast_to(np.float32(np.nan), len(image))  # takes no memory
        return cls(
            images,
            classes,
            image.astype(np.int32, copy=False),
            column.astype(np.int32, copy=False),
            value.astype(np.int8, copy=False),
            source.astype(np.int16, copy=False),
            nothing if score is None else score.astype(np.float32, copy=False),
            nothing if weight is None else weight.astype(np.float32, copy=False),
            sources,
        )

    @classmethod
    def from_table(
        cls,
        table: Table,
        source: NDArray[Any] | str = "",
        score: NDArray[Any] | None = None,
        sources: Sequence[str] | None = None,
        weight: NDArray[Any] | None = None,
    ) -> Labels:
        """One row per known or uncertain entry, known ones first, with the defaults of `build`."""
        image = np.repeat(np.arange(len(table), dtype=np.int32), np.diff(table.start))
        column, value = table.column, table.value
        if table.uncertain is not None:
            at, where = table.uncertain.nonzero()
            image, column = np.concatenate([image, at]), np.concatenate([column, where])
            value = np.append(value, np.full(len(at), UNCERTAIN, np.int8))
        labels = cls.build(table.images, table.classes, image, column, value, source, score, sources, weight)
        vars(labels)["training"] = table
        return labels

    @classmethod
    def of(cls, labels: Labels | Table) -> Labels:
        """Labels as they are, or those of a table, which has no sources: people made all of them."""
        return labels if isinstance(labels, Labels) else cls.from_table(labels)

    def __len__(self) -> int:
        return len(self.value)

    @cached_property
    def training(self) -> Table:
        """All labels that hold; the others have the same images and classes.

        >>> image, column, value = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([1, -1, 1])
        >>> source, sources = np.array([0, 1, 1]), ("person", "model:bce:runs/1")
        >>> labels = Labels.build(Names("ab"), Names("xy"), image, column, value, source, None, sources)
        >>> labels.training.dense().tolist(), labels.people.dense().tolist()
        ([[1, -1], [0, 1]], [[1, 0], [0, 0]])
        """
        rows = self._last
        return Table.from_entries(self.images, self.classes, self.image[rows], self.column[rows], self.value[rows])

    @cached_property
    def people(self) -> Table:
        """The labels that hold and that no model made."""
        by_model = self.is_model_made()[self.holding()]  # in the order of the entries of the table
        return self.training.keep(~by_model) if by_model.any() else self.training

    @cached_property
    def _weight(self) -> NDArray[np.float32]:
        """The weight of each entry of `people`."""
        rows = self.holding()
        return self.weight[rows[~self.is_model_made()[rows]]]

    @property
    def evaluation(self) -> Table:
        """The labels to evaluate and calibrate on: those of people, without answers to chosen questions.

        Such answers are not a random sample: they are used only where hardly anything else is known. Random questions
        are drawn more often among likely entries, so that their answers are not mixed with other labels: they evaluate
        where they hold more positives than those, see `is_asked`.
        """
        return self._evaluation_and_control[0]

    @property
    def control(self) -> csr_array | None:
        """Answers to random questions, or None: a sparse (N, C) array of inclusion weights, negative for no."""
        return self._evaluation_and_control[1]

    @cached_property
    def is_asked(self) -> bool:
        """Whether `evaluation` has answers to questions, of which shares such as precision cannot be counted."""
        return self.evaluation.known > self._given.known

    @cached_property
    def _given(self) -> Table:
        """The labels of people that answer no question."""
        return self.people.keep(np.isnan(self._weight))

    @cached_property
    def choosing(self) -> Table:
        """The labels by which training chooses strength and similar images: those that it is evaluated on.

        Where people know more than twice as many positives, all of people's labels: a few random answers choose worse
        than many chosen ones, and a choice is not a result.
        """
        has_most = 2 * self.evaluation.stats.positives.sum() >= self.people.stats.positives.sum()
        return self.evaluation if has_most else self.people

    @property
    def unchosen(self) -> Table:
        """The labels of people without answers to chosen questions."""
        return self.people.keep(self._weight != 0)

    @cached_property
    def _evaluation_and_control(self) -> tuple[Table, csr_array | None]:
        people = self.people
        if np.isnan(self._weight).all():
            return people, None
        random = people.values.astype(np.float32)
        random.data *= np.nan_to_num(self._weight)
        random.eliminate_zeros()
        control, asked = random if random.nnz else None, int((random.data > 0).sum())
        positives, negatives = self._given.stats.positives.sum(), self._given.stats.negatives.sum()
        if positives >= _FEWEST_POSITIVES and (positives >= asked or 10 * negatives < positives):
            return self._given, control
        return (self.unchosen if asked >= _FEWEST_POSITIVES else people), control

    def holding(self, *, uncertain: bool = False) -> NDArray[np.int64]:
        """The indices of the rows that hold, ordered by image and class; a pair whose last row retracts has none.

        Rows that say uncertain are included only on request: their entries are unknown.

        >>> image, column, value = np.array([1, 0, 1, 0]), np.array([0, 0, 0, 1]), np.array([1, 1, -1, 0])
        >>> Labels.build(Names("ab"), Names("xy"), image, column, value).holding().tolist()
        [1, 2]
        """
        last = np.arange(len(self))[self._last]
        value = self.value[last]
        holding: NDArray[np.int64] = last[(value != 0) & (uncertain | (value != UNCERTAIN))]
        return holding

    def is_model_made(self) -> NDArray[np.bool_]:
        """Whether a model made each row, by its source (R,)."""
        return np.array([is_model_source(source) for source in self.sources], bool)[self.source]

    def is_answer(self) -> NDArray[np.bool_]:
        """Whether each row answers a question that somebody was asked (R,)."""
        return ~np.isnan(self.weight)

    @cached_property
    def _last(self) -> NDArray[np.int64] | slice:
        """The indices of the last row of each pair, ordered by image and class, with those that retract.

        Rows of models on entries that a person has labelled do not count.
        """
        by_model = self.is_model_made()
        if not by_model.any():
            return last_of_each(self.image, self.column)
        by_person = np.flatnonzero(~by_model)
        people = by_person[last_of_each(self.image[by_person], self.column[by_person])]
        people = people[np.abs(self.value[people]) == 1]
        key = self.image.astype(np.int64) * len(self.classes) + self.column
        rows = np.flatnonzero(~by_model | ~np.isin(key, key[people]))
        return rows[last_of_each(self.image[rows], self.column[rows])]

    def drop_overridden(self) -> Labels:
        """Only the rows that hold, ordered by image and class; all images, classes and sources stay."""
        holding = self.holding(uncertain=True)
        return self if np.array_equal(holding, np.arange(len(self))) else self.select(holding)

    def select(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Labels:
        """Some of the rows, by index or by mask; all images, classes and sources stay."""
        columns = ("image", "column", "value", "source", "score", "weight")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    def of_images(self, which: NDArray[np.int64]) -> Labels:
        """The rows of some images, by index; the other images are left out."""
        number = np.full(len(self.images), -1, np.int32)
        number[which] = np.arange(len(which), dtype=np.int32)
        rows = self.select(number[self.image] >= 0)
        return replace(rows, images=self.images.take(which), image=number[rows.image])

    def count_conflicts(self) -> int:
        """How many (image, class) pairs have both a present and an absent row."""
        has_label = np.abs(self.value) == 1
        codes = self.image[has_label].astype(np.int64) * (2 * len(self.classes))
        codes += 2 * self.column[has_label] + (self.value[has_label] > 0)
        codes.sort()
        # The codes are 2·pair + (1 if present): sorted neighbours that differ only in the last bit are a conflict.
        return int(np.count_nonzero((codes[1:] ^ codes[:-1]) == 1))

    def drop_unused_names(self) -> Labels:
        """The same rows, without the images and classes that no row names; the others in order of first appearance."""
        (images, image), (classes, column) = map(_by_first_appearance, (self.image, self.column))
        return replace(
            self, images=self.images.take(images), classes=self.classes.take(classes), image=image, column=column
        )

    def with_labels(self, table: Table) -> Labels:
        """The labels of a table of the same images and classes, with the sources and scores of these rows.

        A changed label keeps its source and loses its score; a new one has neither. Uncertain entries stay uncertain.
        """
        holding = self.holding(uncertain=True)
        if not len(holding):
            return Labels.from_table(table)
        uncertain = self.select(holding[self.value[holding] == UNCERTAIN])
        image, column, value = table.entries()
        before = self.image[holding].astype(np.int64) * len(self.classes) + self.column[holding]
        after = image.astype(np.int64) * len(self.classes) + column
        place = np.minimum(np.searchsorted(before, after), len(before) - 1)
        row, is_old = holding[place], before[place] == after
        source = np.where(is_old, self.source[row], len(self.sources))
        score = np.where(is_old & (self.value[row] == value), self.score[row], np.nan)
        weight = np.where(is_old, self.weight[row], np.nan)
        sources = (*self.sources, "")
        changed = Labels.build(self.images, self.classes, image, column, value, source, score, sources, weight)
        return uncertain.append(changed)

    def with_images(self, names: Names) -> Labels:
        """These rows, with further images of which nothing is known."""
        return replace(self, images=self.images.union(names))

    def append(self, other: Labels) -> Labels:
        """These rows, then those of `other`, so that the rows of `other` win."""
        images, classes = self.images.union(other.images), self.classes.union(other.classes)
        sources = tuple(dict.fromkeys((*self.sources, *other.sources)))
        _check_sources(sources)
        number = {name: index for index, name in enumerate(sources)}
        own_source, other_source = (
            np.array([number[name] for name in rows.sources], np.int16) for rows in (self, other)
        )
        return Labels(
            images,
            classes,
            np.concatenate([self.image, images.index(other.images.array).astype(np.int32)[other.image]]),
            np.concatenate([self.column, classes.index(other.classes.array).astype(np.int32)[other.column]]),
            np.concatenate([self.value, other.value]),
            np.concatenate([own_source[self.source], other_source[other.source]]),
            np.concatenate([self.score, other.score]),
            np.concatenate([self.weight, other.weight]),
            sources,
        )


def _by_first_appearance(index: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The distinct numbers in order of first appearance, and the place of each number among them."""
    distinct, first, inverse = np.unique(index, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return distinct[order], np.argsort(order).astype(np.int32)[inverse]


def is_model_source(source: str) -> bool:
    """Whether a source is a model: "model:METHOD:RUN", or "model", "machine", "ai" … in any spelling."""
    name = source.strip().lower()
    return name.startswith(MODEL_PREFIX) or name in _UNNAMED_MODELS


def model_source(name: str) -> str:
    """The source for labels made by the model `name`, as another tool calls it: "yolo-v8" is "model:yolo-v8"."""
    if not name:
        return "model"
    return name if is_model_source(name) else MODEL_PREFIX + name


def too_many_sources(count: int) -> str:
    """The error message for `count` different sources; "" where an int16 can number them."""
    if count <= _MAX_SOURCES:
        return ""
    return f"{count} different sources are more than the {_MAX_SOURCES:,} there is room for"


def _check_sources(sources: tuple[str, ...]) -> None:
    if message := too_many_sources(len(sources)):
        raise UserError(message, "name fewer sources, or leave them out")
