"""Rows by name, one after the other, for readers of records such as JSON objects."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from halflabel.labels.labels import Labels
from halflabel.labels.names import Names


class RowCollector:
    """Collects rows; images, classes and sources are numbered in the order in which they first appear."""

    def __init__(self, images: Iterable[str] = (), classes: Iterable[str] = ()) -> None:
        self.images = {name: number for number, name in enumerate(images)}
        self.classes = {name: number for number, name in enumerate(classes)}
        self.sources: dict[str, int] = {}
        self._rows: list[tuple[int, int, int, int, float]] = []

    def add_image(self, name: str) -> int:
        """The number of an image; one that is new has no labels yet."""
        return self.images.setdefault(name, len(self.images))

    def add_class(self, name: str) -> int:
        """The number of a class; one that is new has no labels yet."""
        return self.classes.setdefault(name, len(self.classes))

    def add(self, image: str, label: str, value: int, source: str = "", score: float = math.nan) -> None:
        """Add a row."""
        number = self.sources.setdefault(source, len(self.sources))
        self._rows.append((self.add_image(image), self.add_class(label), value, number, score))

    def build(self) -> Labels:
        """All rows, in order."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * 5
        image, column, value, source, score = map(np.array, columns)
        names = Names(self.images), Names(self.classes)
        return Labels.build(*names, image, column, value, source, score, list(self.sources) or [""])
