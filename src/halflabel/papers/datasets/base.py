"""The splits of a public data set: labels, and where the images are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halflabel.errors import LabelError, UserError
from halflabel.images.decode import locate_images
from halflabel.labels.names import Names
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class RawImages:
    """Images stored as raw bytes; `read(numbers)` returns them as (n, 3, H, W) uint8, in that order."""

    names: Names
    read: Callable[[NDArray[np.int64]], NDArray[np.uint8]]

    def load(self, names: Names) -> Tensor:
        """Load the images of these names into memory: (n, 3, H, W) uint8."""
        import torch

        numbers = self.names.index(names.array)
        if (numbers < 0).any():
            missing = names[int(np.argmax(numbers < 0))]
            raise UserError(f"the data set has no image {missing!r}", "use the names of its labels")
        return torch.from_numpy(self.read(numbers))


def read_records(parts: Sequence[NDArray[np.uint8]], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Read records (n, bytes) by number from memory-mapped files, so that only requested ones are in memory."""
    start = np.cumsum([0, *map(len, parts)])
    part_of = np.searchsorted(start, numbers, side="right") - 1
    records = np.empty((len(numbers), parts[0].shape[1]), np.uint8)
    for number, part in enumerate(parts):
        inside = part_of == number
        records[inside] = part[numbers[inside] - start[number]]
    return records


@dataclass(frozen=True, eq=False)
class Split:
    """Labels, and the folder with their image files, or the raw images."""

    labels: Table
    images: Path | RawImages

    def __len__(self) -> int:
        return len(self.labels)

    def load_images(self) -> Path | Tensor:
        """Return the images as training takes them: the folder, or (N, 3, H, W) uint8 in the order of the labels."""
        return self.images if isinstance(self.images, Path) else self.images.load(self.labels.images)

    def take(self, index: ArrayLike) -> Split:
        """Return the images of these numbers, in this order."""
        return replace(self, labels=self.labels.subset(index))

    def with_positives(self) -> Split:
        """Return the images with at least one known positive."""
        image, _, value = self.labels.entries()
        return self.take(np.unique(image[value > 0]))

    def sample(self, share: float, *, seed: int = 0) -> Split:
        """Draw a share of the images, stratified by the known positives and negatives of every class."""
        if not 0 < share <= 1:
            raise UserError(f"the share {share:g} is not in (0, 1]", "use a share such as 0.1 for 10 %")
        if share == 1:
            return self
        return self.take(np.flatnonzero(assign_parts(self.labels, (share, 1 - share), seed=seed) == 0))

    def on_disk(self) -> Split:
        """Return the images whose files exist: downloads of NUS-WIDE and Open Images lack some."""
        if isinstance(self.images, RawImages):
            return self
        paths = locate_images(list(self.labels.images), self.images)
        return self.take([number for number, path in enumerate(paths) if path is not None])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: "train", "test" and any further splits, all with the same classes in the same order."""

    name: str
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()

    @classmethod
    def build(cls, name: str, splits: Mapping[str, Split], notes: tuple[str, ...] = ()) -> Dataset:
        """Check that all splits have the same classes, and build the data set."""
        first = next(iter(splits))
        expected = splits[first].labels.classes
        for split_name, split in splits.items():
            classes = split.labels.classes
            if classes != expected:
                different = sorted({*expected} ^ {*classes})
                detail = f": only one has the class {different[0]!r}" if different else " in the same order"
                message = f"the splits {first} and {split_name} of {name} do not have the same classes{detail}"
                raise UserError(message, "take all files from the same release of the data set")
        return cls(name, splits, notes)

    @property
    def train(self) -> Table:
        return self.splits["train"].labels

    @property
    def test(self) -> Table:
        return self.splits["test"].labels

    @property
    def classes(self) -> Names:
        return self.train.classes


class Layout(NamedTuple):
    """The files that the folder of a data set should contain, and where to get them."""

    title: str
    tree: tuple[str, ...]
    source: str

    def fix(self) -> str:
        return f"get {self.title} from {self.source}; the folder should contain {', '.join(self.tree)}"

    def missing(self, path: Path) -> LabelError:
        return LabelError("no such file or folder", self.fix(), path)

    def require(self, *paths: Path) -> Path:
        """Return the first path that exists; if none does, raise an error about the first."""
        for path in paths:
            if path.exists():
                return path
        raise self.missing(paths[0])


Reader = tuple[Callable[..., Dataset], Callable[..., Layout]]  # the functions that read and that describe a folder


def single_label(images: Names, classes: Names, column: NDArray[np.int64]) -> Table:
    """Return labels of images that show one class each: all other classes are absent; column −1 means unlabelled."""
    known = np.flatnonzero(column >= 0)
    image = np.repeat(known, len(classes))
    classes_repeated = np.tile(np.arange(len(classes)), len(known))
    value = np.where(classes_repeated == np.repeat(column[known], len(classes)), 1, -1)
    return Table.from_entries(images, classes, image, classes_repeated, value)
