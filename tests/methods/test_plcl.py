"""Partial-BCE, WELDON pooling, ensembles and the methods made of them, against the slow loops."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Model, Weldon
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.methods.parts.losses import ByShare
from halflabel.types import Batch, Output

slow = checks.reference("plcl")
label = checks.reference("curriculum")


@pytest.mark.parametrize(("share", "value", "gamma"), [(0.1, 5.0, 1.0), (0.3, 20.0, -1.0), (0.5, 2.0, 3.0)])
def test_alpha_and_beta_follow_from_one_value_of_g(share, value, gamma):
    actual = ByShare.through(share, value, gamma)
    assert actual.alpha * share**gamma + actual.beta == pytest.approx(value)
    assert actual.alpha + actual.beta == pytest.approx(1)
    logits, labels = checks.inputs(2, 6, 5)
    method = recipe("partial-bce").make(g_share=share, g_value=value, gamma=gamma)
    expected = checks.slow(lambda x: slow.partial_bce(x, labels, actual.alpha, actual.beta, gamma), logits)
    checks.same(checks.step(method, logits, labels, 1), expected)


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


def test_a_search_tries_no_threshold_twice():
    for strategy in "abcde":
        values = recipe("plcl").tunes({"strategy": strategy})["theta"]
        thresholds = [recipe("plcl").make(strategy=strategy, theta=theta).relabel.theta for theta in (0.0, *values)]
        assert len(set(thresholds)) == 1 + len(values)


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
