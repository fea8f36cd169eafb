"""Agreement within groups, against the slow loop."""

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.errors import UserError
from halflabel.evaluation.calibration import fit_platt
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.group_consistency import mean_of_others
from halflabel.types import Batch, Sweep

slow, slow_taught = checks.reference("group_consistency"), checks.reference("taught")


def example(agree=True, groups=20):
    """Groups of three images, one of them unreadable, and three images without a group."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.where(rng.random((groups, 4)) < 0.4, 1, -1), 3, axis=0)
    truth = np.concatenate([truth if agree else rng.permutation(truth), np.where(rng.random((3, 4)) < 0.4, 1, -1)])
    labels = truth * (rng.random(truth.shape) < 0.5)
    names = [f"p{i // 3}_{i % 3}.jpg" for i in range(3 * groups)] + ["x.jpg", "y.jpg", "z.jpg"]
    logits = 0.5 * truth + rng.normal(size=truth.shape)
    logits[7] = np.nan
    return Table.from_dense(labels, images=names), labels, logits


def make(table, logits):
    config = Config(method="group-consistency", options={"trust": 0.6}, group="^(p[0-9]+)_")
    method = Assembly(config).make_method()
    method.start(table)
    method.relabel.absorb(Sweep(torch.from_numpy(logits).float(), torch.zeros(len(logits), 0)), 1)
    return method


def test_targets_are_those_of_the_slow_loop():
    table, labels, logits = example()
    method = make(table, logits)
    groups = [f"p{i // 3}" for i in range(60)] + [None] * 3
    t = [[slow.others(logits.tolist(), labels.tolist(), groups, i, c) for c in range(4)] for i in range(63)]
    assert sum(row[0] is None for row in t) == 3
    scored = np.array([[np.nan if value is None else min(max(value, 1e-4), 1 - 1e-4) for value in row] for row in t])
    has_score = ~np.isnan(scored)
    known = np.where(has_score, labels, 0)
    trust = slow_taught.trust(
        [scored[has_score[:, c], c].tolist() for c in range(4)],
        [labels[has_score[:, c], c].tolist() for c in range(4)],
        -1,
    )
    trust = [0.6 * share for share in trust]
    assert min(trust) > 0.2
    np.testing.assert_allclose(method.relabel.trust, trust, rtol=1e-5)
    calibration = fit_platt(torch.from_numpy(np.log(scored / (1 - scored))), torch.from_numpy(known))
    batch = Batch(torch.arange(63), (torch.zeros(63, 4),), torch.from_numpy(labels))
    pos, neg = method.relabel(batch, torch.zeros(63, 4), 2)
    for i in range(63):
        for c in range(4):
            value = None if t[i][c] is None else scored[i, c]
            expected = slow_taught.targets(
                labels[i, c], value, trust[c], calibration.slope, calibration.offset, 0.1, True
            )
            assert (float(pos[i, c]), float(neg[i, c])) == pytest.approx(expected, abs=1e-4)


def test_it_is_solved_and_refused_without_groups():
    assert recipe("group-consistency").make().is_linear_loss
    with pytest.raises(UserError, match="needs groups"):
        Assembly(Config(method="group-consistency")).make_method()


def test_a_lone_image_has_no_others():
    means = mean_of_others(torch.tensor([[0.2], [0.4], [0.9]]), torch.tensor([1, 1, 0]))
    torch.testing.assert_close(means, torch.tensor([[0.4], [0.2], [torch.nan]]), equal_nan=True)
