"""`reproduce --labels`: published training labels from a file instead of labels drawn by a protocol."""

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
from halflabel.papers.plan import RunGroup
from halflabel.papers.spec import Condition
from halflabel.papers.tables import TABLES

__all__ = ["GivenLabels", "GivenMask", "read_given_labels", "use_given_labels"]

_ONE_POSITIVE = {"single-positive", "1-positive+negatives"}  # protocols that share one list of positives


@dataclass(frozen=True)
class GivenMask(LabelMask):
    """A mask that keeps the labels of a file, for every seed; it stands in for the protocol whose name it has."""

    labels: LabelTable | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return f"{super().name} as given"

    def apply(self, table: LabelTable, seed: int) -> LabelTable:
        assert self.labels is not None
        known = self.labels.subset(self.labels.images.index(table.images.array))
        if self.protocol != "1-positive+negatives":
            return known
        entries = [known.entries(), table.keep(table.value < 0).entries()]
        image, column, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        return LabelTable.from_entries(table.images, table.classes, image, column, value)


class GivenLabels(NamedTuple):
    """The labels of a file, by the training images of the data set, and how many of its images the data set has."""

    labels: LabelTable
    file: str
    images: int  # in the file
    other_split: int  # of these, in other splits of the data set
    unknown: int  # of these, not in the data set

    def describe_coverage(self, train: LabelTable) -> str:
        """How many training images have a label in the file; refuses a file without any."""
        labels_per_image = np.diff(self.labels.subset(self.labels.images.index(train.images.array)).start)
        labelled = int((labels_per_image > 0).sum())
        if not labelled:
            raise LabelError(
                f"it has no label of any of the {len(train)} training images of this run",
                "give labels of more images, or leave --labels out",
                self.file,
            )
        images = (
            f"{self.images} images in the file, {self.other_split} in other splits, {self.unknown} not in the data set"
        )
        return f"{self.file}: {labels_per_image.sum()} labels of {labelled} of {len(train)} training images; {images}"


def use_given_labels(
    file: Path, groups: Sequence[RunGroup], conditions: Sequence[Condition], train: LabelTable, others: Sequence[Names]
) -> GivenLabels:
    """Replace the label masks of all runs by the labels of a file.

    `train`: the full training labels; `others`: image names of the other splits.
    """
    if not any(mask.protocol for group in groups for _, mask in group.jobs):
        raise UserError("training uses all labels here, so labels cannot be given", "leave --labels out")
    _check_one_mask(file, groups, conditions)
    given = read_given_labels(file, train, others)
    for group in groups:
        group.jobs = {
            (candidate, GivenMask(mask.protocol, mask.options, given.labels) if mask.protocol else mask): cells
            for (candidate, mask), cells in group.jobs.items()
        }
    return given


def _check_one_mask(file: Path, groups: Sequence[RunGroup], conditions: Sequence[Condition]) -> None:
    """Refuse several columns, trials or label masks: one file holds the labels of one run."""
    runs = {condition.name: len(condition.trials) * len(condition.masks) for condition in conditions}
    message = f"{file.name} holds the labels of one run, but several were requested"
    if single := [name for name, number in runs.items() if number == 1]:
        if len(conditions) > 1:
            raise UserError(message, f"choose one column by --conditions: {'; '.join(single)}")
    else:
        name, number = next(iter(runs.items()))
        masks = [mask for condition in conditions for mask in condition.masks]
        usable = dict.fromkeys(
            table.id
            for table in TABLES.values()
            for condition in table.conditions
            if len(condition.trials) == len(condition.masks) == 1 and condition.masks[0] in masks
        )
        raise UserError(
            f"{message}: a number of {name!r} is the mean of {number} runs with different labels",
            "leave --labels out" + (f", or use a table with a column per mask: {', '.join(usable)}" if usable else ""),
        )
    rows: dict[LabelMask, dict[str, None]] = {}
    for group in groups:
        for (_, mask), cells in group.jobs.items():
            if mask.protocol:
                rows.setdefault(mask, {}).update((row.name, None) for row, _ in cells)
    if len(rows) > 1 and not {mask.protocol for mask in rows} <= _ONE_POSITIVE:
        raise UserError(
            f"{message}: the rows learn from different labels",
            f"choose by --rows those of one kind: {'; or '.join(', '.join(names) for names in rows.values())}",
        )


def read_given_labels(path: Path, full: LabelTable, others: Sequence[Names] = ()) -> GivenLabels:
    """Read the labels of a file and check them against `full`, the true labels of the training images.

    A label file of any format, or a CSV list with two columns, the image and its known positive class, with or without
    a header. Classes are names or numbers from 0; images are names with or without folder and extension. A file may
    also name images of `others`, the other splits. A file that is mostly about images outside the data set is refused.
    """
    if not path.is_file() and not path.is_dir():
        raise LabelError("no such file or folder", "check the path", path)
    rows = _read_list(path)
    if rows is not None:
        rows = rows[1:] if _is_header(*rows[0], full, others) else rows
        names, classes = (
            Names(dict.fromkeys(name for name, _ in rows)),
            Names(dict.fromkeys(label for _, label in rows)),
        )
        image, column = names.index(name for name, _ in rows), classes.index(label for _, label in rows)
        table = LabelTable.from_entries(names, classes, image, column, np.ones(len(rows), np.int8))
    else:
        table = _read_label_file(path).table()
    numbers = _image_numbers(table.images, full.images)
    is_other = (numbers < 0) & _is_in_any(table.images, others)
    is_unknown = (numbers < 0) & ~is_other
    _check_images(table.images, full.images, numbers, is_unknown, path)
    columns = _check_classes(table.classes, full.classes, path)
    image, column, value = table.entries()
    is_training = numbers[image] >= 0
    image, column, value = numbers[image[is_training]], columns[column[is_training]], value[is_training]
    _check_labels(full, image, column, value, path)
    labels = LabelTable.from_entries(full.images, full.classes, image, column, value)
    return GivenLabels(labels, path.name, len(table.images), int(is_other.sum()), int(is_unknown.sum()))


