"""Heads that start from class names: the solver against scipy, the trust per class, and the head that is saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from halflabel.evaluation.ranking import ranking_quality
from halflabel.features.heads import NormalisedLinear
from halflabel.features.names import NameScores
from halflabel.fitting.crossfit import Basis, CrossFit, crossfit
from halflabel.fitting.solver import LinearSolver
from halflabel.fitting.trust import TRUSTS, choose_trust
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded

TRUST = torch.tensor([0.0, 0.7, 1.5])


def make_problem(images: int = 50, known: float = 0.6) -> tuple[torch.Tensor, torch.Tensor, Table]:
    """Features (N, 4), scores from names (N, 3) that are half noise, and labels."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(images, 4)).astype(np.float32)
    logits = features @ generator.normal(size=(4, 3)) + generator.normal(size=(images, 3))
    names = torch.from_numpy((logits / logits.std(0) + generator.normal(size=(images, 3))).astype(np.float32))
    labels = np.where(logits > 0, 1, -1) * (generator.random((images, 3)) < known)
    return torch.from_numpy(features), names, Table.from_dense(labels.astype(np.int8))


def solve(name: str, features: torch.Tensor, names: torch.Tensor, table: Table) -> LinearSolver:
    rows = torch.cat([features, names], 1)
    solver = LinearSolver(seeded(0, recipe(name).make), rows, table, tolerance=1e-5, trust=TRUST)
    solver.fit(0.01, 400)
    return solver


def test_the_solution_is_the_minimum_of_the_loss_with_names() -> None:
    features, names, table = make_problem()
    labels, solver, strength = table.dense(), solve("bce", features, names, table), 0.01
    factor = labels.shape[1] / (labels != 0).sum()
    for column in range(labels.shape[1]):

        def loss(solution: np.ndarray, column: int = column) -> float:
            total = 0.0
            for image in range(len(labels)):
                if labels[image, column]:
                    logit = solution[-1] + float(TRUST[column] * names[image, column])
                    logit += float(features[image].numpy() @ solution[:-1])
                    total += np.logaddexp(0, -labels[image, column] * logit)
            return float(factor * total + strength / 2 * (solution[:-1] ** 2).sum())

        expected = minimize(loss, np.zeros(features.shape[1] + 1), tol=1e-10).x
        np.testing.assert_allclose(solver.weight[column], expected[:-1], atol=2e-3)
        np.testing.assert_allclose(solver.bias[column], expected[-1], atol=2e-3)


def test_relabelling_and_starts_without_labels_see_the_names() -> None:
    features, names, table = make_problem()
    nothing = Table.from_dense(np.zeros(table.shape, np.int8))
    logits = solve("bce", features, names, nothing).score(torch.cat([features, names], 1))
    torch.testing.assert_close(logits, TRUST * names)
    seen: list[torch.Tensor] = []
    solver = LinearSolver(recipe("em").make(), torch.cat([features, names], 1), table, trust=TRUST)
    compute = solver.method.relabel.forward
    solver.method.relabel.forward = lambda batch, logits, epoch: seen.append(logits) or compute(batch, logits, epoch)  # type: ignore[method-assign, func-returns-value]
    solver.fit(0.01)
    plain = seen[0] - TRUST * names  # of weights that had been zero, or of cross-entropy on known labels
    assert torch.linalg.matrix_rank(torch.cat([plain, features, torch.ones(50, 1)], 1), tol=1e-2) <= 5


