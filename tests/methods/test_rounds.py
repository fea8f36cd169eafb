"""Methods that relabel by scores, fitted by L-BFGS: an epoch is a round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.fitting.solver import LinearSolver
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded


def problem(images=120, classes=4, known=0.4, seed=0):
    """Features, labels of which a share is known, and all labels."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(images, 6))
    truth = np.where(features @ rng.normal(size=(6, classes)) + 0.3 * rng.normal(size=(images, classes)) > 0, 1, -1)
    labels = np.where(rng.random(truth.shape) < known, truth, 0)
    return torch.from_numpy(features).float(), Table.from_dense(labels), truth


def solve(name, features, table, strength=1e-2, **options):
    solver = LinearSolver(seeded(0, lambda: recipe(name).make(**options)), features, table)
    solver.fit(strength)
    return solver


def test_em_apl_adds_its_pseudo_labels_in_rounds():
    features, _, truth = problem()
    single = Table.from_dense(np.where((truth > 0) & (np.cumsum(truth > 0, 1) == 1), 1, 0))
    solver = solve("em-apl", features, single)
    assert int((solver.method.relabel.labels.rows(torch.arange(120)) >= 0).sum()) > 0.8 * (single.dense() == 0).sum()


@pytest.mark.parametrize("name", ["rml", "rmlc", "curriculum"])
def test_the_solution_does_not_depend_on_where_the_solver_stands(name):
    features, table, _ = problem()
    expected = solve(name, features, table, strength=3e-2).score(features)
    solver = LinearSolver(seeded(0, lambda: recipe(name).make()), features, table)
    torch.nn.init.normal_(solver.head.steps, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    solver.fit(3e-2)
    torch.testing.assert_close(solver.score(features), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["plcl", "imcl", "srcr", "mean-teacher"])
def test_systems_with_more_than_a_linear_loss_are_trained_in_batches(name):
    assert not recipe(name).make().is_linear_loss


def test_ss_rml_propagates_labels_in_rounds():
    features, table, _ = problem()
    some = Table.from_dense(np.where(np.arange(120)[:, None] % 3 == 0, table.dense(), 0))
    solver = solve("ss-rml", features, some)
    assert (solver.method.relabel.neighbour >= 0).sum() >= 80
    expected, other = solve("rml", features, some).score(features), solver.score(features)
    assert (expected - other).abs().max() > 0.01


@pytest.mark.parametrize(
    ("name", "options"),
    [("ss-rml", {"start": 4}), ("em-apl", {"apl_from": 5}), ("curriculum", {"relabel_at": "10,15"})],
)
def test_what_begins_after_the_last_round_is_refused(name, options):
    features, table, _ = problem()
    with pytest.raises(UserError, match="of L-BFGS"):
        solve(name, features, table, **options)


def test_given_presences_alone_are_added_by_strategy_c():
    features, table, _ = problem()
    labels = solve("curriculum", features, table, strategy="c", theta=0.5).method.relabel.labels
    added = labels.rows(torch.arange(120))[torch.from_numpy(table.dense()) == 0]
    assert (added > 0).any()
    assert not (added < 0).any()
