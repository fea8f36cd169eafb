"""The L-BFGS solver against scikit-learn, and the methods that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from halflabel.fitting.solver import LinearSolver, is_separable
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, seeded
from halflabel.methods.parts.losses import BCE, ByShare, over_entries, over_images, over_known, total
from halflabel.types import Batch, Output, Targets


def make_problem(images: int = 120, channels: int = 6, classes: int = 3) -> tuple[torch.Tensor, Table]:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(images, channels)).astype(np.float32)
    logits = features @ generator.normal(size=(channels, classes)) + generator.normal(size=(images, classes))
    labels = np.where(logits > 0, 1, -1).astype(np.int8)
    labels[generator.random(labels.shape) < 0.4] = 0
    return torch.from_numpy(features), Table.from_dense(labels)


def test_the_solution_for_bce_is_logistic_regression_on_the_known_labels() -> None:
    features, table = make_problem()
    solver = LinearSolver(recipe("bn-bce").make(), features, table, tolerance=1e-5)
    strength = 0.01
    solver.fit(strength)
    labels, logits = table.dense(), solver.score(features).numpy()
    factor = labels.shape[1] / (labels != 0).sum()  # the weight of each known entry
    for column in range(labels.shape[1]):
        known = labels[:, column] != 0
        expected = LogisticRegression(C=factor / strength, tol=1e-8, max_iter=1000)
        expected.fit(features.numpy()[known], labels[known, column])
        np.testing.assert_allclose(logits[:, column], expected.decision_function(features.numpy()), atol=2e-3)


def test_reductions_of_the_same_loss_have_the_same_solution() -> None:
    features, table = make_problem()
    solutions = []
    for name in ("bce", "bn-bce"):
        solver = LinearSolver(recipe(name).make(), features, table, tolerance=1e-5)
        solver.fit(0.01)
        solutions.append(solver.score(features))
    torch.testing.assert_close(*solutions, atol=2e-3, rtol=0)


def test_warm_and_cold_starts_agree() -> None:
    features, table = make_problem()
    warm, cold = (LinearSolver(recipe("bce").make(), features, table, tolerance=1e-5) for _ in range(2))
    for strength in (1.0, 0.1, 0.01):
        warm.fit(strength)
    cold.fit(0.01)
    torch.testing.assert_close(warm.score(features), cold.score(features), atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ["bce", "asl", "em"])
def test_the_preconditioner_changes_the_speed_and_not_the_solution(name: str) -> None:
    features, table = make_problem(channels=20)
    features = features * torch.logspace(0, -2, 20)
    solutions = []
    for variance in (None, features.var(0)):
        solver = LinearSolver(recipe(name).make(), features, table, variance=variance, tolerance=1e-5)
        for strength in (0.1, 1e-3):
            solver.fit(strength)
        solutions.append(solver.score(features))
    torch.testing.assert_close(*solutions, atol=5e-3, rtol=0)


@pytest.mark.parametrize("name", ["csl", "em-apl", "ll-r"])
def test_methods_that_relabel_are_solved_in_rounds_and_the_same_each_time(name: str) -> None:
    features, table = make_problem()
    if "partial" not in recipe(name).serves:
        table = Table.from_dense(np.maximum(table.dense(), 0))
    scores = []
    for _ in range(2):
        solver = LinearSolver(seeded(0, recipe(name).make), features, table)
        assert solver.rounds == 4
        solver.fit(0.01)
        scores.append(solver.score(features))
    assert torch.isfinite(scores[0]).all()
    assert torch.equal(*scores)


@pytest.mark.parametrize("name", ["bce", "asl", "em", "csl", "ll-r", "partial-bce"])
def test_solving_class_by_class_minimises_the_loss_of_the_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, table = make_problem()
    if "partial" not in recipe(name).serves:
        table = Table.from_dense(np.maximum(table.dense(), 0))
    method = seeded(0, recipe(name).make)
    assert is_separable(method)
    solver = LinearSolver(method, features, table, tolerance=1e-5)
    targets_per_round: list[Targets] = []
    compute = method.relabel.forward
    monkeypatch.setattr(
        method.relabel,
        "forward",
        lambda *arguments: targets_per_round.append(compute(*arguments)) or targets_per_round[-1],
    )
    solver.fit(0.01)
    logits = solver.score(features).requires_grad_()
    batch = Batch(torch.arange(len(features)), (features,), torch.from_numpy(table.dense()))
    targets = targets_per_round[-1]
    charge = method.reduce(targets.pos + targets.neg, targets)
    loss = method.reduce(method.loss(logits, targets), targets)
    loss = loss + sum(term(Output(logits, features), batch, targets) for term in method.terms)
    (slope,) = torch.autograd.grad(table.shape[1] / charge * loss, logits)
    torch.testing.assert_close(slope.T @ features, -0.01 * solver.weight, atol=2e-4, rtol=0)
    torch.testing.assert_close(slope.sum(0), torch.zeros(table.shape[1]), atol=2e-4, rtol=0)


def test_losses_over_all_classes_of_an_image_are_solved_jointly() -> None:
    features, table = make_problem()
    method = recipe("softmax").make()
    assert not is_separable(method)
    assert method.is_linear_loss
    solver = LinearSolver(method, features, table)
    solver.fit(0.01)
    assert torch.isfinite(solver.score(features)).all()
    assert solver.score(features).any()


def test_a_reduction_that_is_no_weighted_sum_is_solved_as_it_is() -> None:
    def hardest(loss: torch.Tensor, targets: Targets) -> torch.Tensor:
        return loss.flatten().topk(40).values.mean()

    for reduce in (over_entries, over_known, over_images, total, ByShare(-4.45, 5.45, 1.0)):
        assert is_separable(Method(BCE(), reduce=reduce))
    assert not is_separable(Method(BCE(), reduce=hardest))


def test_a_search_that_fails_leaves_the_best_solution_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    features, table = make_problem()
    solver = LinearSolver(recipe("rml").make(), features, table)
    original = torch.optim.LBFGS.step

    def fail(self: torch.optim.LBFGS, closure: Any) -> Any:
        loss = original(self, closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.fill_(torch.nan)
        return loss

    monkeypatch.setattr(torch.optim.LBFGS, "step", fail)
    solver.fit(0.01)
    present, absent = (solver.score(features)[torch.from_numpy(table.dense() == sign)].mean() for sign in (1, -1))
    assert present > absent + 0.5
