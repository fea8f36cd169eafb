"""What `--method auto` takes: the average of its methods, or what known labels show to be better."""

import dataclasses

import numpy as np
import pytest
import torch

from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import crossfit
from halflabel.fitting.fit import Inputs, fit
from halflabel.fitting.measured import choose_members, measured_lines
from halflabel.images.sources import Features
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.methods.base import recipe


def scored(noises, images=200, classes=12, seed=0):
    """Return for each amount of noise the logits of a method with that much, and the labels."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.where(torch.rand(images, classes, generator=rng) < 0.3, 1, -1)
    return [(labels + noise * torch.randn(images, classes, generator=rng), labels) for noise in noises]


def test_the_average_is_taken_unless_another_choice_is_clearly_better():
    assert choose_members(scored([2, 2, 2]))[0] == (0, 1, 2)
    assert choose_members(scored([2, 2, 40]))[0] == (0, 1)
    assert choose_members(scored([0.5, 40, 40]))[0] == (0,)
    members, measured = choose_members(scored([2, 3, 40]))
    lines = measured_lines(measured, ["bce", "an", "em"], members)
    assert [line for line in lines if line.startswith("→")] == [next(line for line in lines if "bce and an" in line)]
    assert len(lines) == 5
    # One class, or none with a known positive: nothing tells methods apart.
    one = [(logits[:, :1], labels[:, :1]) for logits, labels in scored([0.5, 40])]
    assert choose_members(one)[0] == (0, 1)
    members, measured = choose_members([(logits, 0 * labels) for logits, labels in one])
    assert members == (0, 1)
    (line,) = measured_lines(measured, ["bce", "an"], members)
    assert "nan" not in line


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 20)).astype(np.float32)
    truth = np.where(features @ rng.standard_normal((20, 6)) > 1, 1, -1).astype(np.int8)
    known = np.where(rng.random(truth.shape) < 0.4, truth, 0).astype(np.int8)
    return torch.from_numpy(features), Table.from_dense(known)


def test_an_average_is_one_linear_head_with_the_mean_of_the_weights(data):
    features, table = data
    makes = [recipe("bce").make, lambda: recipe("an").make()]
    both = crossfit(features, table, makes, strength=1e-3, use_similar=False)
    alone = [crossfit(features, table, make, strength=1e-3, use_similar=False) for make in makes]
    torch.testing.assert_close(both.head.linear.weight, sum(each.head.linear.weight for each in alone) / 2)
    np.testing.assert_allclose(both.logits, sum(each.logits for each in alone) / 2, atol=1e-4)
    chosen = crossfit(features, table, makes, use_similar=False)
    strengths = [crossfit(features, table, make, use_similar=False).strength for make in makes]
    assert [factor * chosen.strength for factor in chosen._task.factors] == pytest.approx(strengths)


def test_the_configuration_names_what_was_taken_and_gives_it_again(data):
    features, table = data
    inputs = Inputs(lambda: Features(features, table.images), of_backbone=False, channels=20)
    config = Config(method="bce", fit="linear", candidates="bce smoothing=0.1, curriculum theta=1.5, an")
    first = fit(Labels.of(table), inputs, config)
    assert first.config.candidates == config.candidates
    named = [first.config.named, *filter(None, first.config.averaged_with.split(", "))]
    assert named == [config.candidates.split(", ")[member] for member in first.crossfit.members]
    again = fit(Labels.of(table), inputs, dataclasses.replace(first.config, candidates=""))
    np.testing.assert_allclose(again.crossfit.logits, first.crossfit.logits, atol=1e-5)
    assert Config.from_dict(first.config.as_dict()) == first.config
    # A few more labels: the choice stays, and the fit begins at the last one.
    dense = table.dense()
    dense[0] = np.where(dense[0] == 0, -1, dense[0])
    more = fit(
        Labels.of(Table.from_dense(dense)), inputs, dataclasses.replace(first.config, candidates=""), start=again
    )
    assert more.config.averaged_with == first.config.averaged_with


def test_each_method_states_its_time():
    members, measured = choose_members(scored([2, 3]), [1.5, 0.25])
    assert [each.seconds for each in measured] == [1.5, 0.25, 0.0]
    assert [line.endswith(" s") for line in measured_lines(measured, ["bce", "an"], members)][:2] == [True, True]
