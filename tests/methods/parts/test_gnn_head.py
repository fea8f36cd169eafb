"""The graph neural network head: compared with a slow loop; its memory and its limits."""

from __future__ import annotations

import pytest
import step_checks
import torch

from halflabel.features.heads import Ensemble, Linear, Weldon
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


def test_gradcheck():
    head = make(3)
    assert torch.autograd.gradcheck(head.propagate, logits(2, 3).requires_grad_())


def test_a_single_class_gets_no_messages():
    """With one class the score depends on the GRU alone: the message layer does not matter."""
    head = make(1)
    before = head.propagate(logits(4, 1))
    with torch.no_grad():
        head.message.weight.fill_(9.0)
        head.message.bias.fill_(9.0)
    torch.testing.assert_close(head.propagate(logits(4, 1)), before)


def test_classes_exchange_messages_but_images_do_not():
    head = make(5)
    x = logits(3, 5)
    moved = x.clone()
    moved[0, 2] += 1
    change = head.propagate(moved) - head.propagate(x)
    assert (change[0] != 0).all()
    assert (change[1:] == 0).all()


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


def test_memory_per_image_is_as_documented():
    classes, steps = 30, 3
    head = seeded(0, lambda: GnnHead(Linear(4, classes), classes, steps))
    weights = {parameter.untyped_storage().data_ptr() for parameter in head.parameters()}
    saved_bytes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        head.propagate(torch.randn(8, classes, requires_grad=True))
    assert sum(saved_bytes.values()) <= 1.1 * 8 * 36 * steps * classes**2


@pytest.mark.parametrize("classes", [6, 20, 80])
def test_starts_from_the_scores_of_the_inner_head(classes):
    head = make(classes)
    x = logits(64, classes)
    with torch.no_grad():
        y = head.propagate(x)
    assert torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1] > 0.98
    assert 1 < float((x * y).sum() / x.square().sum()) < 1.3


def test_wraps_heads_of_every_kind():
    maps = torch.randn(2, 4, 3, 3)
    weldon = seeded(0, lambda: GnnHead(Weldon(4, 5), 5))
    assert weldon.needs_maps
    output = weldon(maps)
    torch.testing.assert_close(output.logits, weldon.propagate(weldon.inner(maps).logits))
    torch.testing.assert_close(output.maps, weldon.inner(maps).maps)
    torch.testing.assert_close(weldon.class_maps(maps), weldon.inner.class_maps(maps))
    torch.testing.assert_close(output.features, maps.mean(dim=(2, 3)))
    linear = GnnHead(Linear(4, 5), 5)
    assert not linear.needs_maps
    assert linear(maps.mean(dim=(2, 3))).maps is None
    ensemble = Ensemble([GnnHead(Linear(4, 5), 5) for _ in range(2)])
    assert ensemble(maps).members.shape == (2, 2, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_is_finite_in_half_precision(dtype):
    head = seeded(0, lambda: GnnHead(Linear(4, 40), 40)).to(dtype)
    x = torch.full((2, 40), 1e4, dtype=dtype)
    x[1] = -x[1]
    x.requires_grad_()
    y = head.propagate(x)
    assert y.isfinite().all()
    y.float().mean().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.message.parameters())
