"""Dataset: the splits of a public data set, their labels and where their images are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Dataset", "Layout", "Pixels", "Split", "check_choice", "single_label"]


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images that lie in files as plain bytes: `read(numbers)` gives (n, 3, H, W) uint8 of those, in that order."""

    names: Names
    read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]

    def of(self, names: Names) -> Tensor:
        """The images of these names, (n, 3, H, W) uint8, all in memory."""
        import torch

        at = self.names.index(names.array)
        if (at < 0).any():
            missing = names[int(np.argmax(at < 0))]
            raise UserError(f"the data set has no image {missing!r}", "take the names from its own labels")
        return torch.from_numpy(self.read(at))


@dataclass(frozen=True, eq=False)
class Split:
    """Labels, and the folder below which their images are found by name, or the file that holds their pixels."""

    labels: LabelTable
    images: Path | Pixels

    def __len__(self) -> int:
        return len(self.labels)

    def pictures(self) -> Path | Tensor:
        """What training takes beside the labels: the folder, or the images (N, 3, H, W) uint8 in the labels' order."""
        return self.images if isinstance(self.images, Path) else self.images.of(self.labels.images)

    def take(self, index: ArrayLike) -> Split:
        """Some images, by number and in the order given."""
        return replace(self, labels=self.labels.subset(index))

    def with_positives(self) -> Split:
        """The images of which some class is known to be present."""
        image, _, value = self.labels.entries()
        return self.take(np.unique(image[value > 0]))

    def sample(self, share: float, *, seed: int = 0) -> Split:
        """A share of the images that keeps the share of every class, of its known positives and known negatives."""
        from halflabel.labels.split import assign_parts

        if not 0 < share <= 1:
            raise UserError(f"the share {share:g} is not in (0, 1]", "give a part of the whole, such as 0.1 for 10 %")
        if share == 1:
            return self
        return self.take(np.flatnonzero(assign_parts(self.labels, (share, 1 - share), seed=seed) == 0))

    def on_disk(self) -> Split:
        """The images that are there: NUS-WIDE and Open Images lose some with every download."""
        from halflabel.data.decode import locate_images

        if isinstance(self.images, Pixels):
            return self
        found = locate_images(list(self.labels.images), self.images)
        return self.take([number for number, path in enumerate(found) if path is not None])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: "train" and "test", and any further splits, all of the same classes in the same order."""

    name: str
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()

    @classmethod
    def build(cls, name: str, splits: Mapping[str, Split], notes: tuple[str, ...] = ()) -> Dataset:
        """Refuses splits whose classes differ: scores could not be told apart."""
        first = next(iter(splits))
        expected = splits[first].labels.classes
        for split, found in splits.items():
            classes = found.labels.classes
            if classes != expected:
                message = f"the splits {first} and {split} of {name} do not have the same classes in the same order"
                if odd := [*set(expected) - set(classes), *set(classes) - set(expected)]:
                    message = f"only one of the splits {first} and {split} of {name} has the class {min(odd)!r}"
                raise UserError(message, "take all files from the same release of the data set")
        return cls(name, splits, notes)

    @property
    def train(self) -> LabelTable:
        return self.splits["train"].labels

    @property
    def test(self) -> LabelTable:
        return self.splits["test"].labels

    @property
    def classes(self) -> Names:
        return self.train.classes


class Layout(NamedTuple):
    """What the folder of a data set holds, a line per file or folder, and where to get that."""

    title: str
    tree: tuple[str, ...]
    source: str

    def fix(self) -> str:
        return f"get {self.title} from {self.source}; the folder should hold {', '.join(self.tree)}"

    def missing(self, path: Path) -> LabelError:
        return LabelError("no such file or folder", self.fix(), path)

    def need(self, *places: Path) -> Path:
        """The first of the places that exists; else the error names the first, where it is expected."""
        for place in places:
            if place.exists():
                return place
        raise self.missing(places[0])


def check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{option} {value!r} does not exist", f"use {' or '.join(allowed)}")


def single_label(images: Names, classes: Names, column: NDArray[np.int64]) -> LabelTable:
    """Labels of images that show one class each: present there, absent elsewhere; column −1 is wholly unknown."""
    known = np.flatnonzero(column >= 0)
    image = np.repeat(known, len(classes))
    each = np.tile(np.arange(len(classes)), len(known))
    value = np.where(each == np.repeat(column[known], len(classes)), 1, -1)
    return LabelTable.from_entries(images, classes, image, each, value)
