"""The model of a live review: heads on features in memory, fitted again to the answers in seconds, out of fold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halflabel.features.feature_transform import Classifier, FeatureTransform, principal_components
from halflabel.fitting.solver import LinearSolver
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe
from halflabel.system.threads import use_free_cores

FOLDS = 3
STRENGTH = 2e-3  # of a review that starts without labels
COMPONENTS = 384  # principal components that the head is fitted on
_FIRST_ITERATIONS = 20  # of the first fit, which starts from zero
_ITERATIONS = 6  # of the others, which start from the last solution
_UNKNOWN_WEIGHT = 0.4  # of all unknown labels together, where known ones have 1


def unknown_weight(answers: int, entries: int) -> float:
    """Return the weight of an unknown label: all of them together have 0.4 of the weight of the answers."""
    return max(_UNKNOWN_WEIGHT * answers / max(entries, 1), 1e-6)


class LiveModel:
    """A linear head per fold on the principal components of the features, each fitted without the labels of its fold.

    The folds stay the same, so that no head ever saw a label of its fold, and each fit starts from the last solution.
    Memory: 4·384 bytes per image.
    """

    def __init__(
        self,
        features: Tensor,
        table: Table,
        make_method: Callable[[], Method] | None,
        *,
        classifier: Classifier | None = None,
        strength: float = STRENGTH,
        groups: NDArray[np.int64] | None = None,
        seed: int = 0,
    ) -> None:
        """Take pooled features (N, D), NaN rows for unreadable images, and the labels before any answer.

        Images of one of the `groups` (N,) are in the same fold. Without a method, for reviews that start without
        labels, it is `wan` with the weight `unknown_weight`.
        """
        readable = ~torch.isnan(features).any(1)
        self.rows = np.flatnonzero(readable.numpy())
        self.images, self.classes = table.images, table.classes
        with use_free_cores():
            raw = features[readable]
            normalised = FeatureTransform.fit(raw, classifier)(raw)
            directions, self.variance = principal_components(normalised, COMPONENTS)
            self.features = normalised @ directions
        self.make_method, self.strength = make_method, strength
        self.fold = assign_parts(table, [1 / FOLDS] * FOLDS, groups=groups, seed=seed)[self.rows]
        self.heads: list[tuple[Tensor, Tensor]] = []

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.images), len(self.classes)

    def refit(self, labels: NDArray[np.int8]) -> NDArray[np.float32]:
        """Fit the heads to labels (N, C) and return out-of-fold logits (N, C), NaN for unreadable images.

        No head saw a label of an image without any: such an image gets the mean of all heads.
        """
        known = labels[self.rows]
        everything = self.table(labels)
        weight = unknown_weight(int(np.count_nonzero(known)), known.size)
        scores, heads = [], []
        with use_free_cores():
            for number in range(int(self.fold.max()) + 1):
                inside = np.flatnonzero(self.fold != number)
                table = everything.subset(self.rows[inside])
                start = self.heads[number] if self.heads else None
                method = self.make_method() if self.make_method is not None else recipe("wan").make(weight=weight)
                solver = LinearSolver(method, self.features[inside], table, variance=self.variance, start=start)
                solver.fit(self.strength, _ITERATIONS if self.heads else _FIRST_ITERATIONS)
                heads.append((solver.weight, solver.bias))
                scores.append(solver.score(self.features).numpy())
        self.heads = heads
        stacked = np.stack(scores)
        logits = np.full(self.shape, np.nan, np.float32)
        out_of_fold = stacked[self.fold, np.arange(len(self.rows))]
        logits[self.rows] = np.where((known != 0).any(1)[:, None], out_of_fold, stacked.mean(0))
        return logits

    def table(self, labels: NDArray[np.int8]) -> Table:
        """Return labels (N, C) as a table."""
        image, column = np.nonzero(labels)
        return Table.from_entries(self.images, self.classes, image, column, labels[image, column])
