"""Counts against dense arrays, and pairs of classes against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halflabel.labels.table import Table, are_nearly_all_positive, count_together

# Shared machines stall: a deadline would measure them instead of the code.
quick = settings(deadline=None, max_examples=50)
labels_of = arrays(np.int8, st.tuples(st.integers(0, 10), st.integers(0, 5)), elements=st.integers(-1, 1))


@quick
@given(labels_of)
def test_counts_equal_those_of_the_dense_array(labels: NDArray[np.int8]) -> None:
    stats = Table.from_dense(labels).stats
    assert (stats.images, stats.classes) == labels.shape
    assert stats.known == np.count_nonzero(labels)
    assert stats.positives.tolist() == (labels > 0).sum(0).tolist()
    assert stats.negatives.tolist() == (labels < 0).sum(0).tolist()
    assert stats.unknown.tolist() == (labels == 0).sum(0).tolist()
    assert stats.labelled_images == labels.any(1).sum()
    for histogram, per_image in (
        (stats.known_per_image, (labels != 0).sum(1)),
        (stats.positives_per_image, (labels > 0).sum(1)),
    ):
        assert histogram.sum() == len(labels)
        assert [histogram[n] for n in per_image] == [np.sum(per_image == n) for n in per_image]
    assert stats.share_known == pytest.approx((labels != 0).mean() if labels.size else 0)
    assert stats.unlabelled_share == pytest.approx((~labels.any(1)).mean() if len(labels) else 0)


@pytest.mark.parametrize(
    ("labels", "regime", "unlabelled"),
    [
        ([[1, -1], [-1, -1]], "full", 0.0),
        ([[1, -1], [0, 0]], "full", 0.5),
        ([[1, 0], [0, 1]], "single-positive", 0.0),
        ([[1, 0, 0], [0, 0, 0]], "single-positive", 0.5),
        ([[1, 1, 0], [0, 1, 0]], "positives-only", 0.0),
        ([[1, 0], [0, -1]], "partial", 0.0),
        ([[0, -1], [0, -1]], "partial", 0.0),
        ([[0, 0], [0, 0]], "empty", 1.0),
    ],
)
def test_regime(labels: list[list[int]], regime: str, unlabelled: float) -> None:
    stats = Table.from_dense(labels).stats
    assert stats.regime == regime
    assert stats.unlabelled_share == unlabelled


@quick
@given(labels_of)
def test_pairs_by_the_slow_reference(labels: NDArray[np.int8]) -> None:
    table = Table.from_dense(labels)
    together, seen = (matrix.toarray() for matrix in count_together(table))
    for i in range(labels.shape[1]):
        for j in range(labels.shape[1]):
            both = sum(1 for row in labels if row[i] == 1 and row[j] == 1)
            known = sum(1 for row in labels if row[i] == 1 and row[j] != 0)
            assert together[i, j] == both
            assert seen[i, j] == known


def test_counts_do_not_overflow() -> None:
    table = Table.from_dense(np.ones((300, 2), np.int8))
    assert count_together(table)[0].toarray().tolist() == [[300, 300], [300, 300]]


def test_only_a_complete_table_needs_no_more_negatives_than_it_has() -> None:
    labels = np.array([[1] * 11, [-1] + [0] * 10])
    assert are_nearly_all_positive(labels, labels.size)
    assert are_nearly_all_positive(labels[labels != 0], labels.size)
    assert not are_nearly_all_positive(labels[:, :10], 20)
    assert not are_nearly_all_positive(labels[labels != 0], 12)
    assert are_nearly_all_positive(np.ones(4), 4)
    assert are_nearly_all_positive(np.zeros(0), 4)
