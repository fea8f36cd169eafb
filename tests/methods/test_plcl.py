"""Partial-BCE, WELDON pooling, ensembles and the methods made of them, against the slow loops."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import step_checks as checks
import torch
from torch import nn

from halflabel.errors import UserError
from halflabel.features.heads import Ensemble, Linear, Model, Weldon
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.methods.parts.curriculum import Curriculum
from halflabel.methods.parts.losses import ByShare
from halflabel.methods.parts.relabel import Ignore
from halflabel.methods.plcl import GnnHead
from halflabel.types import Batch, Output, Sweep, Targets

slow = checks.reference("plcl")
label = checks.reference("curriculum")


def same_as_slow(method, logits, labels, alpha, beta, gamma, epoch=1, charged=None):
    expected = checks.slow(
        lambda x: slow.partial_bce(x, labels if charged is None else charged, alpha, beta, gamma), logits
    )
    checks.same(checks.step(method, logits, labels, epoch), expected)


@pytest.mark.parametrize("shape", checks.SHAPES)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("alpha", "beta", "gamma"), [(-4.45, 5.45, 1.0), (1.0, 0.0, -1.0), (-0.5, 1.5, 3.0)])
def test_partial_bce_is_the_slow_loop(shape, ties, alpha, beta, gamma):
    logits, labels = checks.inputs(1, *shape, ties=ties)
    method = checks.begin(recipe("partial-bce").make(alpha=alpha, beta=beta, gamma=gamma), labels)
    same_as_slow(method, logits, labels, alpha, beta, gamma)


@pytest.mark.parametrize(("share", "value", "gamma"), [(0.1, 5.0, 1.0), (0.3, 20.0, -1.0), (0.5, 2.0, 3.0)])
def test_alpha_and_beta_follow_from_one_value_of_g(share, value, gamma):
    actual = ByShare.through(share, value, gamma)
    assert actual.alpha * share**gamma + actual.beta == pytest.approx(value)
    assert actual.alpha + actual.beta == pytest.approx(1)
    logits, labels = checks.inputs(2, 6, 5)
    method = recipe("partial-bce").make(g_share=share, g_value=value, gamma=gamma)
    same_as_slow(method, logits, labels, actual.alpha, actual.beta, gamma)


def test_defaults_are_the_papers():
    actual = recipe("partial-bce").make().reduce
    assert actual.alpha == pytest.approx(-4.45, abs=0.01)
    assert actual.beta == pytest.approx(5.45, abs=0.01)
    assert recipe("plcl").make().reduce == recipe("curriculum").make().reduce == actual


def test_special_cases_of_g():
    logits, labels = checks.inputs(3, 8, 7)
    partial = recipe("partial-bce").make
    bce = checks.step(recipe("bce").make(), logits, labels, 1)
    checks.same(checks.step(partial(g_value=1.0), logits, labels, 1), bce)
    full = np.where(labels == 0, -1, labels)
    checks.same(checks.step(partial(), logits, full, 1), checks.step(recipe("bce").make(), logits, full, 1))
    loss, _ = checks.step(partial(alpha=1.0, gamma=-1.0), logits, labels, 1)
    known = torch.from_numpy(labels)
    entry_losses = torch.nn.functional.softplus(-known * logits) * (known != 0)
    mean_over_known = (entry_losses.sum(1) / (known != 0).sum(1).clamp(min=1)).mean()
    torch.testing.assert_close(loss, mean_over_known)


def test_weights_that_reward_mistakes_are_refused():
    for options in (
        {"g_value": -1.0},
        {"alpha": 1.0, "beta": -0.5},
        {"alpha": -1.0, "beta": 2.0, "gamma": -1.0},
        {"alpha": -2.0, "beta": 1.0},
    ):
        with pytest.raises(UserError, match="negative for some shares"):
            recipe("partial-bce").make(**options)
    for options in ({"gamma": 0.0}, {"g_share": 0.0}, {"g_share": 1.0}):
        with pytest.raises(UserError, match="between 0 and 1"):
            recipe("partial-bce").make(**options)


def test_the_reduction_is_plain_data():
    actual = ByShare.through(0.1, 5.0)
    assert pickle.loads(pickle.dumps(actual)) == actual
    loss, half = torch.ones(2, 4), torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float16)
    result = actual(loss, Targets(half, torch.zeros_like(half)))
    assert result.dtype == torch.float32
    assert result.item() == pytest.approx((actual.alpha * 0.25 + actual.beta + 1) / 2)
    assert actual(torch.zeros(2, 4), Targets(torch.zeros(2, 4), torch.zeros(2, 4))).item() == 0


def features(images=3, channels=4, high=3, wide=4):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(images, channels, high, wide, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("k_plus", "k_minus", "high", "low"),
    [(0.1, 0.1, 1, 1), (0.25, 0.5, 3, 6), (0.01, 0.0, 1, 0), (4, 2, 4, 2), (99, 1, 12, 1), (1, 0, 1, 0)],
)
def test_weldon_is_the_slow_loop(k_plus, k_minus, high, low):
    maps = features().requires_grad_()
    head = seeded(0, lambda: Weldon(4, 3, k_plus, k_minus)).double()
    output, expected = head(maps), slow.weldon(maps, head.conv.weight[:, :, 0, 0], head.conv.bias, high, low)
    torch.testing.assert_close(output.logits, expected, rtol=1e-9, atol=1e-9)
    learned = [maps, *head.parameters()]
    gradients = torch.autograd.grad(output.logits.square().sum(), learned)
    expected_gradients = torch.autograd.grad(expected.square().sum(), learned)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
    assert output.maps.shape == (3, 3, 3, 4)
    torch.testing.assert_close(output.maps, head.class_maps(maps))
    assert torch.autograd.gradcheck(lambda x: head(x).logits, maps)


def test_weldon_shares_are_rounded():
    """The paper's maps have 14 × 14 = 196 cells: 0.1 of them are 20."""
    cells = torch.arange(196.0).view(1, 1, 14, 14)
    head = Weldon(1, 1)
    nn.init.ones_(head.conv.weight)
    nn.init.zeros_(head.conv.bias)
    assert head(cells).logits.item() == pytest.approx((np.arange(176, 196).mean() + np.arange(20).mean()) / 2)
    head.k_minus = 0
    assert head(cells).logits.item() == pytest.approx(np.arange(176, 196).mean())


