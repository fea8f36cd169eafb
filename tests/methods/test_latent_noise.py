"""Latent noise against the loop over entries."""

import math

import numpy as np
import pytest
import step_checks
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.methods.latent_noise import LatentNoiseHead, relevance
from halflabel.types import Batch

slow = step_checks.reference("latent_noise")


def _logits(seed, *shape):
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_relevance_equals_the_slow_formula():
    visual, present, absent = _logits(0, 3, 4, 5)
    probabilities = torch.sigmoid(relevance(visual, present, absent))
    for at in np.ndindex(4, 5):
        expected = slow.relevance(visual[at].item(), present[at].item(), absent[at].item())
        assert probabilities[at].item() == pytest.approx(expected, rel=1e-12)


def test_relevance_is_exact_where_probabilities_round_to_0_or_1():
    visual = torch.tensor([80.0, -80.0, 80.0, 1e4], dtype=torch.float64)
    present = torch.tensor([80.0, 3.0, -80.0, -1e4], dtype=torch.float64)
    absent = torch.tensor([-80.0, -90.0, -80.0, -1e4], dtype=torch.float64)
    # h = 1 − 2e^−80;  h = e^−80 r₁ + e^−90 ≈ e^−80 r₁ (1 + e^−10 / r₁);  h = e^−80;  h = e^−10000
    r1 = 1 / (1 + math.exp(-3))
    expected = [80 - math.log(2), -80 + math.log(r1) + math.log1p(math.exp(-10) / r1), -80.0, -1e4]
    np.testing.assert_allclose(relevance(visual, present, absent), expected, rtol=1e-12)


@pytest.mark.parametrize(("images", "classes"), [(6, 5), (1, 4), (5, 1)])
def test_the_whole_step(images, classes):
    labels = np.random.default_rng(images).integers(-1, 2, (images, classes)).astype(np.int8)
    labels[0], labels[-1, -1] = 0, -1  # an image of which nothing is known, and at least one known absence
    method = recipe("latent-noise").make(noise_rate=0.5)
    method.start(Table.from_dense(labels))
    head = method.head(3, classes).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    features = _logits(2, images, 3)
    batch = Batch(torch.arange(images), (features,), torch.from_numpy(labels))
    loss = method.step(Model(None, head).train(), batch, 1)
    at = [features @ head.visual.weight.T + head.visual.bias]
    at += [0.5 * features @ layer.weight.T + layer.bias for layer in (head.present, head.absent)]
    assert loss.item() == pytest.approx(slow.loss(*(part.tolist() for part in at), labels.tolist()), rel=1e-9)


def test_training_scores_relevance_and_evaluation_the_chosen_score():
    features = _logits(3, 4, 6).float()
    head = LatentNoiseHead(6, 3)
    for parameter in (head.present.weight, head.absent.bias):
        torch.nn.init.normal_(parameter)
    reported = head.train()(features).logits
    visual = head.eval()(features).logits
    torch.testing.assert_close(visual, head.visual(features))
    assert not torch.allclose(visual, reported)
    head.score = "relevance"
    torch.testing.assert_close(head(features).logits, reported)
    maps = features[:, :, None, None].expand(-1, -1, 2, 3)
    torch.testing.assert_close(head.class_maps(maps)[:, :, 1, 2], visual)
    with pytest.raises(UserError, match="use one of: visual, relevance"):
        recipe("latent-noise").make(score="both").head(6, 3)
