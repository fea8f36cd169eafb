"""What the values of y mean to HalfLabelClassifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from estimator_examples import NAN, half_labelled, make
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.images.estimator_inputs import read_labels
from halflabel.labels.table import Table

# What 0 means


@pytest.mark.parametrize(
    ("y", "zero", "labels", "meaning"),
    [
        ([[1, 0], [-1, 1]], "auto", [[1, 0], [-1, 1]], "unknown"),
        ([[1, 0], [NAN, 1]], "auto", [[1, -1], [0, 1]], "absent"),
        ([[1, NAN], [-1, 1]], "auto", [[1, 0], [-1, 1]], "auto"),
        ([[1, -1], [-1, 1]], "auto", [[1, -1], [-1, 1]], "auto"),
        ([[1, NAN], [NAN, 1]], "auto", [[1, 0], [0, 1]], "auto"),
        ([[1, 0], [0, 1]], "absent", [[1, -1], [-1, 1]], "absent"),
        ([[1, 0], [0, 1]], "unknown", [[1, 0], [0, 1]], "unknown"),
        ([[1, 0], [-1, NAN]], "absent", [[1, -1], [-1, 0]], "absent"),
        ([[True, False], [False, True]], "absent", [[1, -1], [-1, 1]], "absent"),
        ([[1, None], [0, 1]], "auto", [[1, 0], [-1, 1]], "absent"),
    ],
)
def test_what_zero_means(y: Any, zero: str, labels: list[list[int]], meaning: str) -> None:
    actual = read_labels(y, zero)
    assert actual.labels.tolist() == labels
    assert actual.labels.dtype == np.int8
    assert actual.zero == meaning


@pytest.mark.parametrize("y", [[[1, 0], [0, 1]], [[0, 0], [0, 0]], [[1, 0], [-1, NAN]]])
def test_an_ambiguous_zero_is_refused(y: Any) -> None:
    with pytest.raises(UserError, match=r'zero="absent".*or zero="unknown"'):
        make().fit(np.eye(2), y)


def test_values_that_are_no_labels_are_refused() -> None:
    with pytest.raises(UserError, match="2 is not a label"):
        make().fit(np.eye(2), [[1, 2], [0, 1]])


def test_nan_zero_and_table_give_the_same_scores() -> None:
    X, _, y = half_labelled()
    fitted = [
        make().fit(X, y),
        make().fit(X, np.where(y == 0, NAN, y)),
        make().fit(X, np.where(y == 0, NAN, np.where(y < 0, 0.0, y))),
        make().fit(X, Table.from_dense(y)),
    ]
    scores = [model.predict_proba(X) for model in fitted]
    for actual in scores[1:]:
        np.testing.assert_array_equal(scores[0], actual)
    assert [sorted(set(model.predict(X).flat)) for model in fitted] == [[-1, 1], [-1, 1], [0, 1], [-1, 1]]
    assert fitted[0].classes_.tolist() == [0, 1, 2]
    named = make().fit(X, Table.from_dense(y, classes=["cat", "cow", "dog"]))
    assert named.classes_.tolist() == ["cat", "cow", "dog"]


def test_the_columns_of_a_data_frame_are_the_classes() -> None:
    X, _, y = half_labelled()

    class Frame:
        columns = ("a", "b", "c")

        def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
            return np.array(y, dtype=dtype)

    assert make().fit(X, Frame()).classes_.tolist() == ["a", "b", "c"]
