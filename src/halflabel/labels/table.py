"""Table: present, absent or unknown for N images × C classes. The only module that knows the encoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halflabel.errors import UserError
from halflabel.labels.names import Names

if TYPE_CHECKING:
    from halflabel.labels.stats import Stats

UNCERTAIN = 2  # the value of an uncertain entry, in rows

_CHUNK = 1 << 22  # entries processed at a time


@dataclass(eq=False, repr=False, slots=True)
class Table:
    """The known labels of N images × C classes; entries that are not stored are unknown.

    Compressed sparse rows: the entries of image i are `column[start[i]:start[i+1]]` (class indices, ascending) with
    `value` +1 present or −1 absent. Memory: 8 bytes plus the name per image, the name per class, 3 bytes per known
    entry (5 above 32,767 classes). 9,000,000 images × 5,000 classes with 60,000,000 known entries take about 430 MB.

    Uncertain entries are unknown, and listed in `uncertain` beside that: a sparse (N, C) array with −1 at each of them,
    or 1 + its soft target for training; None if there are none. `labels.uncertain.decide_uncertain` sets the targets.

    >>> table = Table.from_dense([[1, 0], [-1, 1]], images=["a", "b"], classes=["cat", "dog"])
    >>> table.rows([1, 0]).tolist()
    [[-1, 1], [1, 0]]
    >>> table
    Table(2 images × 2 classes, 3 known)
    """

    images: Names
    classes: Names
    start: NDArray[np.int64]
    column: NDArray[Any]
    value: NDArray[np.int8]
    uncertain: Any = None

    @classmethod
    def from_entries(
        cls, images: Names, classes: Names, image: NDArray[Any], column: NDArray[Any], value: NDArray[Any]
    ) -> Table:
        """Build from entries in any order. The last entry of an (image, class) wins; 0 is unknown, 2 uncertain."""
        if not (len(image) == len(column) == len(value)):
            raise ValueError("image, column and value must have the same length")
        for name, numbers, size in (("image", image, len(images)), ("class", column, len(classes))):
            if len(numbers) and not (int(numbers.min()) >= 0 and int(numbers.max()) < size):
                raise ValueError(f"{name} indices must be in 0 … {size - 1}")
        if len(value) and not (int(value.min()) >= -1 and int(value.max()) <= UNCERTAIN):
            raise ValueError("values must be −1, 0, +1, or 2 for uncertain")
        order = last_of_each(image, column)
        if not isinstance(order, slice):
            image, column, value = image[order], column[order], value[order]
        uncertain = None
        if (is_uncertain := value == UNCERTAIN).any():
            from scipy.sparse import csr_array

            place = image[is_uncertain], column[is_uncertain]
            undecided = np.full(len(place[0]), -1, np.float32)
            uncertain = csr_array((undecided, place), shape=(len(images), len(classes)))
        known = (value != 0) & ~is_uncertain
        if not known.all():
            image, column, value = image[known], column[known], value[known]
        start = np.zeros(len(images) + 1, np.int64)
        np.cumsum(np.bincount(image, minlength=len(images)), out=start[1:])
        column = column.astype(np.int16 if len(classes) <= np.iinfo(np.int16).max else np.int32)
        return cls(images, classes, start, column, value.astype(np.int8), uncertain)

    @classmethod
    def from_dense(
        cls, labels: ArrayLike, images: Iterable[str] | None = None, classes: Iterable[str] | None = None
    ) -> Table:
        """Build from an (N, C) array of −1, 0 (unknown), +1; NaN also means unknown."""
        array = np.asarray(labels)
        if array.ndim != 2:
            raise UserError(f"labels have {array.ndim} dimensions", "use an array of images × classes")
        if array.dtype.kind == "f":
            array = np.nan_to_num(array, nan=0.0)
        if not np.isin(array, (-1, 0, 1)).all():
            bad = array[~np.isin(array, (-1, 0, 1))].flat[0]
            raise UserError(f"{bad!r} is not a label", "use +1 present, −1 absent, 0 or NaN unknown")
        rows = Names(images) if images is not None else Names.numbered(array.shape[0])
        columns = Names(classes) if classes is not None else Names.numbered(array.shape[1])
        if (len(rows), len(columns)) != array.shape:
            raise UserError(
                f"{len(rows)} image and {len(columns)} class names for labels of shape {array.shape}",
                "give one name per row and per column",
            )
        image, column = np.nonzero(array)
        return cls.from_entries(
            rows,
            columns,
            image,
            column,
            array[image, column].astype(np.int8),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(images, classes)."""
        return len(self.images), len(self.classes)

    @property
    def known(self) -> int:
        """The number of known entries."""
        return len(self.value)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Table({len(self.images)} images × {len(self.classes)} classes, {self.known} known)"

    def __eq__(self, other: object) -> bool:
        """Same images and classes in the same order, and the same known labels."""
        return (
            isinstance(other, Table)
            and self.images == other.images
            and self.classes == other.classes
            and np.array_equal(self.start, other.start)
            and np.array_equal(self.column, other.column)
            and np.array_equal(self.value, other.value)
            and (self.uncertain is None) == (other.uncertain is None)
            and (self.uncertain is None or (self.uncertain != other.uncertain).nnz == 0)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable content; compared by value, never a dict key

    def rows(self, index: ArrayLike) -> NDArray[np.int8]:
        """The labels of some images: (B,) image indices -> (B, C) int8 in {−1, 0, +1}."""
        index = _check_indices(index, len(self.images))
        out = np.zeros((len(index), len(self.classes)), np.int8)
        row, position = self._spans(index)
        out[row, self.column[position]] = self.value[position]
        return out

    def dense(self) -> NDArray[np.int8]:
        """All labels as (N, C) int8: one byte per entry, so only for small tables."""
        return self.rows(np.arange(len(self.images)))

    def soft_targets(self, index: ArrayLike) -> NDArray[np.float32] | None:
        """The soft targets of some images, (B, C) with NaN elsewhere; None if they have none."""
        if self.uncertain is None:
            return None
        entries = self.uncertain[_check_indices(index, len(self.images))]
        if not (entries.data > 0).any():
            return None
        dense: NDArray[np.float32] = entries.toarray()
        return np.where(dense > 0, dense - 1, np.float32(np.nan))

    def entries(self) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int8]]:
        """All known entries as (image, class, value), ordered by image and class."""
        return np.repeat(np.arange(len(self.images)), np.diff(self.start)), self.column, self.value

    def keep(self, mask: NDArray[np.bool_]) -> Table:
        """The same images and classes with only the known entries where `mask` (one per entry) is true."""
        start = count_before(mask, self.start)
        return Table(self.images, self.classes, start, self.column[mask], self.value[mask], self.uncertain)

    def matrix(self, mask: NDArray[np.bool_]) -> Any:
        """The known entries where `mask` (one per entry) is true, as ones in a sparse (N, C) matrix.

        int32, so products count images without overflow: no count exceeds the number of images.
        """
        from scipy.sparse import csr_array

        column = self.column[mask].astype(np.int32)
        return csr_array((np.ones(len(column), np.int32), column, count_before(mask, self.start)), shape=self.shape)

    def subset(self, images: ArrayLike | None = None, classes: ArrayLike | None = None) -> Table:
        """Some images and classes, by index and in the given order."""
        table = self
        if images is not None:
            index = _check_indices(images, len(table.images))
            uncertain = None if table.uncertain is None else table.uncertain[index]
            table = Table(table.images.take(index), table.classes, *table.gather(index), uncertain)
        if classes is not None:
            wanted = _check_indices(classes, len(table.classes))
            position = np.full(len(table.classes), -1, np.int64)
            position[wanted] = np.arange(len(wanted))
            image, column, value = table.entries()
            is_kept = position[column] >= 0
            uncertain = None if table.uncertain is None else table.uncertain[:, wanted]
            table = Table.from_entries(
                table.images, table.classes.take(wanted), image[is_kept], position[column[is_kept]], value[is_kept]
            )
            table.uncertain = uncertain
        return table

    def gather(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int8]]:
        """(start, column, value) of some images, by index and in the given order: their labels without names."""
        start = np.zeros(len(index) + 1, np.int64)
        np.cumsum(self.start[index + 1] - self.start[index], out=start[1:])
        column, value = np.empty(start[-1], self.column.dtype), np.empty(start[-1], self.value.dtype)
        step = max(_CHUNK // 8, 1)
        for first in range(0, len(index), step):
            chunk = index[first : first + step]
            out = slice(start[first], start[first + len(chunk)])
            _, position = self._spans(chunk)
            column[out], value[out] = self.column[position], self.value[position]
        return start, column, value

    def merge(self, other: Table) -> Table:
        """All images and classes of both; where both know an entry, `other` wins."""
        images, classes = self.images.union(other.images), self.classes.union(other.classes)
        image, column, value = self.entries()
        their_image, their_column, their_value = other.entries()
        return Table.from_entries(
            images,
            classes,
            np.concatenate([image, images.index(other.images.array)[their_image]]),
            np.concatenate([column.astype(np.int64), classes.index(other.classes.array)[their_column]]),
            np.concatenate([value, their_value]),
        )

    def split(
        self, shares: Sequence[float], *, groups: Sequence[Any] | None = None, seed: int = 0
    ) -> tuple[Table, ...]:
        """Parts with the given shares, stratified by known labels; images of one group stay together.

        `halflabel.labels.split.assign_parts` returns the part of each image instead.
        """
        from halflabel.labels.split import assign_parts

        part = assign_parts(self, shares, groups=groups, seed=seed)
        return tuple(self.subset(np.flatnonzero(part == number)) for number in range(len(shares)))

    def stats(self) -> Stats:
        """Counts of known labels, per class and per image."""
        from halflabel.labels.stats import compute_stats

        return compute_stats(self)

    def digest(self) -> str:
        """A SHA-256 of names and labels: equal for equal tables, on every machine and in every version."""
        sha = hashlib.sha256()
        for names in (self.images, self.classes):
            sha.update(len(names).to_bytes(8, "little"))
            for name in names:
                sha.update(len(text := name.encode()).to_bytes(4, "little") + text)
        for array, kind in ((self.start, "<i8"), (self.column, "<i4"), (self.value, "<i1")):
            for first in range(0, len(array), _CHUNK):
                sha.update(np.ascontiguousarray(array[first : first + _CHUNK], kind).data)
        if self.uncertain is not None:
            for array, kind in zip(self.uncertain.sorted_indices().nonzero(), ("<i8", "<i4"), strict=True):
                sha.update(np.ascontiguousarray(array, kind).data)
        return sha.hexdigest()

    def _spans(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For image indices, the output row and the position of each of their entries."""
        first = self.start[index]
        count = self.start[index + 1] - first
        row = np.repeat(np.arange(len(index)), count)
        before = np.cumsum(count) - count
        return row, np.arange(len(row)) + np.repeat(first - before, count)


def _check_indices(index: ArrayLike, size: int) -> NDArray[np.int64]:
    """Image or class indices as int64; raises for a mask or an index out of range."""
    array = np.asarray(index)
    if array.dtype == bool:
        raise TypeError("expected indices, not a mask: use np.flatnonzero(mask)")
    array = array.astype(np.int64, copy=False)
    if array.size and not (array.min() >= 0 and array.max() < size):
        raise IndexError(f"indices must be in 0 … {size - 1}")
    return array


def last_of_each(image: NDArray[Any], column: NDArray[Any]) -> NDArray[np.int64] | slice:
    """The positions of the last entry of each (image, class), ordered by image and class.

    Returns slice(None) if the entries are already distinct and in that order. Entries with ascending images, as in most
    files, are sorted in chunks of some millions.
    """
    ascends = all(
        bool(np.all(image[first : first + _CHUNK][1:] >= image[first : first + _CHUNK][:-1]))
        for first in range(0, len(image), _CHUNK - 1)
    )
    chunks: list[NDArray[np.int64]] = []
    first, is_ordered = 0, True
    while first < len(image):
        end = len(image)
        if ascends and first + _CHUNK < end:
            # Extend the chunk to the end of its last image.
            end = int(np.searchsorted(image, image[first + _CHUNK], side="right"))
        key = image[first:end].astype(np.int64) * (int(column[first:end].max()) + 1) + column[first:end]
        if np.all(key[1:] > key[:-1]):
            chunks.append(np.arange(first, end))
        else:
            is_ordered = False
            order = np.argsort(key, kind="stable")
            key = key[order]
            chunks.append(order[np.append(key[1:] != key[:-1], True)] + first)
        first = end
    return slice(None) if is_ordered else np.concatenate(chunks)


def count_before(mask: NDArray[np.bool_], start: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many entries are marked before each position in `start` (ascending), counted in chunks."""
    out = np.zeros(len(start), np.int64)
    total = 0
    for first in range(0, len(mask), _CHUNK):
        running = total + np.cumsum(mask[first : first + _CHUNK], dtype=np.int64)
        inside = slice(*np.searchsorted(start, (first + 1, first + len(running) + 1)))
        out[inside] = running[start[inside] - first - 1]
        total = int(running[-1])
    return out
