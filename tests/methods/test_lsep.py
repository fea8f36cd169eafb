"""LSEP against the pair loop."""

import numpy as np
import pytest
import step_checks
import torch

from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.lsep import LSEP
from halflabel.types import Batch, Targets

slow = step_checks.reference("lsep")


def _example(images, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-6, 7, (images, classes), generator=generator).double() / 2  # with ties
    labels = torch.randint(-1, 2, (images, classes), generator=generator)
    return x, labels


def _targets(labels, dtype=torch.float64):
    return Targets((labels > 0).to(dtype), (labels < 0).to(dtype))


@pytest.mark.parametrize(("images", "classes"), [(8, 9), (1, 5), (6, 1), (12, 2)])
def test_value_and_gradient_are_those_of_the_pair_loop(images, classes):
    x, labels = _example(images, classes, seed=classes)
    labels[0] = 0
    x.requires_grad_()
    loss = LSEP()(x, _targets(labels))
    loss.sum().backward()
    for i in range(images):
        value, gradient = slow.loss(x[i].tolist(), labels[i].tolist())
        assert loss[i].sum().item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(x.grad[i], gradient, rtol=1e-9, atol=1e-9)
    assert (loss[labels <= 0] == 0).all()


@pytest.mark.parametrize("labels", [[1, 1, 1], [-1, -1, -1], [0, 0, 0], [0, 1, 0]])
def test_images_without_a_pair_cost_nothing(labels):
    x = torch.tensor([[3.0, -2.0, 1e4]], requires_grad=True)
    loss = LSEP()(x, _targets(torch.tensor([labels]), torch.float32))
    loss.sum().backward()
    assert loss.tolist() == [[0.0, 0.0, 0.0]]
    assert x.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_gradcheck():
    x, labels = _example(4, 6, seed=1)
    assert torch.autograd.gradcheck(lambda x: LSEP()(x, _targets(labels)).sum(), x.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_logits_in_half_precision(dtype):
    x = torch.tensor([[1e4, -1e4, 1e4, -1e4]]).to(dtype).requires_grad_()
    loss = LSEP()(x, _targets(torch.tensor([[-1, 1, 1, 0]]), dtype))
    loss.sum().backward()
    assert loss.sum().item() == pytest.approx(2e4, rel=1e-2)
    assert x.grad.isfinite().all()


def test_order_of_images_and_the_whole_method():
    x, labels = _example(6, 5, seed=2)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(LSEP()(x[order], _targets(labels[order])), LSEP()(x, _targets(labels))[order])
    method = recipe("lsep").make()
    method.start(Table.from_dense(labels.numpy()))
    targets = method.relabel(Batch(torch.arange(6), (), labels.to(torch.int8)), x, 1)
    expected = sum(slow.loss(a, b)[0] for a, b in zip(x.tolist(), labels.tolist(), strict=True)) / 6
    assert method.reduce(method.loss(x, targets), targets).item() == pytest.approx(expected)


def test_with_positives_only_unknown_is_absent():
    method = recipe("lsep").make()
    labels = torch.tensor([[1, 0], [0, 1]], dtype=torch.int8)
    method.start(Table.from_dense(labels.numpy()))
    targets = method.relabel(Batch(torch.arange(2), (), labels), torch.zeros(2, 2), 1)
    assert targets.neg.tolist() == [[0, 1], [1, 0]]
