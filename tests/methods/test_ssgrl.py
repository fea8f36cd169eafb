"""SSGRL's head against slow loops; its graph and vectors, from a table or a saved model."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.parts.semantic import SemanticHead
from halflabel.types import Batch

slow = checks.reference("semantic")
SMALL = {"vector_size": 6, "width": 3, "rank": 4}


def labels(images=6, classes=4, seed=0):
    return np.random.default_rng(seed).choice([-1, 0, 1, 1], (images, classes))


def make(images=6, classes=4, channels=5, seed=0, size=(2, 3), **options):
    table = Table.from_dense(labels(images, classes, seed))
    method = recipe("ssgrl").make(**{**SMALL, **options})
    torch.manual_seed(seed)
    model = Model(None, method.head(channels, classes))
    method.start(table, model)
    model = model.double().eval()
    torch.nn.init.normal_(model.head.attention.weight.weight)  # it starts at zero, where all places count alike
    features = torch.from_numpy(np.random.default_rng(1).normal(size=(images, channels, *size)))
    return table, method, model, Batch(torch.arange(images), (features,), torch.from_numpy(table.dense()))


def test_graph_of_conditional_probabilities_and_unit_vectors():
    rows = np.array([[1, 1], [1, -1], [1, 0], [-1, -1], [0, 1]])
    method = recipe("ssgrl").make(**SMALL)
    head = method.head(5, 2)
    method.start(Table.from_dense(rows), Model(None, head))
    # Row c, column c': P(c' | c) among images where both are known, one image more counted.
    torch.testing.assert_close(head.graph, torch.tensor([[0, 1 / 3], [1 / 2, 0]]))
    assert float(head.vectors.square().sum(1).mean()) == pytest.approx(1)


@pytest.mark.parametrize(("images", "classes"), [(4, 4), (1, 3), (3, 1), (1, 1), (2, 13)])
@pytest.mark.parametrize("size", [(2, 3), (1, 2), (1, 1)])  # layers are applied to 1 place, or 2 of 13 labels
@pytest.mark.parametrize("options", [{}, {"width": 0}, {"steps": 0}])
@pytest.mark.parametrize("parts", [1 << 24, 1])
def test_step_and_gradient_are_the_slow_loop(images, classes, size, options, parts, monkeypatch):
    monkeypatch.setattr("halflabel.methods.parts.semantic._CHUNK_NUMBERS", parts)
    _, method, model, batch = make(images, classes, size=size, **options)
    batch.labels[0, 0] = 1
    scored = [slow.head(image, model.head) for image in batch.views[0]]
    expected = slow.bce([row for row, _ in scored], slow.known(batch.labels.tolist()))
    output = model(batch.views[0])
    for image, (logits, actual) in enumerate(scored):
        torch.testing.assert_close(output.logits[image], torch.stack(logits), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(output.per_class[image], torch.stack(actual), rtol=1e-9, atol=1e-9)
    loss = method.step(model, batch, 1)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    weights = list(model.parameters())
    grads = (
        torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True) for value in (loss, expected)
    )
    for gradient, expected_gradient in zip(*grads, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-9)


def test_dropout_takes_channels_at_all_places():
    head = SemanticHead(50, 2, width=0, dropout=0.5).train()
    places = head._places(torch.ones(3, 50, 2, 3))
    assert set(places.unique().tolist()) == {0.0, 2.0}
    assert bool((places == places[:, :1]).all())
