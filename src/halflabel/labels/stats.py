"""Counts of what is known, per class, per image and per pair of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable

__all__ = ["Conditional", "Pair", "Regime", "Stats", "conditional", "cooccurrence", "describe", "top_pairs"]

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


def describe(table: LabelTable) -> Stats:
    """Count what is known of each class and each image."""
    images, classes = table.shape
    present = table.value > 0
    known = np.bincount(table.column, minlength=classes)
    positives = np.bincount(table.column[present], minlength=classes)
    before = np.append(0, np.cumsum(present, dtype=np.int64))[table.start]
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


def cooccurrence(table: LabelTable) -> Any:
    """How many images have both classes as known positives: sparse (C, C) int64, own counts on the diagonal."""
    present = _matrix(table, table.value > 0)
    return (present.T @ present).tocsr()


class Conditional(NamedTuple):
    """P(j | i) with its counts, sparse (C, C), row i and column j: probability = together / seen.

    What is not stored in `seen` has never been seen, so its probability is unknown rather than 0.
    """

    probability: Any
    together: Any
    seen: Any


def conditional(table: LabelTable) -> Conditional:
    """How likely class j is where class i is present, from the images where j is known.

    P(j | i) = #(i present, j present) / #(i present, j known)

    Images where j is unknown say nothing, so missing labels do not pull towards absence. Where negatives are never
    given, every known j is present and P is 1: only `together` says something then. The diagonal is 1.
    """
    present = _matrix(table, table.value > 0)
    together = (present.T @ present).tocsr()
    seen = (present.T @ _matrix(table, np.ones(table.known, np.bool_))).tocsr()
    # Where both are present j is known, so the pairs of `together` all lie in `seen`: divide entry by entry.
    of = seen.multiply(together.astype(np.bool_)).tocsr()
    for matrix in (together, of):
        matrix.sort_indices()
    probability = together.astype(np.float64)
    probability.data /= of.data
    return Conditional(probability, together, seen)


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
    from scipy.sparse import triu

    probability, together, _ = conditional(table)
    upper = triu(together, k=1).tocoo()
    order = np.lexsort((upper.col, upper.row, -upper.data))[:n]
    stats = describe(table)
    base = stats.positives / np.maximum(stats.positives + stats.negatives, 1)
    pairs = []
    for i, j, count in zip(upper.row[order], upper.col[order], upper.data[order], strict=True):
        if stats.positives[j] < stats.positives[i]:
            i, j = j, i
        chance = float(probability[i, j])
        pairs.append(Pair(table.classes[i], table.classes[j], int(count), chance, chance / float(base[j])))
    return pairs


def _matrix(table: LabelTable, chosen: NDArray[np.bool_]) -> Any:
    """The chosen known entries as ones in a sparse (N, C) matrix; int64, so that products are counts."""
    from scipy.sparse import csr_array

    before = np.append(0, np.cumsum(chosen, dtype=np.int64))[table.start]
    column = table.column[chosen].astype(np.int32)
    return csr_array((np.ones(len(column), np.int64), column, before), shape=table.shape)