def _read_label_file(path: Path) -> LabelImport:
    """Read a label file of any format; where its reader needs an option, point to `halflabel import`, which has it."""
    try:
        return formats.read(path)
    except UserError as error:
        if "--" not in error.fix:
            raise
        name = shlex.quote(str(path))
        fix = f"run  halflabel import {name} OUT.csv  with the option that is needed ({error.fix}), and give OUT.csv"
        raise UserError(error.message, fix) from None


def _read_list(path: Path) -> list[tuple[str, str]] | None:
    """The lines of a two-column list, including its header; None if the file is not such a list."""
    if path.suffix != ".csv":
        return None
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            lines = [line for line in csv.reader(file) if line]
        except csv.Error as error:
            raise LabelError(
                f"this is not a CSV file ({error})", "write one image and one class per line", path
            ) from None
    if not lines or any(len(line) != 2 for line in lines):
        return None
    return [(name, label.strip()) for name, label in lines]


def _is_header(name: str, label: str, full: LabelTable, others: Sequence[Names]) -> bool:
    """Whether the first line of a list names neither an image of the data set nor a class."""
    image = Names([name])
    if (_image_numbers(image, full.images) >= 0).any() or _is_in_any(image, others).any():
        return False
    return not name or bool(_class_numbers(Names([label]), full.classes)[0] < 0)


def _is_in_any(names: Names, splits: Sequence[Names]) -> NDArray[np.bool_]:
    is_in = np.zeros(len(names), bool)
    for split in splits:
        is_in |= _image_numbers(names, split) >= 0
    return is_in


def _check_images(
    names: Names, training: Names, numbers: NDArray[np.int64], is_unknown: NDArray[np.bool_], path: Path
) -> None:
    """Refuse a file that is mostly about images outside the data set, or has no training image."""
    in_dataset = len(names) - int(is_unknown.sum())
    example = f"its images have names like {training[0]!r}, with or without folder and extension"
    if 2 * in_dataset < len(names) or not in_dataset:
        unknown = f"; {names[int(is_unknown.argmax())]!r} is not" if len(names) else ""
        few = f"only {in_dataset}" if in_dataset else "not one"
        raise LabelError(
            f"{few} of its {len(names)} images {'are' if in_dataset > 1 else 'is'} in the data set{unknown}",
            f"give a file about this data set ({example}), or the data set of the file",
            path,
        )
    if not (numbers >= 0).any():
        raise LabelError(
            f"not one of its {len(names)} images is a training image of the data set",
            f"give labels of training images ({example})",
            path,
        )


def _image_numbers(names: Names, images: Names) -> NDArray[np.int64]:
    """The number of each image, by name or by name without folder and extension; -1 if `images` lacks it."""
    numbers = images.index(names.array)
    if (numbers < 0).any():
        by_stem = Names(dict.fromkeys(_stems(images)))
        if len(by_stem) == len(images):
            numbers = np.where(numbers < 0, by_stem.index(_stems(names)), numbers)
    return numbers


def _stems(names: Iterable[str]) -> list[str]:
    return [PurePosixPath(name).stem for name in names]


def _class_numbers(names: Names, classes: Names) -> NDArray[np.int64]:
    """The number of each class, given by name or as a number; -1 if `classes` lacks it."""
    numbers = classes.index(names.array)
    for place in np.flatnonzero(numbers < 0).tolist():
        name = names[place]
        if name.isdecimal() and int(name) < len(classes):
            numbers[place] = int(name)
    return numbers


def _check_classes(names: Names, classes: Names, path: Path) -> NDArray[np.int64]:
    numbers = _class_numbers(names, classes)
    if (numbers < 0).any():
        examples, name = ", ".join(list(classes)[:4]), names[int((numbers < 0).argmax())]
        raise LabelError(f"the data set has no class {name!r}", f"use its names ({examples}, …) or numbers", path)
    return numbers


def _check_labels(
    full: LabelTable, image: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.int8], path: Path
) -> None:
    """Refuse labels that contradict the data set: they belong to other images, or the classes are in another order."""
    full_image, full_column, full_value = full.entries()
    full_keys, keys = full_image * len(full.classes) + full_column, image * len(full.classes) + column
    place = np.minimum(np.searchsorted(full_keys, keys), len(full_keys) - 1)
    wrong = np.flatnonzero((full_keys[place] != keys) | (full_value[place] != value))
    if len(wrong):
        name, label = list(full.images)[image[wrong[0]]], list(full.classes)[column[wrong[0]]]
        raise LabelError(
            f"{len(wrong)} of {len(image)} labels contradict the data set, such as {label!r} of {name!r}",
            "class numbers start at 0, in the order of the data set",
            path,
        )
