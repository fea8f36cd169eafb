"""Statistics of a label table: counts of known labels per class, per image and per pair of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.labels.table import Table, count_before

_MAX_PAIRS = 5e7  # pairs of present classes of all images
_MAX_DISTINCT_PAIRS = 1e7  # of these, the most that may be stored: each takes some 30 bytes
_CHUNK = 1 << 22  # entries counted at a time

Regime = Literal["full", "single-positive", "positives-only", "partial", "empty"]


def are_nearly_all_positive(labels: Any, entries: int) -> bool:
    """Return whether known negatives are too few to show how often a label that is called present is wrong.

    They are if there is none, or less than a tenth as many as positives. A complete table is the exception: its few
    negatives are all there are. `labels` is an array or a tensor of a table's labels, with or without the unknown
    ones (0); `entries` is the number of images times classes. Calibration needs more negatives, see
    `metrics.calibration.has_negatives_to_calibrate`.
    """
    present, absent = int((labels > 0).sum()), int((labels < 0).sum())
    return not absent or (10 * absent < present and present + absent < entries)


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
    def annotations(self) -> NDArray[np.int64]:
        """Known labels per class, (C,)."""
        return self.positives + self.negatives

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
    def positives_per_labelled_image(self) -> float:
        """The mean number of known positives of the labelled images."""
        return float(self.positives.sum()) / self.labelled_images if self.labelled_images else 0.0

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


def compute_stats(table: Table) -> Stats:
    """Count the known labels of each class and each image."""
    images, classes = table.shape
    present = table.value > 0
    known, positives = np.zeros((2, classes), np.int64)
    for first in range(0, table.known, _CHUNK):  # in chunks: bincount converts to 8 bytes per entry
        column = table.column[first : first + _CHUNK]
        known += np.bincount(column, minlength=classes)
        positives += np.bincount(column[present[first : first + _CHUNK]], minlength=classes)
    before = count_before(present, table.start)
    return Stats(
        images=images,
        classes=classes,
        class_names=table.classes,
        known=table.known,
        positives=positives,
        negatives=known - positives,
        unknown=images - known,
        uncertain=np.bincount(() if table.uncertain is None else table.uncertain.nonzero()[1], minlength=classes),
        known_per_image=np.bincount(np.diff(table.start), minlength=1),
        positives_per_image=np.bincount(np.diff(before), minlength=1),
    )


def count_together(table: Table) -> tuple[Any, Any]:
    """(together, seen), sparse (C, C): images with i and j present, and with i present and j known.

    P(j | i) = together / seen. Images where j is unknown do not count, so missing labels do not pull towards absence; a
    pair that is not stored in `seen` was never observed. In tables without negatives every known j is present and P is
    1: use only `together` there.
    """
    present = table.matrix(table.value > 0)
    return (present.T @ present).tocsr(), (present.T @ table.matrix(np.ones(table.known, np.bool_))).tocsr()


class Pair(NamedTuple):
    """Two classes that occur together.

    `together`: images known to have both; `probability`: P(second | first); `lift`: P(second | first) / P(second).
    """

    first: str
    second: str
    together: int
    probability: float
    lift: float


def top_pairs(table: Table, n: int = 20) -> list[Pair]:
    """The n pairs of classes that are most often present together, most frequent first.

    `first` is the class with fewer known positives, so that P is the larger of the two conditional probabilities in
    fully labelled tables. P(second) is the share of positives among its known labels. Ties are in class order.
    """
    stats = compute_stats(table)
    i, j, count = _most_frequent(_together(table), n)
    if not len(i):
        return []
    swapped = stats.positives[j] < stats.positives[i]
    i, j = np.where(swapped, j, i), np.where(swapped, i, j)
    # Only for these classes: how often the second is known where the first is present.
    firsts, seconds = np.isin(np.arange(stats.classes), i), np.isin(np.arange(stats.classes), j)
    present = table.matrix((table.value > 0) & firsts[table.column])
    seen = (present.T @ table.matrix(seconds[table.column])).tocsr()[i, j]
    probability = count / np.asarray(seen).ravel()
    base = stats.positives / np.maximum(stats.positives + stats.negatives, 1)
    return [
        Pair(table.classes[first], table.classes[second], int(both), float(p), float(p / base[second]))
        for first, second, both, p in zip(i, j, count, probability, strict=True)
    ]


def _together(table: Table) -> Any:
    """How often each two classes are present together, sparse (C, C); rare classes are left out of large tables.

    An image with n present classes has n² pairs: a thousand images with a thousand tags each would take gigabytes.
    """
    present = table.value > 0
    positives = np.bincount(table.column[present], minlength=len(table.classes))
    for fewest in (0, *(2**k for k in range(1, 63))):
        is_counted = present & (positives >= fewest)[table.column]
        pairs = np.diff(count_before(is_counted, table.start)).astype(np.float64) ** 2
        distinct = min(pairs.sum(), float(np.count_nonzero(positives >= max(fewest, 1))) ** 2)
        if pairs.sum() <= _MAX_PAIRS and distinct <= _MAX_DISTINCT_PAIRS:
            break
    matrix = table.matrix(is_counted)
    return (matrix.T @ matrix).tocsr()


def _most_frequent(together: Any, n: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(i, j, count) of the n largest counts above the diagonal; ties by i, then j."""
    row = np.repeat(np.arange(together.shape[0], dtype=np.int32), np.diff(together.indptr))
    upper = np.flatnonzero(together.indices > row)
    if len(upper) > n:  # drop what cannot be among the n largest before sorting
        count = together.data[upper]
        upper = upper[count >= np.partition(count, len(count) - n)[len(count) - n]]
    row, col, count = row[upper], together.indices[upper], together.data[upper]
    order = np.lexsort((col, row, -count))[:n]
    return row[order], col[order], count[order]
