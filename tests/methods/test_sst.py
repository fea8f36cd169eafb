"""SST and HST: whole steps against slow loops, thresholds, and restarts."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks as checks
import torch

from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.types import Batch

slow = checks.reference("sst")
shared = slow.shared
SMALL = {"vector_size": 6, "width": 3, "rank": 4, "bank": 4}


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
    features = torch.from_numpy(rng.normal(1, 1, size=(images, channels, *size)))  # alike enough for guesses
    return method.double(), model, Batch(torch.arange(images), (features,), torch.from_numpy(table.dense()))


def slow_step(method, model, batch, examples, thetas):
    """The step of the paper, given the content of the bank and the two thresholds; None for no guesses."""
    scored = [shared.head(image, model.head) for image in batch.views[0]]
    logits, features = [row for row, _ in scored], [row for _, row in scored]
    labels = batch.labels.tolist()
    pairs = [slow.pair_logits(image, method.cooccurrence) for image in features]
    loss = shared.bce(logits, shared.known(labels))
    loss = loss + method.pair_weight * slow.pair_loss(pairs, labels)
    loss = loss + method.contrast_weight * shared.contrast(features, labels)
    if thetas is not None:
        for scores, theta in zip((slow.within(pairs, labels), slow.across(features, examples)), thetas, strict=True):
            loss = loss + method.guess_weight * shared.bce(logits, slow.guessed(scores, labels, theta))
    return loss, features


def agree(actual, expected, weights):
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)
    grads = (
        torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True) for value in (actual, expected)
    )
    for gradient, expected_gradient in zip(*grads, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("images", "classes"), [(5, 3), (2, 1)])
@pytest.mark.parametrize("size", [(2, 2), (1, 1)])
def test_steps_of_sst_are_the_slow_loop(images, classes, size):
    method, model, batch = make("sst", images, classes, size=size, warm=1, theta=0.1, theta_floor=0.05)
    weights = [*model.parameters(), *method.cooccurrence.parameters()]
    examples = [[] for _ in range(classes)]
    guessed = 0
    for epoch in (1, 2, 3):
        theta = {1: None, 2: 0.1, 3: 0.075}[epoch]
        expected, features = slow_step(method, model, batch, examples, None if theta is None else (theta, theta))
        if theta is not None:
            targets = slow.guessed(slow.across(features, examples), batch.labels.tolist(), theta)
            guessed += targets != shared.known(batch.labels.tolist())
        agree(method.step(model, batch, epoch), expected, weights)
        for image, row in zip(features, batch.labels.tolist(), strict=True):
            for c, y in enumerate(row):
                if y == 1:
                    examples[c] = [*examples[c], image[c].detach()][-4:]
    assert guessed, "nothing was guessed: the loop shows nothing"


def test_hst_uses_prototypes_instead_of_the_bank():
    method, model, batch = make("hst", warm=1, theta=0.5, theta_floor=0.45, thresholds="falling", prototypes=2)
    method.step(model, batch, 1)
    loss = method.step(model, batch, 2)
    prototypes = method.prototypes
    examples = [
        list(rows) if exists else [] for rows, exists in zip(prototypes.centres, prototypes.exists, strict=True)
    ]
    expected, features = slow_step(method, model, batch, examples, (0.5, 0.5))
    total, count = 0.0, 0
    for image, row in zip(features, batch.labels.tolist(), strict=True):
        for c, y in enumerate(row):
            if y and examples[c]:
                similarity = sum(shared.cosine(image[c], prototype) for prototype in examples[c]) / len(examples[c])
                total, count = total + 1 - y * similarity, count + 1
    assert count
    agree(loss, expected + method.contrast_weight * total / count, list(model.parameters()))


def test_thresholds_are_learned_from_known_labels():
    """Scores that are high where labels are absent push θ up, low ones of present labels pull it down."""
    from halflabel.methods.parts.transfer import threshold_loss

    theta = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    scores, has_score = torch.tensor([[0.9, 0.2, 0.9]], dtype=torch.float64), torch.tensor([[True, True, False]])
    for label, sign in ((-1, -1), (1, 1)):  # the step goes against the gradient
        labels = torch.tensor([[label if label < 0 else 0, label if label > 0 else 0, label]])
        (slope,) = torch.autograd.grad(threshold_loss(scores, has_score, labels, theta), theta)
        assert float(slope) * sign > 0
    labels = torch.tensor([[1, -1, 1]])
    expected = sum(np.log1p(np.exp(-y * 10 * (s - 0.6))) for y, s in ((1, 0.9), (-1, 0.2))) / 2
    assert float(threshold_loss(scores, has_score, labels, theta).detach()) == pytest.approx(expected)


def test_learned_thresholds_move_and_stay_between_0_and_1():
    method, model, batch = make("hst", warm=0, prototypes=2)
    method.step(model, batch, 1)
    method.theta.data.fill_(1.5)
    method._epoch = 0
    loss = method.step(model, batch, 2)
    assert float(method.theta.detach().max()) <= 1
    loss.backward()
    assert bool(method.theta.grad.any())
