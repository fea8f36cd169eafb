"""Label graphs against slow loops, and files with the faults people make."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel.errors import LabelError
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.parts.label_graph import Edges, LabelGraph, from_cooccurrence, from_file, identity


def table(seed=0, images=60, classes=8):
    rng = np.random.default_rng(seed)
    return Table.from_dense(rng.choice([-1, 0, 0, 1], (images, classes)))


def dense(edges, classes):
    matrix = np.zeros((classes, classes))
    matrix[edges.rows, edges.cols] = edges.weights
    return matrix


def slow_cooccurrence(labels, k, prior):
    """Every pair counted image by image."""
    classes = labels.shape[1]
    matrix = np.zeros((classes, classes))
    for j in range(classes):
        ranked = []
        for other in range(classes):
            together = sum(row[j] > 0 and row[other] > 0 for row in labels)
            if other == j or not together:
                continue
            of_row = sum(row[j] > 0 and row[other] != 0 for row in labels)
            of_col = sum(row[other] > 0 and row[j] != 0 for row in labels)
            ranked.append((-together / (of_row + prior), -together, other, together / (of_col + prior)))
        for _, _, other, weight in sorted(ranked)[:k]:
            matrix[j, other] = weight
    return matrix


@pytest.mark.parametrize("k", [0, 1, 3, 50, None])
@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_cooccurrence_is_the_slow_count(k, prior):
    known = table()
    graph = from_cooccurrence(known, k, prior=prior)
    np.testing.assert_allclose(dense(graph, 8), slow_cooccurrence(known.dense(), k, prior), atol=1e-12)
    assert (np.diff(graph.rows) >= 0).all()


def test_unknown_labels_do_not_count():
    labels = np.array([[1, 1, -1], [1, 1, -1], [-1, -1, 1], [1, -1, 1]])
    extended = np.concatenate([labels, np.tile([[1, 0, 0], [0, 1, 0]], (50, 1))])
    graph, extended_graph = (from_cooccurrence(Table.from_dense(rows)) for rows in (labels, extended))
    np.testing.assert_allclose(dense(graph, 3), dense(extended_graph, 3))


def test_no_labels_no_edges():
    for empty in (Table.from_dense(np.zeros((4, 3))), Table.from_dense(-np.ones((4, 1)))):
        graph = from_cooccurrence(empty, 5)
        assert len(graph.rows) == 0
        assert len(graph.normalised().rows) == 0
        assert dense(graph.with_loops(3).normalised(), 3).tolist() == np.eye(3).tolist()


def test_loops_and_sums():
    edges = Edges(np.array([0, 1, 1, 2]), np.array([1, 0, 1, 0]), np.array([3.0, 1.0, 2.0, 0.0]))
    looped = edges.with_loops(3)
    np.testing.assert_array_equal(dense(looped, 3), [[1, 3, 0], [1, 2, 0], [0, 0, 1]])
    np.testing.assert_allclose(dense(looped.normalised(), 3), [[0.25, 0.75, 0], [1 / 3, 2 / 3, 0], [0, 0, 1]])
    np.testing.assert_array_equal(dense(looped.without_loops(), 3), [[0, 3, 0], [1, 0, 0], [0, 0, 0]])
    assert not edges.normalised().weights[-1]
    assert dense(identity(3), 3).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("kind", ["cooccurrence", "empty rows", "identity", "none"])
def test_graph_is_the_matrix(kind):
    edges = {
        "cooccurrence": from_cooccurrence(table(), 3),
        "empty rows": Edges(np.array([6, 2, 2]), np.array([1, 7, 0]), np.array([0.5, 2.0, 1.0])),
        "identity": identity(8),
        "none": Edges(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)),
    }[kind]
    graph = LabelGraph(edges, 8).double()
    labels = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    matrix = torch.from_numpy(dense(graph.edges(), 8))
    torch.testing.assert_close(graph(labels), labels @ matrix.T)
    weights = graph.weights.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(graph, (labels, weights))
    assert graph(labels[:0]).shape == (0, 8)
    np.testing.assert_allclose(dense(graph.edges(), 8), dense(edges, 8), rtol=1e-6)


def test_weights_can_be_replaced_and_are_clipped_at_zero():
    graph = LabelGraph(identity(3), 3)
    labels = torch.ones(2, 3)
    assert graph(labels, torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 2, 3]] * 2
    with torch.no_grad():
        graph.weights -= torch.tensor([2.0, 0.5, 1.0])
    assert graph.edges().weights.tolist() == [0, 0.5, 0]
    graph.clip()
    assert graph.weights.tolist() == [0, 0.5, 0]
    graph(labels).sum().backward()
    assert graph.weights.grad.tolist() == [2, 2, 2]  # an edge at 0 can come back
    assert not LabelGraph(identity(3), 3, learned=False).weights.requires_grad


CLASSES = Names(["dog", "cat", "sofa, red"])


def write(tmp_path, text):
    path = tmp_path / "graph.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        'dog,cat,0.5\ncat,dog,2\ndog,dog\n"sofa, red",cat,\n',
        'label,neighbour,weight\n\ndog, cat ,0.5\ncat,dog,2\ndog,dog,1\n"sofa, red",cat,1\n',
        "\ufeffdog;cat;0.5\r\ncat;dog;2e0\r\ndog;dog;1\r\nsofa, red;cat;1\r\n",
    ],
    ids=["plain", "header and blanks", "semicolons, mark and CRLF"],
)
def test_files_are_read(tmp_path, text):
    graph = from_file(write(tmp_path, text), CLASSES)
    np.testing.assert_array_equal(dense(graph, 3), [[1, 0.5, 0], [2, 0, 0], [0, 1, 0]])
    assert (np.diff(graph.rows) >= 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog,cat,0.5\ndgo,cat,1\n", r"line 2: no class is called 'dgo'. Fix: write 'dog'"),
        ("dog,cat,0.5\ncat,zebra,1\n", r"line 2: no class is called 'zebra'. Fix: use a class of the labels"),
        ("dog,cat,0.5\n\ncat,dog,much\n", r"line 3: 'much' is not a weight. Fix: use a number"),
        ("dog,cat,-1\n", r"line 1: '-1' is not a weight"),
        ("dog,cat,nan\n", r"line 1: 'nan' is not a weight"),
        ("dog,cat,inf\n", r"line 1: 'inf' is not a weight"),
        ("dog,cat,1\ncat,dog,1\ndog,cat,2\n", r"line 3: the edge from 'cat' to 'dog' is already on line 1"),
        ("dog,cat,1\ncat\n", r"line 2: 1 fields. Fix: write class,class,weight"),
        ("from,to,weight\n", r"no edge"),
        ("", r"the file is empty"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    with pytest.raises(LabelError, match=message) as caught:
        from_file(write(tmp_path, text), CLASSES)
    assert "graph.csv" in str(caught.value)
    assert caught.value.fix


def test_at_least_reweighted_and_transposed():
    edges = Edges(np.array([0, 0, 1, 2]), np.array([1, 2, 2, 2]), np.array([0.4, 0.9, 0.39, 1.0]))
    cut = edges.at_least(0.4)
    assert dense(cut, 3).tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 1]]
    graph = cut.reweighted(3, 0.2)
    np.testing.assert_allclose(graph.dense(3), [[0.8, 0.1, 0.1], [0, 0.8, 0], [0, 0, 0.8]])
    np.testing.assert_allclose(graph.transposed().dense(3), graph.dense(3).T)
    assert (np.diff(graph.transposed().rows) >= 0).all()
