"""Counts of what is known, per class, per image and per pair of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable, count_before

__all__ = [
    "ConditionalProbabilities",
    "Pair",
    "Regime",
    "Stats",
    "compute_stats",
    "conditional_probabilities",
    "top_pairs",
]

_PIECE = 1 << 22  # entries counted at a time

Regime = Literal["full", "single-positive", "positives-only", "partial", "empty"]


@dataclass(frozen=True, eq=False)
class Stats:
    """What a label table knows, in numbers.

    `positives`, `negatives` and `unknown` count images per class, (C,). `known_per_image[n]` is the number of images
    with n known labels, `positives_per_image[n]` of images with n known positives; both sum to `images`.
    """

    images: int
    classes: int
    class_names: Names
    known: int
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]
    unknown: NDArray[np.int64]
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
        """The mean number of known positives of the images with a known label."""
        return float(self.positives.sum()) / self.labelled_images if self.labelled_images else 0.0

    @property
    def regime(self) -> Regime:
        """How the images that have labels are labelled; those without any are counted by `unlabelled_share`.

        full: every class is known; single-positive: exactly one positive each and no negative anywhere; positives-only:
        no negative anywhere; partial: anything else; empty: nothing is known.
        """
        if not self.known:
            return "empty"
        if self.known == self.labelled_images * self.classes:
            return "full"
        if self.negatives.any():
            return "partial"
        return "single-positive" if len(self.positives_per_image) == 2 else "positives-only"


def compute_stats(table: LabelTable) -> Stats:
    """Count what is known of each class and each image."""
    images, classes = table.shape
    present = table.value > 0
    known, positives = np.zeros((2, classes), np.int64)
    for first in range(0, table.known, _PIECE):  # counting makes 8 bytes of each number
        column = table.column[first : first + _PIECE]
        known += np.bincount(column, minlength=classes)
        positives += np.bincount(column[present[first : first + _PIECE]], minlength=classes)
    before = count_before(present, table.start)
    return Stats(
        images=images,
        classes=classes,
        class_names=table.classes,
        known=table.known,
        positives=positives,
        negatives=known - positives,
        unknown=images - known,
        known_per_image=np.bincount(np.diff(table.start), minlength=1),
        positives_per_image=np.bincount(np.diff(before), minlength=1),
    )


class ConditionalProbabilities(NamedTuple):
    """P(j | i) with its counts, sparse (C, C), row i and column j: probability = together / seen.

    What is not stored in `seen` has never been seen, so its probability is unknown rather than 0.
    """

    probability: Any
    together: Any
    seen: Any


def conditional_probabilities(table: LabelTable) -> ConditionalProbabilities:
    """How likely class j is where class i is present, from the images where j is known.

    P(j | i) = #(i present, j present) / #(i present, j known)

    Images where j is unknown say nothing, so missing labels do not pull towards absence. Where negatives are never
    given, every known j is present and P is 1: only `together` says something then. The diagonal is 1.
    """
    present = table.matrix(table.value > 0)
    together = (present.T @ present).tocsr()
    seen = (present.T @ table.matrix(np.ones(table.known, np.bool_))).tocsr()
    together, seen = together.astype(np.int64), seen.astype(np.int64)
    # Where both are present j is known, so the pairs of `together` all lie in `seen`: divide entry by entry.
    of = seen.multiply(together.astype(np.bool_)).tocsr()
    for matrix in (together, of):
        matrix.sort_indices()
    probability = together.astype(np.float64)
    probability.data /= of.data
    return ConditionalProbabilities(probability, together, seen)


class Pair(NamedTuple):
    """Two classes, the images known to show both, P(second | first), and lift = P(second | first) / P(second)."""

    first: str
    second: str
    together: int
    probability: float
    lift: float


def top_pairs(table: LabelTable, n: int = 20) -> list[Pair]:
    """The n pairs of classes that are most often present together, most frequent first.

    `first` is the class with fewer known positives, so that P is the larger of the two where all is known. P(second) is
    the share of positives among its known labels. Equal counts come in the order of the classes.
    """
    stats = compute_stats(table)
    i, j, count = _most_frequent(_together(table), n)
    if not len(i):
        return []
    turned = stats.positives[j] < stats.positives[i]
    i, j = np.where(turned, j, i), np.where(turned, i, j)
    # Of these classes alone: how often the second is known where the first is present.
    firsts, seconds = np.isin(np.arange(stats.classes), i), np.isin(np.arange(stats.classes), j)
    present = table.matrix((table.value > 0) & firsts[table.column])
    seen = (present.T @ table.matrix(seconds[table.column])).tocsr()[i, j]
    chance = count / np.asarray(seen).ravel()
    base = stats.positives / np.maximum(stats.positives + stats.negatives, 1)
    return [
        Pair(table.classes[first], table.classes[second], int(both), float(p), float(p / base[second]))
        for first, second, both, p in zip(i, j, count, chance, strict=True)
    ]


def _together(table: LabelTable) -> Any:
    present = table.matrix(table.value > 0)
    return (present.T @ present).tocsr()


def _most_frequent(together: Any, n: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(i, j, count) of the n largest counts above the diagonal, equal ones by i, then j."""
    row = np.repeat(np.arange(together.shape[0], dtype=np.int32), np.diff(together.indptr))
    upper = np.flatnonzero(together.indices > row)
    if len(upper) > n:  # those that could be among them, before any sorting
        count = together.data[upper]
        upper = upper[count >= np.partition(count, len(count) - n)[len(count) - n]]
    row, col, count = row[upper], together.indices[upper], together.data[upper]
    order = np.lexsort((col, row, -count))[:n]
    return row[order], col[order], count[order]
