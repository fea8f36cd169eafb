"""Label vectors against a slow count, and files as people have them."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks

from halflabel.errors import LabelError, UserError
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.parts.label_vectors import from_cooccurrence, from_file, label_vectors

slow = step_checks.reference("semantic")


def table(choices=(-1, 0, 0, 1, 1), seed=0, images=50, classes=7):
    labels = np.random.default_rng(seed).choice(choices, (images, classes))
    return Table.from_dense(labels)


@pytest.mark.parametrize("choices", [(-1, 0, 0, 1, 1), (-1, 1), (0, 0, 1)], ids=["partial", "full", "positives"])
@pytest.mark.parametrize("prior", [1.0, 0.3])
def test_vectors_multiply_to_the_counted_matrix(choices, prior, monkeypatch):
    monkeypatch.setattr("halflabel.methods.parts.label_vectors._CLASSES", 3)
    known = table(choices)
    vectors = from_cooccurrence(known, 7, prior=prior)
    matrix = np.array(slow.pmi(known.dense().tolist(), prior))
    value, vector = np.linalg.eigh(matrix)
    expected = (vector * np.abs(value)) @ vector.T  # U S Uᵀ: all singular values are positive
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-9)


def test_few_columns_are_the_leading_ones_and_many_are_padded():
    known = table()
    full, truncated, padded = (from_cooccurrence(known, size) for size in (7, 2, 10))
    np.testing.assert_allclose(truncated, full[:, :2], atol=1e-9)
    np.testing.assert_allclose(padded[:, :7], full, atol=1e-9)
    assert not padded[:, 7:].any()


def test_the_sparse_solver_finds_the_same_vectors(monkeypatch):
    known = table(classes=12, images=200)
    expected = from_cooccurrence(known, 4)
    monkeypatch.setattr("halflabel.methods.parts.label_vectors._DENSE", 5)
    np.testing.assert_allclose(from_cooccurrence(known, 4), expected, atol=1e-6)


def test_empty_tables_and_classes_never_seen_have_vectors_of_zeros():
    assert not from_cooccurrence(Table.from_dense(np.zeros((3, 2), int)), 3).any()
    assert from_cooccurrence(Table.from_dense(np.zeros((0, 0), int)), 3).shape == (0, 3)


def write(tmp_path, text):
    path = tmp_path / "vectors.txt"
    path.write_text(text, encoding="utf-8")
    return path


WORDS = "the 0 0 0\ndog 1 2 3\npotted 0 0 2\nplant 2 0 0\ntraffic_light 5 5 5\nNew York 7 7 7\n"


@pytest.mark.parametrize("header", ["", "6 3\n"])
def test_files_with_and_without_header_and_names_of_several_words(tmp_path, header):
    names = Names(["dog", "Dog", "potted plant", "potted_plant", "traffic light", "New York"])
    graph = from_file(write(tmp_path, header + WORDS), names)
    assert graph.tolist() == [[1, 2, 3], [1, 2, 3], [1, 0, 1], [1, 0, 1], [5, 5, 5], [7, 7, 7]]


def test_missing_names_are_reported(tmp_path):
    path = write(tmp_path, WORDS)
    with pytest.raises(LabelError, match=r"no vector for 'plants', 'zebra'. Fix: .*vectors.*graph"):
        from_file(path, Names(["plants", "dog", "zebra"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no vector"), ("dog 1 2\ncat 1 x\n", "line 2: the vector of 'cat' is not 2"), ("cat nan 1", "line 1")],
)
def test_errors_in_vector_files_name_the_line(tmp_path, text, message):
    with pytest.raises(LabelError, match=message):
        from_file(write(tmp_path, text), Names(["cat"]))


def test_sources_sizes_and_scale(tmp_path):
    known = Table.from_dense([[1, -1], [-1, 1]], classes=["dog", "plant"])
    path = str(write(tmp_path, WORDS))
    vectors = label_vectors(path, known, 3)
    np.testing.assert_allclose(vectors, np.array([[1, 2, 3], [2, 0, 0]]) / 3)  # mean squared length (14 + 4) / 2
    assert np.square(label_vectors("graph", known, 9)).sum(1).mean() == pytest.approx(1)
    with pytest.raises(UserError, match="add vector_size=3"):
        label_vectors(path, known, 300)
    with pytest.raises(UserError, match="no label vectors 'glove'"):
        label_vectors("glove", known, 300)
