"""Rows: label statements in the order they were made, with who made them and how sure they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable

__all__ = ["Rows", "too_many_sources"]

_MOST_SOURCES = int(np.iinfo(np.int16).max)


@dataclass(frozen=True, eq=False)
class Rows:
    """Statements `image, class, value, source, score`; contradicting ones are kept, `resolve` decides.

    The rule: for each (image, class) the last row wins, and value 0 retracts what was said before. So a correction is a
    row more, and undoing it another. `score` is NaN where none was given. Memory: 15 bytes per row.
    """

    images: Names
    classes: Names
    image: NDArray[np.int32]
    column: NDArray[np.int32]
    value: NDArray[np.int8]
    source: NDArray[np.int16]  # numbers into `sources`
    score: NDArray[np.float32]
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
    ) -> Rows:
        """Fill in what is left out: one `source` for all rows as a string, no score as NaN.

        More sources than their numbers can tell apart are refused.
        """
        if isinstance(source, str):
            sources, source = (source,), np.zeros(len(image), np.int16)
        sources = tuple(sources if sources is not None else ("",))
        _check_sources(sources)
        return cls(
            images,
            classes,
            image.astype(np.int32, copy=False),
            column.astype(np.int32, copy=False),
            value.astype(np.int8, copy=False),
            source.astype(np.int16, copy=False),
            np.full(len(image), np.nan, np.float32) if score is None else score.astype(np.float32, copy=False),
            sources,
        )

    @classmethod
    def from_table(cls, table: LabelTable, source: str = "") -> Rows:
        """One row per known entry, all from one source."""
        image, column, value = table.entries()
        return cls.build(table.images, table.classes, image, column, value, source)

    def __len__(self) -> int:
        return len(self.value)

    def resolve(self) -> LabelTable:
        """The labels that hold after all rows: the last row wins, value 0 retracts."""
        return LabelTable.from_entries(self.images, self.classes, self.image, self.column, self.value)

    def conflicts(self) -> int:
        """How many (image, class) pairs have been called both present and absent."""
        said = self.value != 0
        codes = self.image[said].astype(np.int64) * (2 * len(self.classes))
        codes += 2 * self.column[said] + (self.value[said] > 0)
        codes.sort()
        # Of the sorted numbers 2·pair + (1 if present), neighbours that differ in the last bit only are a pair called
        # both. Looked at in slices, so that no second array of this size is needed.
        slices = (codes[start : start + (1 << 20) + 1] for start in range(0, len(codes), 1 << 20))
        return sum(int(np.count_nonzero((part[1:] ^ part[:-1]) == 1)) for part in slices)

    def named(self) -> Rows:
        """The same rows, with the images and classes alone that they speak of."""
        images, image = np.unique(self.image, return_inverse=True)
        classes, column = np.unique(self.column, return_inverse=True)
        return replace(
            self,
            images=self.images.take(images),
            classes=self.classes.take(classes),
            image=image.astype(np.int32),
            column=column.astype(np.int32),
        )

    def append(self, other: Rows) -> Rows:
        """These rows, then those of `other`: on disk, in memory, newest last."""
        images, classes = self.images.union(other.images), self.classes.union(other.classes)
        sources = tuple(dict.fromkeys((*self.sources, *other.sources)))
        _check_sources(sources)
        number = {name: place for place, name in enumerate(sources)}
        mine, theirs = (np.array([number[name] for name in rows.sources], np.int16) for rows in (self, other))
        return Rows(
            images,
            classes,
            np.concatenate([self.image, images.index(other.images.array).astype(np.int32)[other.image]]),
            np.concatenate([self.column, classes.index(other.classes.array).astype(np.int32)[other.column]]),
            np.concatenate([self.value, other.value]),
            np.concatenate([mine[self.source], theirs[other.source]]),
            np.concatenate([self.score, other.score]),
            sources,
        )


def too_many_sources(count: int) -> str:
    """What is wrong with so many sources; blank where there is room for them.

    >>> too_many_sources(40_000), too_many_sources(32_767)
    ('40000 different sources are more than the 32,767 there is room for', '')
    """
    return (
        f"{count} different sources are more than the {_MOST_SOURCES:,} there is room for"
        if count > _MOST_SOURCES
        else ""
    )


def _check_sources(sources: tuple[str, ...]) -> None:
    if message := too_many_sources(len(sources)):
        raise UserError(message, "name fewer sources, or leave them out")
