"""GR against the slow loop, the published numbers, and half precision, order and state."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.methods.base import recipe
from halflabel.methods.gr import GeneralisedCE
from halflabel.types import Targets

slow = checks.reference("gr")


def make(**options):
    return recipe("gr").make(**options)


@pytest.mark.parametrize("shape", checks.SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_is_the_slow_loop(shape, ties):
    logits, labels = checks.inputs(0, *shape, ties=ties)
    for epoch in (1, 4, 8, 9, 30):
        checks.same(
            checks.step(make(), logits, labels, epoch), checks.slow(lambda x, e=epoch: slow.gr(x, labels, e), logits)
        )
    custom = make(
        w_first=1.0, w_last=3.0, b_first=-1.0, b_last=0.5, mu_last=0.6, sigma_first=1.0, q_pos=0.3, q_neg=0.7, span=5
    )
    expected = checks.slow(
        lambda x: slow.gr(x, labels, 3, (1.0, 3.0), (-1.0, 0.5), (0.5, 0.6), (1.0, 0.5), 0.3, 0.7, 5), logits
    )
    checks.same(checks.step(custom, logits, labels, 3), expected)


@pytest.mark.parametrize("case", checks.golden("gr"), ids=lambda case: case["name"])
def test_equals_the_published_values(case):
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    loss = checks.step(make(), logits, case["labels"], case["options"]["epoch"])
    checks.same(loss, (case["loss"], case["grad"]), 1e-10)


def test_full_labels_give_cross_entropy():
    logits, labels = checks.inputs(1, 6, 5)
    labels = np.where(labels > 0, 1, -1).astype(np.int8)
    checks.same(checks.step(make(), logits, labels, 4), checks.step(recipe("bce").make(), logits, labels, 4), 1e-12)


@pytest.mark.parametrize(("q_pos", "q_neg"), [(0.01, 1.0), (0.0, 0.5)])
def test_gradcheck(q_pos, q_neg):
    logits, _ = checks.inputs(2, 4, 5)
    targets = Targets(torch.rand(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64))
    loss = GeneralisedCE(q_pos, q_neg)
    assert torch.autograd.gradcheck(lambda x: loss(x, targets), logits.requires_grad_())


def test_small_q_nears_cross_entropy():
    logits, _ = checks.inputs(3, 4, 5)
    actual, exact = GeneralisedCE(1e-7, 1e-7).pair(logits), GeneralisedCE(0.0, 0.0).pair(logits)
    for loss, expected in zip(actual, exact, strict=True):
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


def test_half_precision_order_and_state():
    checks.check_half(make(), (1, 8))
    checks.check_targets(make(), (1, 4, 9))
    checks.check_order(make, (1, 8))
    assert not make().state_dict()
