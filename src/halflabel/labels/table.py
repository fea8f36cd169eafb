"""Table: present, absent or unknown for N images × C classes, as a sparse array; counts of its labels and pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from halflabel.errors import UserError
from halflabel.labels.names import Names

UNCERTAIN = 2  # the value of an uncertain entry, in rows
Regime = Literal["full", "single-positive", "positives-only", "partial", "empty"]


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """The known labels of N images × C classes: `values` holds +1 present and −1 absent; what it lacks is unknown.

    The arrays of `values` may be mapped from a file. Memory: 4 bytes per image, 5 per known entry, and the names.

    Uncertain entries are unknown, and listed in `uncertain` beside that: a sparse (N, C) array with −1 at each of them,
    or its soft target for training; None if there are none. `labels.uncertain.decide_uncertain` sets the targets.

    >>> table = Table.from_dense([[1, 0], [-1, 1]], images=["a", "b"], classes=["cat", "dog"])
    >>> table.rows([1, 0]).tolist()
    [[-1, 1], [1, 0]]
    >>> table
    Table(2 images × 2 classes, 3 known)
    """

    images: Names
    classes: Names
    values: csr_array
    uncertain: csr_array | None = None

    @classmethod
    def from_parts(
        cls, images: Names, classes: Names, start: NDArray[Any], column: NDArray[Any], value: NDArray[Any]
    ) -> Table:
        """Build from compressed rows: image i has the classes column[start[i]:start[i + 1]], ascending, with `value`.

        An int32 `column` and an int8 `value` are not copied.
        """
        kind = np.int32 if len(column) <= np.iinfo(np.int32).max else np.int64  # scipy copies both to the wider one
        parts = value, column.astype(kind, copy=False), start.astype(kind, copy=False)
        values = csr_array(parts, shape=(len(images), len(classes)))
        values.has_canonical_format = True
        return cls(images, classes, values)

    @classmethod
    def from_entries(
        cls, images: Names, classes: Names, image: NDArray[Any], column: NDArray[Any], value: NDArray[Any]
    ) -> Table:
        """Build from entries in any order. The last entry of an (image, class) wins; 0 is unknown, 2 uncertain."""
        if not (len(image) == len(column) == len(value)):
            raise ValueError("image, column and value must have the same length")
        ranges = ((image, 0, len(images) - 1), (column, 0, len(classes) - 1), (value, -1, UNCERTAIN))
        for name, (numbers, least, most) in zip(("image", "class", "value"), ranges, strict=True):
            if len(numbers) and not (least <= int(numbers.min()) and int(numbers.max()) <= most):
                raise ValueError(f"every {name} must be in {least} … {most}")
        order = last_of_each(image, column)
        image, column, value = image[order], column[order], value[order]
        uncertain = None
        if (is_uncertain := value == UNCERTAIN).any():
            undecided = np.full(int(is_uncertain.sum()), -1, np.float32)
            place = image[is_uncertain], column[is_uncertain]
            uncertain = csr_array((undecided, place), shape=(len(images), len(classes)))
        known = (value != 0) & ~is_uncertain
        if not known.all():
            image, column, value = image[known], column[known], value[known]
        start = np.append(0, np.cumsum(np.bincount(image, minlength=len(images))))
        table = cls.from_parts(images, classes, start, column, value.astype(np.int8, copy=False))
        return replace(table, uncertain=uncertain)

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
        return cls(rows, columns, csr_array(array.astype(np.int8)))

    @property
    def shape(self) -> tuple[int, int]:
        """(images, classes)."""
        return len(self.images), len(self.classes)

    @property
    def known(self) -> int:
        """The number of known entries."""
        return int(self.values.nnz)

    @property
    def start(self) -> NDArray[Any]:
        """Where the entries of each image begin in `column` and `value`, and where the last ones end (N + 1,)."""
        start: NDArray[Any] = self.values.indptr
        return start

    @property
    def column(self) -> NDArray[Any]:
        """The class of each known entry."""
        column: NDArray[Any] = self.values.indices
        return column

    @property
    def value(self) -> NDArray[np.int8]:
        """The label of each known entry: +1 or −1."""
        value: NDArray[np.int8] = self.values.data
        return value

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
            and _are_equal(self.values, other.values)
            and _are_equal(self.uncertain, other.uncertain)
        )

    def rows(self, index: ArrayLike) -> NDArray[np.int8]:
        """The labels of some images: (B,) image indices -> (B, C) int8 in {−1, 0, +1}."""
        rows: NDArray[np.int8] = self.values[_check_indices(index, len(self.images))].toarray()
        return rows

    def dense(self) -> NDArray[np.int8]:
        """All labels as (N, C) int8: one byte per entry, so only for small tables."""
        dense: NDArray[np.int8] = self.values.toarray()
        return dense

    def soft_targets(self, index: ArrayLike) -> NDArray[np.float32] | None:
        """The soft targets of some images, (B, C) with NaN elsewhere; None if they have none."""
        if self.uncertain is None:
            return None
        targets = self.uncertain[_check_indices(index, len(self.images))].toarray()
        return np.where(targets > 0, targets, np.float32(np.nan)) if (targets > 0).any() else None

    def entries(self) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int8]]:
        """All known entries as (image, class, value), ordered by image and class."""
        return np.repeat(np.arange(len(self.images)), np.diff(self.start)), self.column, self.value

    def keep(self, mask: NDArray[np.bool_]) -> Table:
        """The same images and classes with only the known entries where `mask` (one per entry) is true."""
        values = self.values.copy()
        values.data *= mask
        values.eliminate_zeros()
        return replace(self, values=values)

    def subset(self, images: ArrayLike | None = None, classes: ArrayLike | None = None) -> Table:
        """Some images and classes, by index and in the given order."""
        parts = [self.values, self.uncertain]
        names = [self.images, self.classes]
        for axis, index in enumerate((images, classes)):
            if index is not None:
                wanted = _check_indices(index, len(names[axis]))
                names[axis] = names[axis].take(wanted)
                parts = [part if part is None else part[wanted] if axis == 0 else part[:, wanted] for part in parts]
        for part in parts:
            if part is not None:
                part.sort_indices()
        return Table(*names, *parts)

    def split(
        self, shares: Sequence[float], *, groups: Sequence[Any] | None = None, seed: int = 0
    ) -> tuple[Table, ...]:
        """Parts with the given shares, stratified by known labels; images of one group stay together."""
        from halflabel.labels.split import assign_parts

        part = assign_parts(self, shares, groups=groups, seed=seed)
        return tuple(self.subset(np.flatnonzero(part == number)) for number in range(len(shares)))

    def digest(self) -> str:
        """A SHA-256 of names and labels: equal for equal tables, on every machine and in every version."""
        sha = hashlib.sha256()
        for names in (self.images, self.classes):
            sha.update(len(names).to_bytes(8, "little"))
            for name in names:
                sha.update(len(text := name.encode()).to_bytes(4, "little") + text)
        arrays = [(self.start, "<i8"), (self.column, "<i4"), (self.value, "<i1")]
        if self.uncertain is not None:
            arrays += zip(self.uncertain.nonzero(), ("<i8", "<i4"), strict=True)
        for array, kind in arrays:
            sha.update(np.ascontiguousarray(array, kind).data)
        return sha.hexdigest()

    @cached_property
    def stats(self) -> Stats:
        """Counts of known labels, per class and per image."""
        present = self.values > 0
        uncertain = () if self.uncertain is None else self.uncertain.indices
        known, positives, undecided = (
            np.bincount(columns, minlength=len(self.classes)) for columns in (self.column, present.indices, uncertain)
        )
        return Stats(
            images=len(self.images),
            classes=len(self.classes),
            class_names=self.classes,
            known=self.known,
            positives=positives,
            negatives=known - positives,
            unknown=len(self.images) - known,
            uncertain=undecided,
            known_per_image=np.bincount(np.diff(self.start), minlength=1),
            positives_per_image=np.bincount(np.diff(present.indptr), minlength=1),
        )


@dataclass(frozen=True, eq=False)
class Stats:
    """Counts of the known labels of a table.

    `positives`, `negatives`, `unknown` and `uncertain`, which are among the unknown, count images per class, (C,).
    `known_per_image[n]` is the number of images with n known labels, `positives_per_image[n]` the number with n known
    positives; both sum to `images`.
    """

    images: int
    classes: int
    class_names: Names
    known: int
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]
    unknown: NDArray[np.int64]
    uncertain: NDArray[np.int64]
    known_per_image: NDArray[np.int64]
    positives_per_image: NDArray[np.int64]

    @property
    def labelled_images(self) -> int:
        """The number of images with at least one known label."""
        return self.images - int(self.known_per_image[0])

    @property
    def unlabelled_share(self) -> float:
        """The share of images without any known label."""
        return 1.0 - self.labelled_images / self.images if self.images else 0.0

    @property
    def share_known(self) -> float:
        """Known entries / (N·C)."""
        return self.known / (self.images * self.classes) if self.images and self.classes else 0.0

    @property
    def regime(self) -> Regime:
        """How the labelled images are labelled; `unlabelled_share` counts the images without labels.

        full: every class is known; single-positive: exactly one positive per image and no negatives; positives-only: no
        negatives; partial: anything else; empty: nothing is known.
        """
        if not self.known:
            return "empty"
        if self.known == self.labelled_images * self.classes:
            return "full"
        if self.negatives.any():
            return "partial"
        return "single-positive" if len(self.positives_per_image) == 2 else "positives-only"


def are_nearly_all_positive(labels: Any, entries: int) -> bool:
    """Return whether known negatives are too few to show how often a label that is called present is wrong.

    They are if there is none, or less than a tenth as many as positives, unless the table is complete. `labels` is an
    array or a tensor of labels, with or without the unknown ones (0); `entries` is the number of images times classes.
    """
    present, absent = int((labels > 0).sum()), int((labels < 0).sum())
    return not absent or (10 * absent < present and present + absent < entries)


def count_together(table: Table) -> tuple[csr_array, csr_array]:
    """(together, seen), sparse (C, C): images with i and j present, and with i present and j known.

    P(j | i) = together / seen: missing labels do not pull towards absence. In tables without negatives every known j is
    present and P is 1: use only `together` there.
    """
    present, known = ((part != 0).astype(np.int32) for part in (table.values > 0, table.values))  # int8 would overflow
    return (present.T @ present).tocsr(), (present.T @ known).tocsr()


def _are_equal(one: csr_array | None, other: csr_array | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("indptr", "indices", "data"))


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
    """The positions of the last entry of each (image, class), in their order; slice(None) if that is what is given."""
    is_next_class = (image[1:] == image[:-1]) & (column[1:] > column[:-1])
    if np.all(is_next_class | (image[1:] > image[:-1])):
        return slice(None)
    key = image.astype(np.int64) * (int(column.max()) + 1) + column
    order = np.argsort(key, kind="stable")
    return np.asarray(order[np.append(np.diff(key[order]) > 0, True)])