def scores(gain_per_class: list[float], images: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits that know something, names that add so much of what they do not know, and labels."""
    draw = torch.Generator().manual_seed(seed)
    without, names = (torch.randn(images, len(gain_per_class), generator=draw) for _ in range(2))
    chance = torch.sigmoid(without + torch.tensor(gain_per_class) * names - 1)
    return without, names, torch.where(torch.rand(chance.shape, generator=draw) < chance, 1, -1).to(torch.int8)


def test_each_class_finds_its_trust_and_few_labels_follow_the_others() -> None:
    truth = [0.0] * 10 + [1.0] * 10
    without, names, labels = scores(truth, 3000)
    trust, _ = choose_trust(without, names, labels)
    assert trust[:10].max() < 0.1
    np.testing.assert_allclose(trust[10:], 1, atol=0.25)
    without, names, labels = scores([1.0] * 20, 400)
    labels[30:, 0] = 0  # hardly anything is known of the first class
    labels[:, 1] = 0
    trust, common = choose_trust(without, names, labels)
    np.testing.assert_allclose(trust[:2], common, atol=0.2)
    assert common == pytest.approx(1, abs=0.2)


def test_trust_is_zero_where_names_tell_nothing_and_the_size_of_logits_does_not_matter() -> None:
    without, names, labels = scores([0.0] * 12, 300)
    assert choose_trust(without, names, labels)[0].max() < 0.1
    without, names, labels = scores([0.75] * 12, 1000)
    first, second = (choose_trust(size * without, size * names, labels)[0] for size in (1.0, 0.2))
    torch.testing.assert_close(first, second, atol=0.02, rtol=0)


def test_without_labels_that_tell_the_trust_is_that_of_no_evidence() -> None:
    without, names, labels = scores([1.0] * 4, 50)
    trust, common = choose_trust(without, names, torch.zeros_like(labels))
    assert trust.tolist() == [common] * 4
    assert TRUSTS[0] < common < TRUSTS[-1]


def test_known_positives_alone_count_unknown_as_absent() -> None:
    without, names, labels = scores([1.0] * 12, 2000)
    assert choose_trust(without, names, labels.clamp(min=0))[0].min() > 0.5


def fitted_with(scorer: NameScores, features: torch.Tensor, table: Table, unchosen: Table | None = None) -> CrossFit:
    (basis,) = Basis.of(features)
    basis = basis.with_names(scorer, scorer.score(features))
    return crossfit([basis], table, recipe("bce").make, use_similar=False, unchosen=unchosen)


def make_names(images: int = 400) -> tuple[torch.Tensor, NameScores, NameScores, Table, Table]:
    """Features, names that tell the classes and such that do not, few labels, and all labels."""
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(images, 12, generator=draw)
    likeness = torch.softmax(3 * torch.randn(5, 30, generator=draw), 1).numpy()
    names, wrong = (
        NameScores.fit((8 * torch.randn(30, 12, generator=draw) * part, torch.zeros(30)), likeness, features)[0]
        for part in ((torch.arange(12) < 6).float(), (torch.arange(12) >= 6).float())
    )
    truth = torch.where(torch.rand(images, 5, generator=draw) < torch.sigmoid(3 * names.score(features) - 1), 1, -1)
    known = torch.rand(truth.shape, generator=draw) < 0.1
    tables = (Table.from_dense(labels.numpy().astype(np.int8)) for labels in (truth * known, truth))
    return features, names, wrong, *tables  # type: ignore[return-value]


def test_a_head_that_starts_from_names_ranks_better_and_is_saved() -> None:
    features, names, _, table, truth = make_names()
    plain = crossfit(features, table, recipe("bce").make, use_similar=False)
    fitted = fitted_with(names, features, table)
    labels = torch.from_numpy(truth.dense())
    better, worse = (ranking_quality(torch.from_numpy(fit.logits), labels) for fit in (fitted, plain))
    assert better > worse + 0.05
    assert "trust in class names" in fitted.choice
    state = fitted.head.state_dict()
    loaded = NormalisedLinear.from_shapes(state)
    assert loaded is not None
    loaded.load_state_dict(state)
    torch.testing.assert_close(loaded.eval()(features).logits, fitted.head(features).logits)
    more = crossfit(Basis.of(features), table, recipe("bce").make, use_similar=False, start=fitted)
    assert more.head.names is names


def test_names_that_do_not_help_leave_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    features, _, wrong, _, truth = make_names()
    trust = fitted_with(wrong, features, truth).head.trust
    assert trust is None or float(trust.mean()) < 0.1
    monkeypatch.setattr(
        "halflabel.fitting.crossfit.choose_trust", lambda without, *_: (torch.zeros_like(without[0]), 0.0)
    )
    plain = crossfit(features, truth, recipe("bce").make, use_similar=False)
    fitted = fitted_with(wrong, features, truth)
    assert fitted.head.state_dict().keys() == plain.head.state_dict().keys()
    np.testing.assert_array_equal(fitted.logits, plain.logits)


def test_answers_to_chosen_questions_do_not_choose_the_trust() -> None:
    features, names, wrong, _, truth = make_names()
    for scorer in (names, wrong):
        head = fitted_with(scorer, features, truth, unchosen=Table.from_dense(np.zeros(truth.shape, np.int8))).head
        assert head.trust is not None
        assert head.trust.tolist() == pytest.approx([0.375] * 5)  # of no evidence


def test_unchosen_labels_leave_out_answers_of_weight_0() -> None:
    image, column, value = np.array([0, 1, 2]), np.array([0, 0, 0]), np.array([1, -1, 1])
    table = Table.from_dense(np.zeros((3, 1), np.int8))
    rows = Labels.build(table.images, table.classes, image, column, value, weight=np.array([np.nan, 0.0, 24.0]))
    assert rows.unchosen.dense().ravel().tolist() == [1, 0, 1]
