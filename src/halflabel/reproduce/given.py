"""Training labels that somebody has published, in place of those that a protocol would draw."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from halflabel.compare.grid import Hiding
from halflabel.errors import LabelError
from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable

__all__ = ["Given", "read_given"]


@dataclass(frozen=True)
class Given(Hiding):
    """The labels that a file leaves known, whatever the seed; else it is the protocol that it stands for."""

    labels: LabelTable | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return f"{super().name} as given"

    def apply(self, table: LabelTable, seed: int) -> LabelTable:
        assert self.labels is not None
        known = self.labels.subset(self.labels.images.index(table.images.array))
        if self.protocol != "1-positive+negatives":
            return known
        parts = [known.entries(), table.keep(table.value < 0).entries()]
        image, column, value = (np.concatenate(each) for each in zip(*parts, strict=True))
        return LabelTable.from_entries(table.images, table.classes, image, column, value)


def read_given(path: Path, full: LabelTable) -> LabelTable:
    """The labels of a file, by the images and classes of `full`, which says what is true of them.

    A label file of any format, or a list: CSV with two columns, the image and the one class known to be present in it.
    Classes go by name or by number, from 0; images by name, or without folder and ending.
    """
    if not path.is_file() and not path.is_dir():
        raise LabelError("no such file or folder", "check the path", path)
    rows = _list(path)
    if rows is not None:
        names, classes = Names(dict.fromkeys(name for name, _ in rows)), Names(dict.fromkeys(kind for _, kind in rows))
        image, column = names.index(name for name, _ in rows), classes.index(kind for _, kind in rows)
        table = LabelTable.from_entries(names, classes, image, column, np.ones(len(rows), np.int8))
    else:
        table = formats.read(path).table()
    image, column, value = table.entries()
    where, which = _places(table.images, full.images), _classes(table.classes, full.classes, path)
    here = where[image] >= 0
    image, column, value = where[image[here]], which[column[here]], value[here]
    if not len(image):
        raise LabelError("not one of its images is a training image of the data set", "check the file", path)
    _check(full, image, column, value, path)
    return LabelTable.from_entries(full.images, full.classes, image, column, value)


def _list(path: Path) -> list[tuple[str, str]] | None:
    """The lines of a list, without its head; None if it is none."""
    if path.suffix != ".csv":
        return None
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = [line for line in csv.reader(file) if line]
    if not lines or any(len(line) != 2 for line in lines):
        return None
    return [(name, kind.strip()) for name, kind in lines[1:]]


def _places(given: Names, own: Names) -> NDArray[np.int64]:
    """The number of each given image; -1 for those that are not there."""
    found = own.index(given.array)
    if (found < 0).any():
        by_stem = Names(dict.fromkeys(_stems(own)))
        if len(by_stem) == len(own):
            found = np.where(found < 0, by_stem.index(_stems(given)), found)
    return found


def _stems(names: Iterable[str]) -> list[str]:
    return [PurePosixPath(name).stem for name in names]


def _classes(given: Names, own: Names, path: Path) -> NDArray[np.int64]:
    found = own.index(given.array)
    for number, name in enumerate(given):
        if found[number] < 0 and name.isdecimal() and int(name) < len(own):
            found[number] = int(name)
        if found[number] < 0:
            listed = ", ".join(list(own)[:4])
            raise LabelError(f"the data set has no class {name!r}", f"use its names ({listed}, …) or numbers", path)
    return found


def _check(
    full: LabelTable, image: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.int8], path: Path
) -> None:
    """Refuse labels that are not those of the data set: their classes are in another order, or they are of others."""
    rows, columns, true = full.entries()
    keys, asked = rows * len(full.classes) + columns, image * len(full.classes) + column
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    wrong = np.flatnonzero((keys[place] != asked) | (true[place] != value))
    if len(wrong):
        name, kind = list(full.images)[image[wrong[0]]], list(full.classes)[column[wrong[0]]]
        raise LabelError(
            f"{len(wrong)} of {len(image)} labels are not what the data set says, such as {kind!r} of {name!r}",
            "numbers of classes count from 0, in the order of the data set",
            path,
        )
