"""Analyses against slow loops, SciPy and gradients worked out by hand; each picture is written."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from halflabel.errors import OwnHead, UserError
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, recipe, recipes, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.models.heads import Linear, Model, Weldon
from halflabel.papers.figures import analysis
from halflabel.types import Batch


def make(seed=0, images=80, classes=6):
    rng = np.random.default_rng(seed)
    truth = rng.choice([-1, -1, 0, 1], (images, classes)).astype(np.int8)
    scores = np.clip(rng.beta(2, 5, (images, classes)) + 0.3 * (truth > 0), 0, 1)
    return scores.round(2), truth


def is_picture(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width > 200 and height > 200


def slow_distance(positives, negatives):
    """∫ |F⁺ − F⁻| over every interval between neighbouring scores."""
    points = sorted({*positives, *negatives})
    total = 0.0
    for low, high in itertools.pairwise(points):
        above = sum(s <= low for s in positives) / len(positives) - sum(s <= low for s in negatives) / len(negatives)
        total += abs(above) * (high - low)
    return total


def test_distances_are_scipys_and_the_slow_loops():
    scores, truth = make()
    found = analysis.score_densities(scores, truth)
    for c in range(truth.shape[1]):
        positives, negatives = scores[truth[:, c] > 0, c], scores[truth[:, c] < 0, c]
        assert math.isclose(found.per_class[c], wasserstein_distance(positives, negatives), abs_tol=1e-12)
        assert math.isclose(found.per_class[c], slow_distance(positives.tolist(), negatives.tolist()), abs_tol=1e-12)
    assert math.isclose(found.distance, wasserstein_distance(scores[truth > 0], scores[truth < 0]), abs_tol=1e-12)


def test_densities_integrate_to_one_and_ends_are_right():
    scores, truth = make()
    found = analysis.score_densities(scores, truth, bins=17)
    for density in (found.present, found.absent):
        assert math.isclose((density * np.diff(found.edges)).sum(), 1)
    perfect = analysis.score_densities((truth > 0).astype(float), truth)
    np.testing.assert_allclose(perfect.per_class, 1)
    np.testing.assert_allclose(analysis.score_densities(np.full(truth.shape, 0.3), truth).per_class, 0, atol=1e-12)


def test_unread_images_and_empty_sides():
    scores, truth = make()
    truth[:, 1] = -1
    broken = scores.copy()
    broken[:9] = np.nan
    found, clean = analysis.score_densities(broken, truth), analysis.score_densities(scores[9:], truth[9:])
    np.testing.assert_allclose(found.per_class, clean.per_class, atol=1e-12)
    assert np.isnan(found.per_class[1])
    assert not np.isnan(np.delete(found.per_class, 1)).any()
    np.testing.assert_allclose(found.present, clean.present)
    nothing = analysis.score_densities(scores[:1], np.zeros((1, 6)))
    assert np.isnan(nothing.per_class).all()
    assert math.isnan(nothing.distance)
    assert np.isnan(nothing.present).all()
    assert np.isnan(analysis.score_densities(np.zeros((0, 3)), np.zeros((0, 3))).per_class).all()


def test_histograms_count_every_entry_once():
    scores, labels = make()
    scores[3, 2] = 1.0
    scores[4] = np.nan
    found = analysis.probability_histograms(scores, labels, bins=10)
    for counts, value in ((found.present, 1), (found.absent, -1), (found.unknown, 0)):
        slow = [0] * 10
        for s, y in zip(scores.flat, labels.flat, strict=True):
            if y == value and not math.isnan(s):
                slow[min(int(np.searchsorted(found.edges, s, side="right")) - 1, 9)] += 1
        assert counts.tolist() == slow


@pytest.mark.parametrize("function", [analysis.score_densities, analysis.probability_histograms])
def test_logits_and_odd_shapes_are_refused(function):
    scores, labels = make()
    with pytest.raises(UserError, match="sigmoid"):
        function(scores * 4 - 2, labels)
    with pytest.raises(UserError, match="shape"):
        function(scores[:-1], labels)


def regimes(*names, **more):
    return {name: analysis.gradient_regime(recipe(name).make(), **more) for name in names}


def test_gradients_are_those_of_the_formulas():
    found = regimes("an", "bce", "entmin", "hill", "splc", points=20)
    p = found["an"].p
    classes = len(p)
    np.testing.assert_allclose(found["an"].present, (p - 1) / classes, atol=1e-12)
    np.testing.assert_allclose(found["an"].absent, p / classes, atol=1e-12)
    np.testing.assert_allclose(found["an"].unknown, p / classes, atol=1e-12)
    np.testing.assert_allclose(found["bce"].unknown, 0, atol=1e-12)
    np.testing.assert_allclose(found["hill"].unknown, 3 * p**2 * (1 - p) ** 2, atol=1e-12)
    # Minimised entropy goes down on both sides of a half: −log(p/(1 − p)) · p · (1 − p), times a weight.
    entropy = -np.log(p / (1 - p)) * p * (1 - p)
    ratio = found["entmin"].unknown / entropy
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
    assert ratio[0] > 0
    np.testing.assert_allclose(
        found["splc"].unknown, np.where(p > 0.6, found["splc"].present, found["splc"].absent), atol=1e-12
    )


def test_gradients_show_what_a_method_remembers():
    found = regimes("ll-r", "ll-ct", "csl")
    late = found["ll-ct"].unknown < 0
    assert late.any()
    assert not late.all()
    assert (np.diff(late.astype(int)) >= 0).all()  # flipped above some score, not below
    assert (found["ll-r"].unknown[late] >= 0).all()
    early = regimes("ll-r", "csl", epoch=1)
    np.testing.assert_allclose(early["ll-r"].unknown, early["ll-r"].absent)
    assert not early["csl"].unknown.any()
    assert found["csl"].unknown.any()


def test_every_method_charged_per_entry_has_a_regime(tmp_path):
    found = {}
    for name in recipes():
        try:
            found |= regimes(name, points=25, epoch=3)
        except OwnHead:  # its step works inside its own head
            continue
        except UserError as error:
            assert "a loss of rankings" in error.message, name  # noqa: PT017
    assert (
        {"an", "bce", "hill", "splc", "csl", "ll-r", "ll-ct", "ll-cp", "boostlu", "gr"} <= set(found) <= set(recipes())
    )
    for name, regime in found.items():
        assert all(np.isfinite(curve).all() for curve in regime), name
        assert np.abs(np.concatenate(regime[1:])).max() > 0, name
    few = {name: found[name] for name in ("an", "gr", "splc")}
    analysis.draw_gradient_regimes(few, tmp_path / "regimes.png", caption="whose it is")
    assert is_picture(tmp_path / "regimes.png")
    with pytest.raises(UserError, match="no method"):
        analysis.draw_gradient_regimes({}, tmp_path / "none.png")


def test_a_step_that_needs_its_own_head_is_named():
    class Inside(Method):
        def step(self, model, batch, epoch):
            return model.head.embedding.sum()

    with pytest.raises(UserError, match="'embedding' of its own head"):
        analysis.gradient_regime(Inside(BCE()), epoch=1, points=5)
    with pytest.raises(UserError, match="a loss of rankings"):
        analysis.gradient_regime(recipe("warp").make())


def landscape_case(name, **options):
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 0, 1], (12, 4)).astype(np.int8)
    features = torch.from_numpy(rng.normal(size=(12, 5))).float()
    method = recipe(name).make(**options)
    method.start(LabelTable.from_dense(labels))
    model = Model(None, seeded(0, lambda: Linear(5, 4)))
    return model, method, Batch(torch.arange(12), (features,), torch.from_numpy(labels))


def test_landscape_is_the_loss_of_the_moved_weights():
    model, method, batch = landscape_case("bce")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = analysis.loss_landscape(model, method, batch, span=0.5, steps=5, seed=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert math.isclose(found.loss[2, 2], float(method.step(model, batch, 1).detach()), rel_tol=1e-6)
    generator = torch.Generator().manual_seed(3)
    weight = model.head.linear.weight.detach()
    directions = []
    for _ in range(2):
        drawn = torch.randn(weight.shape, generator=generator)
        for row in range(len(drawn)):
            drawn[row] *= weight[row].norm() / drawn[row].norm()
        directions.append(drawn)
    for row, y in enumerate(found.y):
        for column, x in enumerate(found.x):
            moved = weight + float(x) * directions[0] + float(y) * directions[1]
            logits = batch.views[0] @ moved.T + model.head.linear.bias.detach()
            slow = sum(
                math.log1p(math.exp(-y_known * float(value)))
                for value, y_known in zip(logits.flatten().tolist(), batch.labels.flatten().tolist(), strict=True)
                if y_known
            )
            assert math.isclose(found.loss[row, column], slow / logits.numel(), rel_tol=1e-5)
    again = analysis.loss_landscape(model, method, batch, span=0.5, steps=5, seed=3)
    np.testing.assert_array_equal(found.loss, again.loss)
    assert not np.array_equal(found.loss, analysis.loss_landscape(model, method, batch, span=0.5, steps=5).loss)


def test_a_landscape_moves_filters_of_any_shape_by_their_own_norms():
    _, method, batch = landscape_case("bce")
    model = Model(None, seeded(0, lambda: Weldon(5, 4)))
    batch = Batch(batch.index, (batch.views[0][:, :, None, None].expand(-1, -1, 3, 3),), batch.labels)
    told = []
    found = analysis.loss_landscape(model, method, batch, steps=3, progress=lambda *both: told.append(both))
    assert told[-1] == (9, 9)
    assert math.isclose(found.loss[1, 1], float(method.step(model, batch, 1).detach()), rel_tol=1e-6)
    weight = model.head.conv.weight.detach()
    direction = analysis._direction(weight, torch.Generator().manual_seed(0))
    for one, other in zip(direction, weight, strict=True):
        assert math.isclose(float(one.norm()), float(other.norm()), rel_tol=1e-5)


def test_landscape_leaves_what_the_method_remembers():
    model, method, batch = landscape_case("ll-cp", delta=10.0)
    method.step(model, batch, 2)
    before = method.relabel.flipped.dense()
    assert before.any()
    analysis.loss_landscape(model, method, batch, epoch=3, steps=3)
    assert torch.equal(method.relabel.flipped.dense(), before)
    assert method.training
    assert model.training
    with pytest.raises(UserError, match="steps"):
        analysis.loss_landscape(model, method, batch, steps=1)


def test_pictures_are_written(tmp_path):
    scores, truth = make()
    truth[:, 2] = 0
    densities = analysis.score_densities(scores, truth)
    analysis.draw_score_densities(densities, tmp_path / "densities.png", [f"name $^${c}" for c in range(6)], most=3)
    both = {name: analysis.probability_histograms(scores, labels) for name, labels in (("a$^$b", truth), ("c", -truth))}
    analysis.draw_probability_histograms(both, tmp_path / "histograms.png")
    analysis.draw_loss_landscape(analysis.loss_landscape(*landscape_case("bce"), steps=5), tmp_path / "landscape.png")
    assert all(is_picture(tmp_path / f"{name}.png") for name in ("densities", "histograms", "landscape"))
    empty = analysis.score_densities(np.zeros((0, 3)), np.zeros((0, 3)))
    analysis.draw_score_densities(empty, tmp_path / "empty.png", ["a", "b", "c"])
    assert is_picture(tmp_path / "empty.png")
