"""Hill and SPLC against the slow loop, the published numbers, and half precision, order and state."""

from __future__ import annotations

import pytest
import step_checks as checks
import torch

from halflabel.methods.base import recipe
from halflabel.methods.hill import Hill
from halflabel.methods.parts.losses import Focal
from halflabel.types import Targets

slow = checks.reference("hill")
MAKERS = [
    lambda: recipe("hill").make(),
    lambda: recipe("splc").make(),
    lambda: recipe("splc").make(released=True, tau=0.4, margin=0.5, gamma=1.5),
]


@pytest.mark.parametrize("shape", checks.SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_hill_is_the_slow_loop(shape, ties):
    logits, labels = checks.inputs(0, *shape, ties=ties)
    for options in ({}, {"margin": 0.3, "gamma": 1.0, "lamb": 1.2}):
        loss = checks.step(recipe("hill").make(**options), logits, labels, 1)
        checks.same(loss, checks.slow(lambda x, o=options: slow.hill(x, labels, **o), logits))


@pytest.mark.parametrize("shape", checks.SHAPES)
@pytest.mark.parametrize("released", [False, True])
def test_splc_is_the_slow_loop(shape, released):
    logits, labels = checks.inputs(1, *shape)
    for epoch in (1, 2, 3):
        for options in ({}, {"margin": 0.3, "gamma": 1.0, "tau": 0.3, "start_epoch": 3}):
            loss = checks.step(recipe("splc").make(released=released, **options), logits, labels, epoch)
            expected = checks.slow(
                lambda x, e=epoch, o=options: slow.splc(x, labels, e, released=released, **o), logits
            )
            checks.same(loss, expected)


@pytest.mark.parametrize("case", checks.golden("hill"), ids=lambda case: case["name"])
def test_hill_equals_the_published_values(case):
    loss, grad = checks.step(
        recipe("hill").make(**case["options"]), torch.tensor(case["logits"], dtype=torch.float64), case["labels"], 1
    )
    images = len(case["labels"])
    checks.same((loss * images, grad * images), (case["loss"], case["grad"]), 1e-10)


@pytest.mark.parametrize("case", checks.golden("splc"), ids=lambda case: case["name"])
def test_splc_released_equals_the_published_values(case):
    options = dict(case["options"])
    epoch = options.pop("epoch") + 1  # there epochs count from 0
    start = options.pop("change_epoch") + 1
    method = recipe("splc").make(released=True, start_epoch=start, **options)
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    loss, grad = checks.step(method, logits, case["labels"], epoch)
    images = len(case["labels"])
    checks.same((loss * images, grad * images), (case["loss"], case["grad"]), 1e-10)
    targets = method.relabel(checks.batch(logits, case["labels"]), logits, epoch)
    flipped = (targets.pos > 0) & (torch.tensor(case["labels"]) <= 0)
    assert flipped.tolist() == torch.tensor(case["flipped"]).bool().tolist()


def test_splc_differs_from_the_released_code_where_it_says_so():
    sure = torch.tensor([[3.0, 3.0]], dtype=torch.float64)
    labels = [[-1, 0]]
    targets = recipe("splc").make().relabel(checks.batch(sure, labels), sure, 2)
    released_targets = recipe("splc").make(released=True).relabel(checks.batch(sure, labels), sure, 2)
    assert targets.pos.tolist() == [[0, 1]]
    assert released_targets.pos.tolist() == [[1, 1]]
    _, grad = checks.step(recipe("splc").make(), sure, labels, 2)
    _, plain = checks.step(recipe("splc").make(released=True), sure, labels, 2)
    assert abs(grad[0, 1]) > abs(plain[0, 1])  # the margin asks for more


@pytest.mark.parametrize("loss", [Hill(), Focal(margin=1.0), Focal(1.3, margin=0.5)])
def test_gradcheck(loss):
    logits, _ = checks.inputs(2, 4, 5)
    targets = Targets(torch.rand(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: loss(x, targets), logits.requires_grad_())


@pytest.mark.parametrize("make", MAKERS)
def test_half_precision_order_and_state(make):
    checks.check_half(make(), (1, 2))
    checks.check_targets(make(), (1, 2), keeps_known=make is not MAKERS[2])
    checks.check_order(make, (1, 2))
    assert not make().state_dict()
