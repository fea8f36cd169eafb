"""The graph neural network head: compared with a slow loop; its memory and its limits."""

from __future__ import annotations

import pytest
import step_checks
import torch

from halflabel.features.heads import Linear
from halflabel.methods import plcl as graph
from halflabel.methods.base import seeded
from halflabel.methods.plcl import EXACT_CLASSES, GnnHead

slow = step_checks.reference("graph")


def make(classes, steps=3, channels=4):
    return seeded(classes, lambda: GnnHead(Linear(channels, classes), classes, steps, node_size=0)).double()


def slow_propagate(head, x):
    update = dict(head.update.named_parameters())
    return torch.stack([slow.propagate(row, head.message.weight, head.message.bias, update, head.steps) for row in x])


def logits(images, classes, scale=2.0):
    return torch.randn(images, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(images)) * scale


@pytest.mark.parametrize(("images", "classes", "steps"), [(3, 4, 3), (1, 3, 1), (2, 1, 3), (1, 1, 2), (2, 2, 2)])
def test_is_the_slow_loop(images, classes, steps):
    head = make(classes, steps)
    x = logits(images, classes).requires_grad_()
    actual, expected = head.propagate(x), slow_propagate(head, x)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    learned = [x, *(p for name, p in head.named_parameters() if not name.startswith("inner"))]
    for gradient, expected_gradient in zip(
        torch.autograd.grad(actual.square().sum(), learned, materialize_grads=True),
        torch.autograd.grad(expected.square().sum(), learned, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


def test_many_classes_start_from_the_scores_of_the_inner_head():
    classes = EXACT_CLASSES + 200
    head = seeded(0, lambda: GnnHead(Linear(4, classes), classes)).double()
    x = logits(16, classes)
    assert head.update.hidden_size == 32
    with torch.no_grad():
        y = head.propagate(x)
    assert torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1] > 0.98
    assert (y[:, :150] - head.propagate(torch.cat([x[:, :150], -x[:, 150:]], 1))[:, :150]).abs().max() > 1e-6


@pytest.mark.parametrize("images", [7, 8, 2])
def test_a_batch_in_parts_has_the_same_scores_and_gradients(monkeypatch, images):
    """A batch in parts, computed again in the backward pass: same scores, same gradients, less memory."""
    head, x = make(6), logits(images, 6).requires_grad_()
    learned = [x, *head.message.parameters(), *head.update.parameters()]

    def run():
        saved_bytes = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            saved_bytes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = head.propagate(x)
        return y, torch.autograd.grad(y.square().sum(), learned), sum(saved_bytes.values())

    expected, expected_gradients, expected_bytes = run()
    monkeypatch.setattr(graph, "_MAX_STATES", 3 * 36)
    actual, gradients, part_bytes = run()
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)
    if images > 3:
        assert part_bytes < expected_bytes / 3
    with torch.no_grad():
        torch.testing.assert_close(head.propagate(x), expected, rtol=1e-12, atol=1e-12)
