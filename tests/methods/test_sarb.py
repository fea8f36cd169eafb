"""SARB and SARB*: whole steps against a slow loop with the same draws, and what the star means."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.sarb import draw_unknown, quadrants
from halflabel.types import Batch

shared = checks.reference("semantic")
SMALL = {"vector_size": 6, "width": 3, "rank": 4, "bank": 5, "warm": 1}


def make(name, images=5, classes=3, channels=4, seed=0, size=(2, 2), **options):
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1, 0, 0, 1], (images, classes))
    labels[0] = 0
    labels[-1, 0] = 1
    table = Table.from_dense(labels)
    method = recipe(name).make(**{**SMALL, **options})
    torch.manual_seed(seed)
    model = Model(None, method.head(channels, classes))
    method.start(table, model)
    model = model.double().eval()
    torch.nn.init.normal_(model.head.attention.weight.weight)  # it starts at zero, where all places count alike
    features = torch.from_numpy(rng.normal(size=(images, channels, *size)))
    return method.double(), model, Batch(torch.arange(images), (features,), torch.from_numpy(table.dense()))


def slow_step(method, model, batch, draws):
    """The step of the paper, given what was drawn: partners, chosen labels, numbers of prototypes."""
    partner, chosen, number = draws
    scored = [shared.head(image, model.head) for image in batch.views[0]]
    logits, features = [row for row, _ in scored], [row for _, row in scored]
    labels = batch.labels.tolist()
    loss = shared.bce(logits, shared.known(labels)) + method.contrast_weight * shared.contrast(features, labels)
    for share, weight, instance in (
        (method.alpha, method.instance_weight, True),
        (method.beta, method.prototype_weight, False),
    ):
        blended, targets = [], shared.known(labels)
        for n, row in enumerate(labels):
            m, line = int(partner[n]), list(features[n])
            for c, y in enumerate(row):
                blended_with = features[m][c] if instance else method.prototypes.centres[c, int(number[n, c])]
                if y == 0 and (labels[m][c] == 1 if instance else bool(chosen[n, c])):
                    line[c] = share * features[n][c] + (1 - share) * blended_with
                    targets[n][c] = (1 - share, share)
            blended.append(shared.classify(line, model.head))
        loss = loss + weight * shared.bce(blended, targets)
    return loss


@pytest.mark.parametrize("name", ["sarb", "sarb*"])
@pytest.mark.parametrize("size", [(2, 2), (1, 1)])
def test_steps_are_the_slow_loop_with_the_same_draws(name, size, monkeypatch):
    method, model, batch = make(
        name, classes=4, size=size, width=13, instance_weight=0.7, prototype_weight=0.4, blends=2
    )
    first = method.step(model, batch, 1)
    plain = shared.bce(
        [shared.head(image, model.head)[0] for image in batch.views[0]], shared.known(batch.labels.tolist())
    )
    features = model(batch.views[0]).per_class
    contrast = method.contrast_weight * shared.contrast(features, batch.labels.tolist())
    torch.testing.assert_close(first, plain + contrast, rtol=1e-9, atol=1e-9)

    partner = torch.tensor([4, 2, 0, 1, 3])
    number = torch.from_numpy(np.random.default_rng(3).integers(0, 4, (5, 4)))
    chosen = (batch.labels == 0) & torch.tensor([True, False, True, False])
    monkeypatch.setattr("torch.randperm", lambda count, device=None: partner)
    monkeypatch.setattr("halflabel.methods.sarb.draw_unknown", lambda *_: chosen)
    monkeypatch.setattr(type(method), "_draw_prototypes", lambda self, labels, quadrant: number)
    loss = method.step(model, batch, 2)
    expected = slow_step(method, model, batch, (partner, chosen, number))
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    weights = [*model.parameters(), method.alpha, method.beta]
    grads = (torch.autograd.grad(value, weights, materialize_grads=True) for value in (loss, expected))
    for gradient, expected_gradient in zip(*grads, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-9)


def test_sarb_star_draws_from_another_quadrant():
    method, _, batch = make("sarb*")
    quadrant = torch.tensor([[0, 1, 2]] * 5)
    for seed in range(20):
        torch.manual_seed(seed)
        drawn = method._draw_prototypes(batch.labels, quadrant)
        assert bool((drawn != quadrant).all())
        assert int(drawn.min()) >= 0
        assert int(drawn.max()) <= 3


def test_quadrants_by_hand():
    maps = torch.zeros(1, 4, 4, 5)
    for label, (row, column) in enumerate([(1, 1), (0, 2), (2, 0), (3, 4)]):
        maps[0, label, row, column] = 1
    assert quadrants(maps).tolist() == [[0, 1, 2, 3]]


def test_drawn_labels_are_unknown_usable_and_as_many_as_asked():
    labels = torch.tensor([[0, 0, 0, 0], [0, 1, -1, 0], [1, 1, 1, 1], [0, 1, 1, 1]])
    usable = torch.tensor([False, True, True, True])
    ever_drawn = torch.zeros(4, 4, dtype=torch.bool)
    for seed in range(30):
        torch.manual_seed(seed)
        drawn = draw_unknown(labels, 2, usable)
        assert drawn.sum(1).tolist() == [2, 1, 0, 0]
        assert not (drawn & ((labels != 0) | ~usable)).any()
        ever_drawn |= drawn
    assert ever_drawn[0].tolist() == usable.tolist()
    assert draw_unknown(labels[:, :1], 3, usable[1:2]).sum(1).tolist() == [1, 1, 0, 1]


def test_shares_are_learned_without_decay_or_stay():
    method, _, _ = make("sarb")
    (group,) = method.parameter_groups(0.1)
    assert group["weight_decay"] == 0
    assert {id(p) for p in group["params"]} == {id(method.alpha), id(method.beta)}
    method, model, batch = make("sarb", learn=False)
    assert method.parameter_groups(0.1)[0]["params"] == []
    method.alpha.data.fill_(3.0)
    method.step(model, batch, 2)
    assert float(method.alpha) == 1
