"""IMCL: the label graph, similarities of images and the memory of features."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from imcl_examples import bce_loss, begin, checks, inputs, matrix_of, reference_step, slow, step

from halflabel.errors import LabelError, UserError
from halflabel.methods.imcl import impute
from halflabel.methods.parts.matching_pursuit import Part, joint_omp
from halflabel.types import Sweep


def test_label_graph_from_a_file(tmp_path):
    view, labels = inputs(5, 6, 3)
    path = tmp_path / "graph.csv"
    path.write_text("class,class,weight\n0,1,3\n2,2,5\n2,0,5\n")
    method = begin(labels, graph=str(path))
    np.testing.assert_allclose(matrix_of(method, 3), [[0.25, 0.75, 0], [0, 1, 0], [0.5, 0, 0.5]], atol=1e-7)
    checks.same(step(method, view, labels), reference_step(method, view, labels))
    path.write_text("0,9,1\n")
    with pytest.raises(LabelError, match=r"graph.csv, line 1: no class is called '9'"):
        begin(labels, graph=str(path))
    with pytest.raises(UserError, match=r"no label graph 'wiki'.*graph=.cooccurrence."):
        begin(labels, graph="wiki")


def test_side_information_brings_groups_together(tmp_path):
    view, labels = inputs(6, 8, 3)
    path = tmp_path / "side.csv"
    path.write_text("image,species\n" + "".join(f"{i},{'wren' if i % 2 else 'owl'}\n" for i in range(7)) + "77,crow\n")
    sides = np.array([[i % 2 == 0, i % 2 == 1] if i < 7 else [0, 0] for i in range(8)], float)
    for weight in (1.0, 10.0):
        method = begin(labels, side=str(path), side_weight=weight, k=2, graph="identity")
        loss = step(method, view, labels)
        checks.same(loss, reference_step(method, view, labels, k=2, sides=weight * sides))
    groups = torch.tensor([0, 1, 0, 1, 0, 1, 0, -1])
    index = method.neighbours(view[:, 3:], view[:, :3], torch.from_numpy(labels), groups).index[:7, 0]
    assert torch.equal(groups[index], groups[:7])


def test_images_in_memory_can_be_similar():
    view, labels = inputs(7, 12, 4)
    method = begin(labels, dictionary=5, k=3)
    parts = [np.array([3, 0, 1, 2]), np.array([5, 4, 6]), np.array([2, 7, 6])]
    memory: list[int] = []  # oldest first
    values: dict[int, tuple[list[float], list[float]]] = {}
    for number, part in enumerate(parts):
        shifted = view[part] + 0.1 * number
        order = np.argsort(part)
        around = [values[i] for i in _by_place(method, part)]
        loss = step(method, shifted, labels[part], index=part)
        expected = reference_step(method, shifted[order], labels[part][order], k=3, memory=around)
        expected = (expected[0], expected[1][np.argsort(order)], expected[2])
        checks.same(loss, expected)
        for i in order:
            y = slow.plain(slow.impute([list(shifted[i, :4])], labels[part[i]][None]))[0]
            values[int(part[i])] = (list(y), shifted[i, 4:].tolist())
            memory = [image for image in memory if image != part[i]] + [int(part[i])]
        assert set(method.relabel.number.tolist()) - {-1} <= set(memory[-5:])
    assert sorted(method.relabel.number.tolist()) == [-1, 2, 5, 6, 7]  # where 6 was is a free place
    method.eval()
    before = method.relabel.number.clone()
    step(method, view[8:], labels[8:], index=np.arange(8, 12))
    assert torch.equal(method.relabel.number, before)


def _by_place(method, part):
    """Images in memory that are not in the batch, in the order of their places, as ties go by place."""
    return [i for i in method.relabel.number.tolist() if i >= 0 and i not in part]


def test_fixed_similarities_are_those_of_the_start():
    view, labels = inputs(9, 7, 4)
    method = begin(labels, image_similarity="fixed", k=3)
    method.plan(3)
    assert [epoch for epoch in range(1, 5) if method.relabel.wants_sweep(epoch)] == [2]
    start = view.clone()
    start[5] = math.nan  # could not be read
    plain = bce_loss(view, labels)
    assert float(step(method, view, labels, 3)[0]) == pytest.approx(plain)  # before the sweep there is nothing
    method.relabel.absorb(Sweep(start[:, :4], start[:, 4:]), 2)
    with torch.no_grad():
        method.graph.weights *= 1.7  # what A has learned does not matter for who is similar
    later = view + torch.randn(view.shape, generator=torch.Generator().manual_seed(0), dtype=view.dtype).abs()
    y = impute(torch.from_numpy(labels), view[:, :4])
    f = view[:, 4:].clone()
    y[5], f[5] = 0, 0
    matching = (y.numpy(), f.numpy(), (matrix_of(method, 4) / 1.7).numpy())
    expected = reference_step(method, later, labels, k=3, matching=matching)
    checks.same(step(method, later, labels, 3), expected)


def test_neighbours_of_a_set(monkeypatch):
    view, labels = inputs(12, 9, 4)
    method = begin(labels, k=3)
    logits, features = view[:, :4].clone(), view[:, 4:]
    logits[3] = math.nan
    neighbours = method.neighbours(features, logits, torch.from_numpy(labels))
    read = [i for i in range(9) if i != 3]
    y = impute(torch.from_numpy(labels), logits)[read]
    expected = joint_omp(
        [Part(y, y @ matrix_of(method, 4).T, 1.0, y), Part(features[read], features[read], 0.5)],
        3,
        allowed=~torch.eye(8, dtype=torch.bool),
    )
    numbers = torch.tensor([*read, -1])
    assert torch.equal(neighbours.index[read], numbers[expected.index])
    assert (neighbours.index[3] == -1).all()
    assert not (neighbours.index == 3).any()
    for weights, expected_weights in zip(neighbours.weights, expected.weights, strict=True):
        torch.testing.assert_close(weights[read], expected_weights)
    monkeypatch.setattr("halflabel.methods.imcl._QUERIES", 2)
    blockwise = method.neighbours(features, logits, torch.from_numpy(labels))
    assert torch.equal(blockwise.index, neighbours.index)
    none = method.neighbours(features[:0], logits[:0], torch.from_numpy(labels[:0]))
    assert none.index.shape == (0, 3)


def test_large_memories_are_refused(monkeypatch):
    view, labels = inputs(0, 6, 4)
    monkeypatch.setattr("halflabel.methods.parts.relabel.LARGEST", 100)
    with pytest.raises(UserError, match=r"dictionary 6 would store 0.0 GB about 6 images"):
        step(begin(labels, dictionary=6), view, labels)
    fixed = begin(labels, image_similarity="fixed")
    with pytest.raises(UserError, match="image_similarity fixed would store"):
        fixed.relabel.absorb(Sweep(view[:, :4], view[:, 4:]), 1)
    with pytest.raises(UserError, match="image_similarity fixed would store"):
        step(fixed, view, labels, 1)  # not only when the logistic epochs are over
    monkeypatch.setattr("halflabel.methods.parts.relabel.LARGEST", 95)  # too little for the labels alone
    with pytest.raises(UserError, match="image_similarity fixed would store"):
        begin(labels, image_similarity="fixed")
