"""Softmax cross-entropy against the loop."""

import numpy as np
import pytest
import step_checks
import torch

from halflabel.methods.base import recipe
from halflabel.methods.softmax import Softmax
from halflabel.types import Batch, Targets

slow = step_checks.reference("softmax")


def _example(images, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-6, 7, (images, classes), generator=generator).double() / 2
    return x, torch.randint(-1, 2, (images, classes), generator=generator)


def _targets(labels, dtype=torch.float64):
    return Targets((labels > 0).to(dtype), (labels < 0).to(dtype))


@pytest.mark.parametrize(("images", "classes"), [(8, 9), (1, 5), (6, 1)])
def test_value_and_gradient_are_those_of_the_loop(images, classes):
    x, labels = _example(images, classes, seed=classes)
    labels[0] = 0
    x.requires_grad_()
    loss = Softmax()(x, _targets(labels))
    loss.sum().backward()
    for i in range(images):
        value, gradient = slow.loss(x[i].tolist(), labels[i].tolist())
        assert loss[i].sum().item() == pytest.approx(value, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(x.grad[i], gradient, rtol=1e-9, atol=1e-9)
    assert (loss[labels <= 0] == 0).all()


def test_one_positive_each_is_the_usual_cross_entropy():
    x, _ = _example(7, 5, seed=1)
    classes = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    labels = torch.nn.functional.one_hot(classes, 5).to(torch.int8)  # the others unknown
    method = recipe("softmax").make()
    targets = method.relabel(Batch(torch.arange(7), (), labels), x, 1)
    loss = method.reduce(method.loss(x, targets), targets)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(x, classes))
    absent = method.relabel(Batch(torch.arange(7), (), 2 * labels - 1), x, 1)
    torch.testing.assert_close(method.reduce(method.loss(x, absent), absent), loss)


def test_gradcheck_and_order_of_images():
    x, labels = _example(4, 6, seed=2)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(Softmax()(x[order], _targets(labels[order])), Softmax()(x, _targets(labels))[order])
    assert torch.autograd.gradcheck(lambda x: Softmax()(x, _targets(labels)).sum(), x.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_logits_in_half_precision(dtype):
    x = torch.tensor([[1e4, -1e4, 1e4], [1.0, 2.0, 3.0]]).to(dtype).requires_grad_()
    loss = Softmax()(x, _targets(torch.tensor([[-1, 1, 1], [0, 0, 0]]), dtype))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert x.grad.isfinite().all()
    assert (x.grad[1] == 0).all()
