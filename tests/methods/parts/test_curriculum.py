"""Curriculum labelling against the slow loop, its schedule, and its state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import step_checks
import torch

from halflabel.errors import UserError
from halflabel.evaluation.thresholded import completion_rates
from halflabel.labels.table import Table
from halflabel.methods.parts.curriculum import STRATEGIES, Curriculum
from halflabel.system import memory
from halflabel.system.rng import hash_names
from halflabel.types import Batch, Sweep

slow = step_checks.reference("curriculum")

SHAPES = [(25, 6), (9, 1), (1, 4), (1, 1)]


def make_labels(images, classes, share=0.4):
    rng = np.random.default_rng(images * 31 + classes)
    labels = rng.choice([-1, 1], (images, classes)) * (rng.random((images, classes)) < share)
    labels[images // 2] = 0  # nothing known of one image
    return labels.astype(np.int8)


def make_table(labels):
    return Table.from_dense(labels, images=[f"photo {i * 7 % 1009}" for i in range(len(labels))])


def make_sweep(shape, seed, *, tied=False, unread=True, passes=False):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator) * 4
    mean, spread = torch.randn(shape, generator=generator) * 4, torch.rand(shape, generator=generator)
    if tied:
        logits, mean, spread = logits.round(), mean.round(), (10 * spread).round() / 10
    if unread and shape[0] > 1:
        for values in (logits, mean, spread):
            values[0] = math.nan
    return Sweep(logits, logits, mean if passes else None, spread if passes else None)


def as_lists(values):
    return [None if row[0] != row[0] else row for row in values.tolist()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_labels_equal_the_slow_loop_after_every_sweep(strategy, shape, tied):
    labels = make_labels(*shape)
    table = make_table(labels)
    relabel = Curriculum(strategy, before="3,5,6", block=4)
    relabel.start(table)
    order = np.argsort(hash_names(table.images.array), kind="stable").tolist()
    blocks = [order[first : first + 4] for first in range(0, len(order), 4)]
    expected = labels.tolist()
    theta = {"a": 2, "b": 0.8, "c": 5, "d": 2, "e": 0.3, "2steps": 0}[strategy]
    times = 0
    for epoch in range(1, 8):
        due = epoch in ((2,) if strategy == "2steps" else (2, 4, 5))
        assert relabel.wants_sweep(epoch) == due
        if not due:
            continue
        sweep = make_sweep(shape, epoch, tied=tied, passes=strategy == "e", unread=epoch < 5)
        scores = as_lists(sweep.mean if strategy == "e" else sweep.logits)
        doubt = sweep.spread.square().tolist() if strategy == "e" else None
        expected = slow.add_labels(strategy, theta, scores, doubt, expected, blocks)
        log = relabel.absorb(sweep, epoch)
        assert relabel.guesses().tolist() == expected
        guessed, known = np.array(expected), labels
        assert log["weak_positives"] == ((guessed > 0) & (known == 0)).sum()
        assert log["weak_negatives"] == ((guessed < 0) & (known == 0)).sum()
        assert log["label_proportion"] == pytest.approx((guessed != 0).mean())
        assert log["label_proportion"] == pytest.approx(completion_rates(guessed, known, known).label_proportion)
        times += 1
    assert times
    if shape == (25, 6):
        assert log["weak_positives"] > 0
        assert (log["weak_negatives"] > 0) == (strategy != "c")


def test_labels_at_the_thresholds():
    """Eq. 8: x ≥ θ is present, x < −θ absent; eq. 11: U ≤ θ is sure."""
    logits = torch.tensor([[2.0, -2.0, 2.1, -2.1, 1.9, 0.0]])
    table = Table.from_dense(np.zeros((1, 6), np.int8))
    for strategy, expected in (("a", [1, 0, 1, -1, 0, 0]), ("2steps", [1, -1, 1, -1, 1, 1])):
        relabel = Curriculum(strategy, before="2")
        relabel.start(table)
        relabel.absorb(Sweep(logits, logits), 1)
        assert relabel.guesses().tolist() == [expected]
    sure = Curriculum("e", 0.25, "2", passes=7)
    assert sure.passes == 7
    sure.start(table)
    spread = torch.tensor([[0.5, 0.51, 0.0, 0.6, 0.5, 0.5]])
    sure.absorb(Sweep(logits, logits, logits, spread), 1)
    assert sure.guesses().tolist() == [[1, 0, 1, 0, 1, 1]]


@pytest.mark.parametrize(
    ("epochs", "before"),
    [(20, [10, 15]), (40, [20, 30]), (10, [5, 8]), (5, [3, 4]), (4, [2, 3]), (3, [2]), (2, [2]), (1, [2])],
)
def test_the_schedule_is_scaled_to_the_epochs(epochs, before):
    relabel = Curriculum("a")
    relabel.plan(epochs)
    assert relabel.before == before
    fixed = Curriculum("a", before="15, 10,10")
    fixed.plan(epochs)
    assert fixed.before == [10, 15]
    once = Curriculum("2steps")
    once.plan(epochs)
    assert once.before == before[:1]


def test_known_labels_win_and_weak_labels_have_the_same_loss():
    labels = make_labels(20, 4)
    relabel = Curriculum("2steps", before="2")
    relabel.start(make_table(labels))
    index = torch.tensor([3, 10, 0])
    batch = Batch(index, (), torch.from_numpy(labels)[index])
    logits = torch.zeros(3, 4)
    pos, neg = relabel(batch, logits, 1)
    assert torch.equal(pos, (batch.labels > 0).float())
    assert torch.equal(neg, (batch.labels < 0).float())
    sweep = make_sweep((20, 4), 3)
    relabel.absorb(sweep, 1)
    pos, neg = relabel(batch, logits, 2)
    known = batch.labels != 0
    weak = torch.where(sweep.logits[index] >= 0, 1, -1) * ~sweep.logits[index].isnan()
    merged = torch.where(known, batch.labels, weak)
    assert torch.equal(pos, (merged > 0).float())
    assert torch.equal(neg, (merged < 0).float())
    assert (pos + neg)[:2].eq(1).all()  # image 0 could not be read
    opposite = Batch(index, (), -batch.labels)
    pos, neg = relabel(opposite, logits, 2)
    assert torch.equal(pos[known] > 0, opposite.labels[known] > 0)


def test_the_order_of_the_table_does_not_matter():
    labels = make_labels(40, 3)
    names = [f"photo {i}" for i in range(40)]
    order = np.random.default_rng(0).permutation(40)
    for strategy in ("a", "b", "e"):
        results = []
        sweep = make_sweep((40, 3), 1, tied=True, passes=True)
        for rows in (np.arange(40), order):
            relabel = Curriculum(strategy, before="2", block=7)
            relabel.start(Table.from_dense(labels[rows], images=[names[i] for i in rows]))
            relabel.absorb(Sweep(*(values[rows] for values in sweep)), 1)
            results.append(relabel.guesses())
        assert torch.equal(results[0][order], results[1])


def test_refusals_say_what_to_do():
    for options, advice in (
        ({"strategy": "f"}, "a, b, c, d, e, 2steps"),
        ({"strategy": "b", "theta": 1.5}, "≤ 1 for b"),
        ({"strategy": "2steps", "theta": 1.0}, "none for 2steps"),
        ({"theta": -1.0}, "theta ≥ 0"),
        ({"passes": 1}, "passes ≥ 2"),
        ({"block": 0}, "block ≥ 1"),
        ({"before": "ten"}, "as in 10,15"),
        ({"before": "1,15"}, "epoch 2 or later"),
    ):
        with pytest.raises(UserError, match=advice):
            Curriculum(**options)
    relabel = Curriculum("e", before="2")
    relabel.start(make_table(make_labels(4, 2)))
    with pytest.raises(AssertionError, match="passes"):
        relabel.absorb(make_sweep((4, 2), 0), 1)


@pytest.mark.parametrize("strategy", ["a", "b", "e"])
def test_scratch_files_get_the_same_labels_as_memory(strategy, monkeypatch, tmp_path):
    labels = make_labels(40, 5)
    sweep = make_sweep((40, 5), 1, tied=True, passes=True)
    expected = Curriculum(strategy, before="2,3")
    expected.start(make_table(labels))
    log = expected.absorb(sweep, 1)
    monkeypatch.setattr("halflabel.system.memory._SCRATCH_BYTES", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("halflabel.methods.parts.curriculum._BLOCK_ENTRIES", 33)
    curriculum = Curriculum(strategy, before="2,3")
    curriculum.start(make_table(labels))
    assert curriculum.labels.is_mapped
    tables = [memory.scratch_zeros(values.shape).copy_(values) for values in sweep]
    assert curriculum.absorb(Sweep(*tables), 1) == log
    assert torch.equal(curriculum.guesses(), expected.guesses())
    assert log["weak_positives"] > 0