def test_weldon_of_pooled_features_is_linear():
    head = Weldon(4, 3)
    pooled = torch.randn(5, 4)
    output = head(pooled)
    torch.testing.assert_close(output.logits, pooled @ head.conv.weight[:, :, 0, 0].T + head.conv.bias)
    assert output.maps.shape == (5, 3, 1, 1)
    assert torch.equal(output.features, pooled)
    assert head.needs_maps


def test_weldon_drops_single_elements_in_training_alone():
    head = Weldon(50, 2, dropout=0.5)
    inputs = []
    head.conv.register_forward_hook(lambda module, arguments, output: inputs.append(arguments[0]))
    ones = torch.ones(2, 50, 3, 3)
    torch.manual_seed(0)
    head(ones)
    assert set(inputs[0].unique().tolist()) == {0.0, 2.0}
    assert 0.3 < (inputs[0] == 0).float().mean() < 0.7
    assert (inputs[0] != inputs[0][:, :, :1, :1]).any()
    head.eval()
    head(ones)
    assert torch.equal(inputs[1], ones)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weldon_is_finite_in_half_precision(dtype):
    head = Weldon(1, 2, 0.5, 0.5).to(dtype)
    with torch.no_grad():
        head.conv.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        head.conv.bias.zero_()
    output = head(torch.full((1, 1, 4, 4), 6e4, dtype=dtype))
    assert output.logits.isfinite().all()
    assert output.logits[0, 0] > 5e4
    output.logits.float().sum().backward()
    assert head.conv.weight.grad.isfinite().all()


@pytest.mark.parametrize("options", [{"k_plus": 0.0}, {"k_plus": -1.0}, {"k_minus": -1.0}])
def test_weldon_without_cells_is_refused(options):
    with pytest.raises(UserError, match="k_"):
        recipe("plcl").make(**options)


def test_ensemble_is_the_mean_of_its_members():
    maps = torch.randn(2, 4, 3, 3)
    head = Ensemble([Weldon(4, 5) for _ in range(3)])
    output = head(maps)
    assert head.needs_maps
    for member, logits in zip(head.heads, output.members, strict=True):
        torch.testing.assert_close(logits, member(maps).logits)
    assert not torch.equal(output.members[0], output.members[1])
    torch.testing.assert_close(output.logits, output.members.mean(0))
    torch.testing.assert_close(output.maps, torch.stack([member(maps).maps for member in head.heads]).mean(0))
    torch.testing.assert_close(head.class_maps(maps), output.maps)
    plain = Ensemble([Linear(4, 5), Linear(4, 5)])
    assert not plain.needs_maps
    assert plain(maps).maps is None


