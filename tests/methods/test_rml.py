"""WARP, RML, RMLC and SS-RML against the slow pair loops, the published numbers and the law of sampling."""

import json
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import step_checks
import torch
from rml_examples import TESTS, make_batch, make_example

from halflabel.labels.table import Table
from halflabel.methods.parts.ranking import Ranking, UnknownAs, harmonic, rank_of, ranking, trials
from halflabel.types import Targets

slow = step_checks.reference("rml")


def known_entries(labels):
    return Targets((labels > 0).double(), (labels < 0).double())


def _check(x, targets, s=-0.8, leak=0.0, kappa=5.0):
    """Exact ranks: value per entry and gradient equal the pair loop."""
    x = x.clone().requires_grad_()
    loss = Ranking(s, kappa, leak, rank="exact")(x, targets)
    loss.sum().backward()
    for i in range(len(x)):
        row, pos, neg = x[i].tolist(), targets.pos[i].tolist(), targets.neg[i].tolist()
        negatives = [k for k, weight in enumerate(neg) if weight > 0]
        rank = {j: slow.exact_rank(row, j, negatives) for j in range(len(row))}
        value, gradient = slow.loss(row, pos, neg, rank, s, leak, kappa)
        np.testing.assert_allclose(loss[i].tolist(), value, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(x.grad[i].tolist(), gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("images", "classes"), [(6, 12), (1, 9), (5, 1), (4, 2)])
@pytest.mark.parametrize(("leak", "kappa"), [(0.0, 5.0), (0.1, 5.0), (1.0, 0.0)])
def test_value_and_gradient_are_those_of_the_pair_loop(images, classes, leak, kappa):
    x, labels = make_example(images, classes, seed=images + classes)
    labels[0] = 0  # nothing known
    _check(x, known_entries(labels), leak=leak, kappa=kappa)


def test_ties_and_kinks():
    """All differences are multiples of ½: equal logits, pairs at t = 1 and at t = s."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (40, 7), generator=generator).double() / 2
    _, labels = make_example(40, 7, seed=1)
    for leak in (0.0, 0.1, 1.0):
        _check(x, known_entries(labels), s=-0.5, leak=leak)


def test_weights_of_entries():
    x, labels = make_example(8, 10, seed=3)
    weight = torch.rand(8, 10, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 5
    targets = known_entries(labels)
    _check(x, Targets(targets.pos * weight, targets.neg * weight))


def _golden(name):
    content = json.loads((TESTS / "golden" / "losses" / f"{name}.json").read_text())
    return [pytest.param(content, case, id=case["name"]) for case in content["cases"]]


def _check_golden(content, case, divisor, **options):
    x = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(case["labels"])
    weight = torch.tensor(case.get("example_weights", [1.0] * len(x)), dtype=torch.float64)[:, None]
    tried = torch.ones(x.shape, dtype=torch.int64)
    for given in case["ranking"]:
        row, positive = given["row"], given["positive"]
        # Our own count in the given order (≥ and > differ at ties only, of which there are none).
        q = slow.first_violator(case["logits"][row], positive, given["order"])
        assert q == given["trials"]
        tried[row, positive] = q
    rank = rank_of(tried, x.shape[1], rounded=True)
    for given in case["ranking"]:
        assert rank[given["row"], given["positive"]] == given["rank"]
        actual = harmonic(rank[given["row"], given["positive"]], x.shape[1])
        assert actual.item() == pytest.approx(given["weight"], rel=1e-14)
    targets = Targets(weight * (labels > 0), weight * (labels <= 0))
    loss = ranking(x, targets, rank, s=-0.8, **options).sum() / len(x) / divisor
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-10)
    np.testing.assert_allclose(x.grad.numpy(), case["grad"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("content", "case"), _golden("warp"))
def test_published_warp(content, case):
    _check_golden(content, case, 20, leak=1.0, kappa=0.0)


@pytest.mark.parametrize(("content", "case"), _golden("rml_supervised"))
def test_published_rml(content, case):
    _check_golden(content, case, 20, leak=0.1, kappa=5.0)


@pytest.mark.parametrize(("content", "case"), _golden("rml_weighted"))
def test_published_rml_with_weights(content, case):
    _check_golden(content, case, 200, leak=0.1, kappa=1.0)


def test_ranks_are_rounded_down_or_to_the_nearest():
    q = torch.arange(1, 22)
    down, nearest = rank_of(q, 20), rank_of(q, 20, rounded=True)
    assert down.tolist() == [19 // n for n in range(1, 22)]
    assert nearest.tolist() == [int(Fraction(19, n) + Fraction(1, 2)) for n in range(1, 22)]
    assert harmonic(torch.tensor([0, 1, 3]), 4).tolist() == pytest.approx([0, 1, 1 + 1 / 2 + 1 / 3])


@pytest.mark.parametrize(("n", "v"), [(7, 1), (7, 3), (7, 7), (12, 2), (1, 1)])
def test_trials_follow_the_draw_without_replacement(n, v):
    """P(q) = C(n − q, v − 1) / C(n, v); 5 standard errors, and a random-order loop obeys the same law."""
    draws = 20_000
    torch.manual_seed(0)
    q = trials(torch.full((draws,), v), torch.full((draws,), n))
    actual = torch.bincount(q, minlength=n + 2)[1 : n + 1] / draws
    expected = torch.tensor([comb(n - place, v - 1) / comb(n, v) for place in range(1, n + 1)], dtype=torch.float64)
    error = (expected * (1 - expected) / draws).sqrt()
    assert (actual - expected).abs().le(5 * error + 1e-12).all()
    rng = np.random.default_rng(0)
    x = [0.0] + [5.0] * v + [-5.0] * (n - v)
    loop = np.bincount([slow.first_violator(x, 0, 1 + rng.permutation(n)) for _ in range(5000)], minlength=n + 2)
    assert (np.abs(loop[1 : n + 1] / 5000 - expected.numpy()) <= 5 * error.numpy() * 2 + 1e-12).all()


def test_without_a_violator_all_classes_are_tried():
    assert trials(torch.tensor([0, 0]), torch.tensor([5, 0])).tolist() == [6, 1]


def test_unknown_entries_in_pairs():
    table = Table.from_dense([[1, 0, 0], [0, 0, 0], [0, 1, 1]])
    batch, x = make_batch(table.dense()), torch.zeros(3, 3)
    for unknown, absent in (("ignore", 0), ("negative", 1), ("auto", 1)):
        relabel = UnknownAs(unknown)
        relabel.start(table)
        targets = relabel(batch, x, 1)
        assert targets.pos.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
        assert targets.neg.tolist() == [[0, absent, absent], [0, 0, 0], [absent, 0, 0]]
    relabel.start(Table.from_dense([[1, -1, 0]]))
    assert relabel(make_batch([[1, -1, 0]]), x[:1], 1).neg.tolist() == [[0, 1, 0]]
