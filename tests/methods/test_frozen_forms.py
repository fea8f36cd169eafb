"""The forms of methods that L-BFGS fits to frozen features: what they equal, what they learn, where they start."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel.fitting.solver import LinearSolver, can_solve
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.methods.parts.similarity_memory import impute
from halflabel.types import Batch, Output, Sweep, Targets


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


@pytest.mark.parametrize("name", ["plcl", "imcl", "srcr"])
def test_can_be_solved_and_learns(name):
    features, table, truth = problem()
    assert can_solve(recipe(name).make())
    scores = solve(name, features, table).score(features)
    assert ((scores > 0).numpy() == (truth > 0)).mean() > 0.8


@pytest.mark.parametrize(
    ("name", "options"), [("imcl", {"lambda_y": 0.0}), ("plcl", {"strategy": "none"}), ("srcr", {"weight": 0.0})]
)
def test_equal_bce_without_their_own_term(name, options):
    features, table, _ = problem()
    # Every image has the same number of known labels: the g of partial-BCE is then one factor for all.
    same_share = Table.from_dense(np.where(np.arange(4) < 2, problem(known=1.0)[2], 0))
    table = same_share if name == "plcl" else table
    expected = solve("bce", features, table, strength=1e-2).score(features)
    actual = solve(name, features, table, **options).score(features)
    assert torch.corrcoef(torch.stack([actual.flatten(), expected.flatten()]))[0, 1] > 0.9995
    assert (actual - expected).abs().max() < 0.1 * expected.abs().max()


def test_label_smoothness_is_the_slow_loop():
    """ℓ_y and its gradient, image by image and label by label, for the similar images and the graph of a search."""
    features, table, _ = problem(images=15, classes=3)
    method = recipe("imcl").make(k=2, rescale=False, graph="cooccurrence").on_frozen_features()
    method.start(table)
    labels = torch.from_numpy(table.dense())
    logits = torch.randn(15, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    rounds = method.relabel
    rounds.absorb(Sweep(logits.detach(), features), 1)
    graph = rounds.similarity.graph
    weights = {(int(j), int(i)): w for j, i, w in zip(graph.rows, graph.cols, graph.weights.detach(), strict=True)}
    y = impute(labels, logits)
    expected = 0.0
    for i in range(15):
        if not (rounds.index[i] >= 0).any():
            continue
        for j in range(3):
            inferred = 0.0
            for neighbour, c in zip(rounds.index[i], rounds.weight[i], strict=True):
                if neighbour >= 0:
                    inferred = inferred + c * sum(weights.get((j, k), 0.0) * y[neighbour, k] for k in range(3))
            expected = expected + (y[i, j] - torch.tanh(torch.as_tensor(inferred))) ** 2
    expected = expected / (15 * 3)
    none = torch.zeros(15, 3)
    actual = method.terms[0](
        Output(logits, features), Batch(torch.arange(15), (features,), labels), Targets(none, none)
    )
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (actual, expected))
    )


def test_the_graph_of_labels_is_fitted_in_turns():
    """A label that always occurs with another is inferred from it after a search."""
    rng = np.random.default_rng(0)
    first = np.where(rng.random(60) < 0.5, 1, -1)
    table = Table.from_dense(np.stack([first, first, np.where(rng.random(60) < 0.5, 1, -1)], 1))
    features = torch.from_numpy(np.stack([first, rng.normal(size=60)], 1)).float()
    method = recipe("imcl").make(k=3, graph="cooccurrence").on_frozen_features()
    method.start(table)
    graph = method.relabel.similarity.graph
    before = graph.weights.clone()

    def error(weights):
        y = impute(torch.from_numpy(table.dense()), torch.zeros(60, 3))
        return float((y - graph(method.relabel.mixed(y), weights.detach())).square().sum())

    method.relabel.absorb(Sweep(torch.zeros(60, 3), features), 1)
    assert error(graph.weights) < error(before)
    assert (graph.weights >= 0).all()


def test_em_apl_adds_its_pseudo_labels_in_rounds():
    features, _, truth = problem()
    single = Table.from_dense(np.where((truth > 0) & (np.cumsum(truth > 0, 1) == 1), 1, 0))
    solver = solve("em-apl", features, single)
    assert int((solver.method.relabel.labels.rows(torch.arange(120)) >= 0).sum()) > 0.8 * (single.dense() == 0).sum()


@pytest.mark.parametrize("name", ["rml", "rmlc", "curriculum", "plcl"])
def test_the_solution_does_not_depend_on_where_the_solver_stands(name):
    features, table, _ = problem()
    expected = solve(name, features, table, strength=3e-2).score(features)
    solver = LinearSolver(seeded(0, lambda: recipe(name).make()), features, table)
    torch.nn.init.normal_(solver.head.steps, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    solver.fit(3e-2)
    torch.testing.assert_close(solver.score(features), expected, atol=1e-3, rtol=1e-3)
