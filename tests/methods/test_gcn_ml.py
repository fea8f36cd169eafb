"""ML-GCN against slow loops: its graph, its classifiers, its loss."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.types import Batch

slow, shared = checks.reference("gcn_ml"), checks.reference("semantic")


def make(images=6, classes=4, channels=5, seed=0, **options):
    """A method on a small table, its model in float64, and a batch."""
    rng = np.random.default_rng(seed)
    table = Table.from_dense(rng.choice([-1, 0, 1, 1], (images, classes)))
    method = recipe("gcn-ml").make(vector_size=6, hidden=7, **options)
    torch.manual_seed(seed)
    model = Model(None, method.head(channels, classes))
    method.start(table, model)
    model = model.double()
    features = torch.from_numpy(rng.normal(size=(images, channels, 2, 3)))
    return table, method, model, Batch(torch.arange(images), (features,), torch.from_numpy(table.dense()))


@pytest.mark.parametrize(("tau", "p"), [(0.4, 0.2), (0.7, 0.5), (1.0, 0.2)])
def test_the_graph_is_the_slow_count(tau, p):
    table, _, model, _ = make(images=40, classes=6, tau=tau, p=p)
    expected = slow.graph(table.dense().tolist(), tau, p)
    np.testing.assert_allclose(model.head.graph.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("images", "classes"), [(6, 4), (1, 3), (5, 1), (1, 1)])
def test_step_and_gradient_are_the_slow_loop(images, classes):
    _, method, model, batch = make(images, classes)
    logits = [slow.logits(image, model.head) for image in batch.views[0]]
    expected = shared.bce(logits, shared.known(batch.labels.tolist()))
    actual = method.step(model, batch, 1)
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    if (batch.labels == 0).all():
        return
    weights = list(model.parameters())
    for gradient, expected_gradient in zip(
        *(torch.autograd.grad(loss, weights) for loss in (actual, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
