"""Transfer and blending between labels and images, against slow loops; feature banks; clusters."""

from __future__ import annotations

import numpy as np
import pytest
import step_checks
import torch

from halflabel.methods.parts.feature_bank import FeatureBank, Prototypes, cluster_centres
from halflabel.methods.parts.transfer import (
    Cooccurrence,
    contrastive_loss,
    cooccurrence_scores,
)
from halflabel.methods.sarb import blend_images, blend_prototypes

slow, pairwise = step_checks.reference("semantic"), step_checks.reference("sst")
SHAPES = [(5, 3), (1, 4), (5, 1), (1, 1)]


def inputs(images, classes, width=3, seed=0, choices=(-1, 0, 1)):
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.normal(size=(images, classes, width))).requires_grad_()
    labels = torch.from_numpy(rng.choice(choices, (images, classes)).astype(np.int8))
    if images > 1:
        labels[0] = 0
    return features, labels


def same(actual, expected, *leaves):
    """Equal in value, and in the gradient of all leaves."""
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    if not expected.requires_grad:
        return
    gradients, expected_gradients = (
        torch.autograd.grad(value.sum(), leaves, retain_graph=True) for value in (actual, expected)
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("choices", [(-1, 0, 1), (1, 1), (-1, -1), (0, 0)])
def test_contrast_is_the_slow_loop(shape, choices):
    features, labels = inputs(*shape, choices=choices)
    same(contrastive_loss(features, labels), slow.contrast(features, labels.tolist()), features)


def network(classes, width=3, rank=4):
    torch.manual_seed(1)
    part = Cooccurrence(width, rank)
    part.start(classes)
    return part.double()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("numbers", [1 << 17, 8])
def test_pairs_are_the_slow_loop(shape, numbers, monkeypatch):
    monkeypatch.setattr("halflabel.methods.parts.transfer._CHUNK_NUMBERS", numbers)
    features, labels = inputs(*shape)
    part = network(shape[1])
    expected_logits = [pairwise.pair_logits(image, part) for image in features]
    every = torch.ones(shape[0], shape[1], shape[1]).triu(1).nonzero(as_tuple=True)
    pair_logits = part(features)
    logits = pair_logits(*every)
    assert len(logits) == sum(map(len, expected_logits))
    if len(logits):
        torch.testing.assert_close(
            logits, torch.stack([x for line in expected_logits for x in line.values()]), rtol=1e-9, atol=0
        )
    leaves = [features, part.first.weight, part.second.weight, part.weight, part.bias]
    if shape[1] > 1:
        same(part.pair_loss(pair_logits, labels), pairwise.pair_loss(expected_logits, labels.tolist()), *leaves)
    scores, has_score = cooccurrence_scores(pair_logits, labels)
    line = pairwise.within(expected_logits, labels.tolist())
    same(scores, [[score for score, _ in row] for row in line])
    assert has_score.tolist() == [[known for _, known in row] for row in line]


@pytest.mark.parametrize("size", [1, 3, 50])
def test_the_bank_keeps_the_last_ones_and_similarity_is_the_slow_mean(size):
    bank = FeatureBank(size)
    bank.start(4, 3)
    stored = [[] for _ in range(4)]
    for seed in range(4):
        features, labels = inputs(5, 4, seed=seed, choices=(-1, 0, 1, 1))
        labels[:, 3] = -1  # never seen
        bank.remember(features, labels)
        for image, row in zip(features, labels, strict=True):
            for c, y in enumerate(row):
                if y == 1:
                    stored[c] = [*stored[c], image[c].detach()][-size:]
    for c in range(4):
        banked = sorted(tuple(row.tolist()) for row in bank.features[c, bank.filled[c]])
        assert banked == sorted(tuple(row.float().tolist()) for row in stored[c])
    features, _ = inputs(5, 4, seed=9)
    expected = [[score for score, _ in row] for row in pairwise.across(features, stored)]
    torch.testing.assert_close(bank.similarity(features).double(), torch.tensor(expected, dtype=torch.float64))


def test_clusters_that_lie_apart_are_found_and_few_points_repeat():
    rng = np.random.default_rng(0)
    middle = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = (middle.repeat(5, 1) + 0.1 * torch.from_numpy(rng.normal(size=(15, 2))).float())[None].repeat(3, 1, 1)
    is_filled = torch.ones(3, 15, dtype=torch.bool)
    is_filled[1, 2:] = False
    is_filled[2] = False
    centres = cluster_centres(points, is_filled, 3)
    means = torch.stack([points[0, number::3].mean(0) for number in range(3)])
    order = [int((centres[0] - mean).norm(dim=1).argmin()) for mean in means]
    torch.testing.assert_close(centres[0][order], means)
    distinct = sorted({tuple(row) for row in centres[1].tolist()})
    assert distinct == sorted(tuple(row) for row in points[1, :2].tolist())
    assert not centres[2].any()


def test_prototypes_by_quadrant_are_means_and_are_made_in_the_right_epochs():
    part = Prototypes(8, 10, "quadrants")
    part.start(2, 2)
    features = torch.tensor([[[1.0, 0], [0, 0]], [[3.0, 0], [0, 0]], [[0, 8.0], [0, 0]]])
    labels = torch.tensor([[1, -1], [1, 0], [1, 0]])
    part.bank.remember(features, labels, torch.tensor([[0, 0], [0, 0], [2, 0]]))
    part.refresh(5, 6, 5)
    assert not part.exists.any()
    part.refresh(6, 6, 5)
    class_mean = [4 / 3, 8 / 3]
    torch.testing.assert_close(part.centres[0], torch.tensor([[2.0, 0], class_mean, [0, 8.0], class_mean]))
    assert part.exists.tolist() == [True, False]
    part.bank.remember(features * 100, labels, torch.zeros(3, 2))
    for epoch in (6, 7, 10):
        part.refresh(epoch, 6, 5)
    assert float(part.centres.max()) == 8
    part.refresh(11, 6, 5)
    assert float(part.centres.max()) > 8


def test_prototypes_are_made_once_in_an_epoch_that_is_resumed():
    part = Prototypes(4, 1)
    part.start(1, 2)
    part.bank.remember(torch.ones(1, 1, 2), torch.ones(1, 1))
    part.refresh(6, 6, 5)
    resumed = Prototypes(4, 1)
    resumed.start(1, 2)
    resumed.load_state_dict(part.state_dict())
    resumed.bank.remember(torch.full((1, 1, 2), 9.0), torch.ones(1, 1))
    resumed.refresh(6, 6, 5)
    assert torch.equal(resumed.centres, part.centres)
    assert float(resumed.similarity(torch.ones(1, 1, 2))) == pytest.approx(1)


@pytest.mark.parametrize("shape", SHAPES)
def test_blending_images_is_the_slow_loop(shape):
    actual, labels = inputs(*shape, choices=(-1, 0, 0, 1))
    alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    partner = torch.from_numpy(np.random.default_rng(0).permutation(shape[0]))
    blend = blend_images(actual, labels, partner, alpha)
    features, pos, neg = [], [], []
    for n, row in enumerate(labels.tolist()):
        m = int(partner[n])
        for c, y in enumerate(row):
            mixed = y == 0 and labels[m, c] == 1
            features.append(alpha * actual[n, c] + (1 - alpha) * actual[m, c] if mixed else actual[n, c])
            pos.append(1 - alpha if mixed else alpha * 0 + float(y == 1))
            neg.append(alpha if mixed else alpha * 0 + float(y == -1))
    same(blend.features, torch.stack(features).view_as(actual), actual)
    same(blend.targets.pos, torch.stack(pos).view(shape), alpha)
    same(blend.targets.neg, torch.stack(neg).view(shape), alpha)


def test_blending_prototypes_changes_chosen_unknown_labels_alone():
    actual, _ = inputs(2, 3)
    labels = torch.tensor([[0, 0, 1], [-1, 0, 0]])
    chosen = torch.tensor([[True, False, True], [True, False, True]])
    centres, number = torch.stack([torch.zeros(3, 3), torch.ones(3, 3)], 1), torch.ones(2, 3, dtype=torch.int64)
    blend = blend_prototypes(actual, labels, chosen, centres, number, torch.tensor(0.25))
    mixed = torch.tensor([[True, False, False], [False, False, True]])
    assert torch.equal(blend.mixed, mixed)
    torch.testing.assert_close(blend.features[mixed], 0.25 * actual[mixed] + 0.75)
    torch.testing.assert_close(blend.features[~mixed], actual[~mixed])
    assert blend.targets.pos.tolist() == [[0.75, 0, 1], [0, 0, 0.75]]
    assert blend.targets.neg.tolist() == [[0.25, 0, 0], [1, 0, 0.25]]
