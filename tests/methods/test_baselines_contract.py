"""Properties of every pair-loss baseline: finite values, gradients, known labels, order of the batch."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from halflabel.features.heads import Linear, Model
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe
from halflabel.types import Batch, Output, Sweep

OPTIONS = {
    "an": {},
    "an-ls": {},
    "n-ls": {},
    "wan": {},
    "l1r": {"of": "scores"},
    "l2r": {"of": "scores"},
    "entmin": {},
    "em": {},
    "em-apl": {"apl_from": 1, "apl_to": 3},
    "focal": {},
    "asl": {},
    "epr": {},
    "role": {},
    "role-li": {},
}


def make_labels(images: int = 6, classes: int = 5) -> Tensor:
    labels = torch.randint(-1, 2, (images, classes), generator=torch.Generator().manual_seed(3), dtype=torch.int8)
    labels[-1] = 0
    return labels


def started(name: str, labels: Tensor) -> Method:
    """A method in mid-training: its table known and, where it takes part in sweeps, one sweep absorbed."""
    method = recipe(name).make(**OPTIONS[name])
    method.start(Table.from_dense(labels.numpy()))
    if method.relabel.wants_sweep(1):
        logits = torch.randn(labels.shape, generator=torch.Generator().manual_seed(4))
        method.relabel.absorb(Sweep(logits, logits), 1)
    return method


def step(method: Method, logits: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
    batch = Batch(torch.arange(len(logits)) if index is None else index, (logits,), labels)
    return method.step(lambda view: Output(view, view), batch, 2)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_finite_at_large_logits(name, dtype):
    labels = make_labels()
    sign = torch.tensor([1, -1]).repeat(15).view(6, 5)
    for logits in (1e4 * sign, -1e4 * sign, 0 * sign):
        x = logits.to(dtype).requires_grad_()
        loss = step(started(name, labels), x, labels)
        assert torch.isfinite(loss)
        assert torch.isfinite(torch.autograd.grad(loss, x)[0]).all()


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"role", "role-li"}))  # their targets have no gradient
def test_gradcheck(name):
    labels = make_labels(4, 3)
    method = started(name, labels).double()
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5), requires_grad=True)
    assert gradcheck(lambda x: step(method, x, labels), x)


@pytest.mark.parametrize("name", OPTIONS)
def test_charges_are_not_negative_and_known_labels_are_kept(name):
    labels = make_labels()
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(6))
    method = started(name, labels)
    pos, neg = method.relabel(Batch(torch.arange(6), (logits,), labels), logits, 2)
    assert (pos >= 0).all()
    assert (neg >= 0).all()
    assert (pos > neg)[labels > 0].all()
    assert (neg > pos)[labels < 0].all()
    assert getattr(method, "changes_known", False) == (name in {"an-ls", "role", "role-li"})  # as their pages say
    if not getattr(method, "changes_known", False):
        assert pos[labels > 0].eq(1).all()
        assert neg[labels > 0].eq(0).all()
        assert neg[labels < 0].eq(1).all()
        assert pos[labels < 0].eq(0).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_order_of_the_batch_does_not_matter(name):
    labels = make_labels()
    logits = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    method = started(name, labels)
    results = []
    for rows in (torch.arange(6), order):
        x = logits[rows].requires_grad_()
        loss = step(method, x, labels[rows], rows)
        results.append((loss.detach(), torch.autograd.grad(loss, x)[0]))
    (loss, grad), (moved_loss, moved_grad) = results
    torch.testing.assert_close(moved_loss, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moved_grad, grad[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["n-ls", "wan", "entmin", "em", "em-apl", "an"])
def test_with_all_labels_known_it_is_cross_entropy(name):
    labels = make_labels() * 2 + 1
    labels = labels.clamp(-1, 1)
    assert (labels != 0).all()
    logits = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    expected = step(recipe("bce").make(), logits, labels)
    torch.testing.assert_close(step(started(name, labels), logits, labels), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_down_the_gradient_lowers_the_loss(name):
    """The whole way from features through a head, with the defaults."""
    torch.manual_seed(0)
    labels = make_labels(8, 4)
    features = torch.randn(8, 3)
    model = Model(None, Linear(3, 4))
    method = recipe(name).make()
    method.start(Table.from_dense(labels.numpy()))
    batch = Batch(torch.arange(8), (features,), labels)
    optimizer = torch.optim.SGD(nn.ModuleList([model, method]).parameters(), lr=1e-2)
    first = method.step(model, batch, 1)
    first.backward()
    optimizer.step()
    assert method.step(model, batch, 1) < first