def test_each_member_has_its_own_loss():
    """The mean of the members' losses, which is more than the loss of their mean, and each sees its own gradient."""
    _, labels = checks.inputs(4, 6, 5)
    method = checks.begin(recipe("plcl").make(strategy="d", pooling="mean", gnn=False, dropout=0.0), labels)
    head = seeded(0, lambda: method.head(4, 5)).double()
    assert len(head.heads) == 3
    values = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.arange(6), (values,), torch.from_numpy(labels))
    loss = method.step(Model(None, head), batch, 1)
    single = recipe("partial-bce").make()
    member_losses = [single.step(Model(None, member), batch, 1) for member in head.heads]
    torch.testing.assert_close(loss, torch.stack(member_losses).mean(), rtol=1e-12, atol=1e-12)
    assert loss > single.step(lambda view: Output(head(view).logits, view), batch, 1)
    for member, member_loss in zip(head.heads, member_losses, strict=True):
        (gradient,) = torch.autograd.grad(loss, member.linear.weight, retain_graph=True)
        (expected,) = torch.autograd.grad(member_loss, member.linear.weight)
        torch.testing.assert_close(3 * gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "kind", "graphs", "relabel"),
    [
        ({}, Weldon, True, Curriculum),
        ({"strategy": "none"}, Weldon, True, Ignore),
        ({"gnn": False}, Weldon, False, Curriculum),
        ({"strategy": "none", "gnn": False, "pooling": "mean"}, Linear, False, Ignore),
        ({"strategy": "d", "ensemble": 1}, Weldon, True, Curriculum),
    ],
)
def test_every_part_can_be_switched_off(options, kind, graphs, relabel):
    method = recipe("plcl").make(**options)
    head = method.head(4, 5)
    assert isinstance(head, GnnHead) == graphs
    assert isinstance(head.inner if graphs else head, kind)
    assert type(method.relabel) is relabel


def test_options_reach_their_parts():
    method = recipe("plcl").make(strategy="e", theta=0.4, relabel_at="4,6", passes=9, dropout=0.3, steps=2)
    relabel = method.relabel
    assert (relabel.theta, relabel.before, relabel.passes) == (0.4, [4, 6], 9)
    head = method.head(4, 5)
    assert (head.steps, head.inner.dropout.p, head.inner.k_plus) == (2, 0.3, 0.1)
    assert recipe("plcl").make().relabel.theta == 0.3
    assert recipe("curriculum").make().relabel.theta == 2.0


def test_a_search_tries_no_threshold_twice():
    for strategy in "abcde":
        values = recipe("plcl").tunes({"strategy": strategy})["theta"]
        thresholds = [recipe("plcl").make(strategy=strategy, theta=theta).relabel.theta for theta in (0.0, *values)]
        assert len(set(thresholds)) == 1 + len(values)


def test_options_out_of_range_are_refused():
    for options, advice in (
        ({"pooling": "max"}, "weldon, mean"),
        ({"strategy": "z"}, "none, a, b, c, d, e, 2steps"),
        ({"dropout": 0.0}, "above 0 for e"),
        ({"dropout": 1.0}, "dropout < 1"),
    ):
        with pytest.raises(UserError, match=advice):
            recipe("plcl").make(**options)
    with pytest.raises(UserError, match="k_plus"):
        recipe("plcl").make(k_plus=0.0).head(4, 5)


@pytest.mark.parametrize("shape", checks.SHAPES)
def test_steps_are_the_slow_loop_before_and_after_labelling(shape):
    logits, labels = checks.inputs(6, *shape)
    method = checks.begin(recipe("curriculum").make(theta=1.0, relabel_at="3"), labels)
    reduce = method.reduce
    same_as_slow(method, logits, labels, reduce.alpha, reduce.beta, 1.0, epoch=2)
    swept = torch.from_numpy(np.random.default_rng(1).normal(0, 2, shape).astype(np.float32))
    method.relabel.absorb(Sweep(swept, swept), 2)
    charged = label.add_labels("a", 1.0, swept.tolist(), None, labels.tolist(), [])
    same_as_slow(method, logits, labels, reduce.alpha, reduce.beta, 1.0, epoch=3, charged=charged)
    if shape == (6, 5):
        assert charged != labels.tolist()


@pytest.mark.parametrize("name", ["partial-bce", "curriculum", "plcl"])
def test_half_precision_order_and_state(name):
    def make():
        return recipe(name).make()

    checks.check_half(make(), (1, 2))
    checks.check_targets(make(), (1, 2))
    checks.check_order(make, (1, 2))
    checks.check_round_trip(make, (1, 2, 3, 4))


def test_labels_found_in_training_are_in_the_log_and_close_to_the_truth():
    """The whole of plcl on features that tell the classes: it labels most of what is hidden, and mostly right."""
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((96, 4)) < 0.4, 1, -1)
    maps = torch.from_numpy(rng.normal(0, 0.3, (96, 8, 3, 3)).astype(np.float32))
    maps[:, :4] += torch.from_numpy(truth).float()[:, :, None, None]
    hidden = truth * (rng.random(truth.shape) < 0.4)
    table, truth_table = Table.from_dense(hidden), Table.from_dense(truth)
    method = recipe("plcl").make(theta=1.0, dropout=0.2, passes=10)
    model = Model(None, seeded(0, lambda: method.head(8, 4)))
    settings = Config(epochs=12, lr=0.1, batch_size=8, device="cpu")
    log = fit(model, method, Features(maps, table.images), table, settings, truth=truth_table).log
    added = [line for line in log if "weak_positives" in line]
    assert [line["epoch"] for line in added] == [5, 8]
    assert added[0]["label_proportion"] <= added[1]["label_proportion"]
    assert added[1]["label_proportion"] > 0.7
    assert min(added[1]["tp_rate"], added[1]["tn_rate"]) > 0.8
    assert log[-1]["loss"] < log[0]["loss"] / 2
