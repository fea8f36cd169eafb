"""LL-Cp against the slow loop, whose labels stay; how many entries change, and which."""

from __future__ import annotations

import pytest
import step_checks as checks
import torch

from halflabel.methods.base import recipe
from halflabel.methods.large_loss import LargeLoss, largest

slow = checks.reference("large_loss")


@pytest.mark.parametrize("shape", [*checks.SHAPES, (9, 8)])
@pytest.mark.parametrize("ties", [False, True])
def test_ll_cp_is_the_slow_loop(shape, ties):
    logits, labels = checks.inputs(0, *shape, ties=ties)
    method = checks.begin(recipe("ll-cp").make(delta=4.0), labels)
    flipped = frozenset()
    for epoch in (1, 2, 3, 5):
        now = logits - epoch * (logits > 3)  # later epochs find other entries largest
        actual = checks.step(method, now, labels, epoch)
        checks.same(
            actual, checks.slow(lambda x, e=epoch, f=flipped: slow.large_loss(x, labels, e, "keep", 4, f)[0], now)
        )
        flipped = slow.large_loss(now, labels, epoch, "keep", 4, flipped)[1]
    assert {tuple(at) for at in method.relabel.flipped.values.nonzero().tolist()} == flipped


@pytest.mark.parametrize(
    ("scheme", "delta", "entries", "epoch", "k"),
    [
        ("reject", 0.5, 200, 1, 0),
        ("reject", 0.5, 200, 2, 1),  # exactly one: no second one by rounding
        ("reject", 7.0, 100, 2, 7),
        ("reject", 0.1, 1000, 4, 3),
        ("correct", 0.2, 640, 4, 4),
        ("keep", 0.1, 640, 1, 0),
        ("keep", 0.1, 640, 9, 1),
    ],
)
def test_count(scheme, delta, entries, epoch, k):
    assert LargeLoss(scheme, delta).count(entries, epoch) == k


def test_largest_includes_ties():
    values = torch.tensor([[3.0, 2.0, 2.0], [9.0, 2.0, 1.0]])
    among = torch.tensor([[True, True, True], [False, True, True]])
    assert largest(values, among, 0).sum() == 0
    assert largest(values, among, 1).tolist() == [[True, False, False], [False, False, False]]
    assert largest(values, among, 2).tolist() == [[True, True, True], [False, True, False]]
    assert largest(values, among, 99).tolist() == among.tolist()
    assert largest(values, torch.zeros_like(among), 3).sum() == 0


def test_evaluation_flips_nothing_for_good():
    logits, labels = checks.inputs(6, 8, 6)
    method = checks.begin(recipe("ll-cp").make(delta=10.0), labels)
    method.eval()
    checks.step(method, logits, labels, 2)
    assert not method.relabel.flipped.values.any()
