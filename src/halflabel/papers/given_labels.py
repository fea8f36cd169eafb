"""Training labels that somebody has published, in place of those that a protocol would draw."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.experiments.grid import LabelMask
from halflabel.labels import formats
from halflabel.labels.audit import LabelImport
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.papers.plan import Group
from halflabel.papers.spec import Condition
from halflabel.papers.stage import Shelf
from halflabel.papers.tables import TABLES

__all__ = ["Given", "Published", "give", "read_given"]

_ONE_POSITIVE = {"single-positive", "1-positive+negatives"}  # what one list of positives can stand for


@dataclass(frozen=True)
class Given(LabelMask):
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


class Published(NamedTuple):
    """The labels of a file by the training images of the data set, and how many of its images these are."""

    labels: LabelTable
    file: str
    images: int  # that the file names
    elsewhere: int  # those of them in other splits of the data set
    strange: int  # those of them that are not in the data set

    def covers(self, train: LabelTable) -> str:
        """How much it says of the images that are trained on; refuses nothing at all."""
        number = np.diff(self.labels.subset(self.labels.images.index(train.images.array)).start)
        named = int((number > 0).sum())
        if not named:
            raise LabelError(
                f"it has no label of any of the {len(train)} training images of this run",
                "give labels of more images, or leave --labels out",
                self.file,
            )
        others = f", none of the other {len(train) - named}" if named < len(train) else ""
        rest = f"all {self.images} images of the file are in the data set"
        if self.strange:
            verb = "is" if self.strange == 1 else "are"
            rest = f"{self.strange} of the {self.images} images of the file {verb} not in the data set"
        rest += f", {self.elsewhere} are not for training" if self.elsewhere else ""
        return f"{self.file}: {number.sum()} labels of {named} of {len(train)} training images{others}; {rest}"


def give(file: Path, groups: Sequence[Group], conditions: Sequence[Condition], shelf: Shelf) -> Published:
    """Put the labels of a file in the place of those that the runs would draw."""
    hidings = {hiding for group in groups for _, hiding in group.wanted if hiding.protocol}
    if not hidings:
        raise UserError("training sees all labels here, none are to be given", "leave --labels out")
    _check_one(file, groups, conditions)
    opened = shelf.open(groups[0].condition, groups[0].trial)
    others = [split.labels.images for name, split in opened.splits.items() if name != "train"]
    found = read_given(file, opened.train, others)
    for group in groups:
        group.wanted = {
            (candidate, Given(hiding.protocol, hiding.options, found.labels) if hiding.protocol else hiding): rows
            for (candidate, hiding), rows in group.wanted.items()
        }
    return found


def _check_one(file: Path, groups: Sequence[Group], conditions: Sequence[Condition]) -> None:
    """Refuse what one file cannot be the labels of: several columns, trials, or ways of hiding labels."""
    means = {one.name: len(one.trials) * len(one.hidings) for one in conditions}
    message = f"{file.name} holds the labels of one run, and more were asked for"
    if single := [name for name, number in means.items() if number == 1]:
        if len(conditions) > 1:
            raise UserError(message, f"choose one column by --conditions: {'; '.join(single)}")
    else:
        name, number = next(iter(means.items()))
        hidden = [hiding for one in conditions for hiding in one.hidings]
        columns = ((table.id, one) for table in TABLES.values() for one in table.conditions)
        apart = dict.fromkeys(
            id for id, one in columns if len(one.trials) == len(one.hidings) == 1 and one.hidings[0] in hidden
        )
        raise UserError(
            f"{message}: a figure of {name!r} is the mean of {number} runs with different labels",
            "leave --labels out"
            + (f", or use a table with a column for each kind: {', '.join(apart)}" if apart else ""),
        )
    rows: dict[LabelMask, dict[str, None]] = {}
    for group in groups:
        for (_, hiding), whose in group.wanted.items():
            if hiding.protocol:
                rows.setdefault(hiding, {}).update((row.name, None) for row, _ in whose)
    if len(rows) > 1 and not {hiding.protocol for hiding in rows} <= _ONE_POSITIVE:
        raise UserError(
            f"{message}: the rows learn from different labels",
            f"choose by --rows those of one kind: {'; or '.join(', '.join(names) for names in rows.values())}",
        )


def read_given(path: Path, full: LabelTable, others: Sequence[Names] = ()) -> Published:
    """The labels of a file, by the images and classes of `full`, which says what is true of them.

    A label file of any format, or a list: CSV with two columns, the image and the one class known to be present in it,
    with or without a head. Classes go by name or by number, from 0; images by name, or without folder and ending.
    `others` are images of the data set that are not for training: a file may name them too. One that is mostly about
    images of neither kind is refused.
    """
    if not path.is_file() and not path.is_dir():
        raise LabelError("no such file or folder", "check the path", path)
    rows = _list(path)
    if rows is not None:
        rows = rows[1:] if _is_head(*rows[0], full, others) else rows
        names, classes = Names(dict.fromkeys(name for name, _ in rows)), Names(dict.fromkeys(kind for _, kind in rows))
        image, column = names.index(name for name, _ in rows), classes.index(kind for _, kind in rows)
        table = LabelTable.from_entries(names, classes, image, column, np.ones(len(rows), np.int8))
    else:
        table = _read(path).table()
    where = _places(table.images, full.images)
    elsewhere = (where < 0) & _among(table.images, others)
    strange = (where < 0) & ~elsewhere
    _check_images(table.images, full.images, where, strange, path)
    which = _classes(table.classes, full.classes, path)
    image, column, value = table.entries()
    here = where[image] >= 0
    image, column, value = where[image[here]], which[column[here]], value[here]
    _check(full, image, column, value, path)
    labels = LabelTable.from_entries(full.images, full.classes, image, column, value)
    return Published(labels, path.name, len(table.images), int(elsewhere.sum()), int(strange.sum()))


def _read(path: Path) -> LabelImport:
    """A label file of any format; what its reader wants stated, this command cannot be told, but `import` can."""
    try:
        return formats.read(path)
    except UserError as error:
        if "--" not in error.fix:
            raise
        name = shlex.quote(str(path))
        fix = f"read it by  halflabel import {name} OUT.csv  with what its fix says ({error.fix}), and give OUT.csv"
        raise UserError(error.message, fix) from None


def _list(path: Path) -> list[tuple[str, str]] | None:
    """The lines of a list, with its head if it has one; None if it is none."""
    if path.suffix != ".csv":
        return None
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            lines = [line for line in csv.reader(file) if line]
        except csv.Error as error:
            raise LabelError(f"this is no CSV ({error})", "write one image and one class per line", path) from None
    if not lines or any(len(line) != 2 for line in lines):
        return None
    return [(name, kind.strip()) for name, kind in lines]


def _is_head(name: str, kind: str, full: LabelTable, others: Sequence[Names]) -> bool:
    """Whether the first line of a list is no label: it names neither an image of the data set nor a class."""
    image = Names([name])
    if (_places(image, full.images) >= 0).any() or _among(image, others).any():
        return False
    return not name or bool(_class_numbers(Names([kind]), full.classes)[0] < 0)


def _among(given: Names, others: Sequence[Names]) -> NDArray[np.bool_]:
    found = np.zeros(len(given), bool)
    for own in others:
        found |= _places(given, own) >= 0
    return found


def _check_images(given: Names, own: Names, where: NDArray[np.int64], strange: NDArray[np.bool_], path: Path) -> None:
    """Refuse a file that is about other images."""
    known = len(given) - int(strange.sum())
    example = f"its images are called as {own[0]!r}, with or without folder and ending"
    if 2 * known < len(given) or not known:
        such = f"; {given[int(strange.argmax())]!r} is not" if len(given) else ""
        few = f"only {known}" if known else "not one"
        raise LabelError(
            f"{few} of its {len(given)} images {'are' if known > 1 else 'is'} in the data set{such}",
            f"give a file about this data set ({example}), or the data set of the file",
            path,
        )
    if not (where >= 0).any():
        raise LabelError(
            f"not one of its {len(given)} images is a training image of the data set",
            f"give labels of training images ({example})",
            path,
        )


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


def _class_numbers(given: Names, own: Names) -> NDArray[np.int64]:
    """The number of each given class, which goes by name or by number; -1 for those that are not there."""
    found = own.index(given.array)
    for place in np.flatnonzero(found < 0).tolist():
        name = given[place]
        if name.isdecimal() and int(name) < len(own):
            found[place] = int(name)
    return found


def _classes(given: Names, own: Names, path: Path) -> NDArray[np.int64]:
    found = _class_numbers(given, own)
    if (found < 0).any():
        listed, name = ", ".join(list(own)[:4]), given[int((found < 0).argmax())]
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
