"""Rows: label statements in the order they were made, with who made them and how sure they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable

__all__ = ["Rows"]


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
        """Fill in what is left out: one `source` for all rows as a string, no score as NaN."""
        if isinstance(source, str):
            sources, source = (source,), np.zeros(len(image), np.int16)
        return cls(
            images,
            classes,
            image.astype(np.int32, copy=False),
            column.astype(np.int32, copy=False),
            value.astype(np.int8, copy=False),
            source.astype(np.int16, copy=False),
            np.full(len(image), np.nan, np.float32) if score is None else score.astype(np.float32, copy=False),
            tuple(sources if sources is not None else ("",)),
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
        codes = self.image[said] * np.int64(2 * len(self.classes))
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
        mine = np.array([sources.index(name) for name in self.sources], np.int16)
        theirs = np.array([sources.index(name) for name in other.sources], np.int16)
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
