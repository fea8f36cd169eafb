"""Normalised features against a slow loop, and what they do not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.features.feature_transform import CLASSIFIER_WEIGHT, MEAN_WEIGHT, FeatureTransform, principal_components


def slow(features: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The formula of FeatureTransform, image by image."""
    units, roots = [], []
    for row in features:
        root = np.array([np.sign(value) * abs(value) ** 0.5 for value in row])
        units.append(root / np.sqrt((root**2).sum()))
        logits = weight @ row + bias
        odds = np.exp(logits - logits.max())
        roots.append(np.sqrt(odds / odds.sum()))
    parts = []
    for part, factor in ((np.array(units), 1.0), (np.array(roots), CLASSIFIER_WEIGHT)):
        centred = part - part.mean(0)
        parts.append(factor * centred / np.sqrt((centred**2).sum(1)).mean())
    return np.concatenate(parts, axis=1)


def test_the_transform_follows_its_formula() -> None:
    generator = np.random.default_rng(0)
    features, weight, bias = generator.normal(size=(20, 5)), generator.normal(size=(7, 5)), generator.normal(size=7)
    classifier = (torch.tensor(weight).float(), torch.tensor(bias).float())
    values = torch.tensor(features).float()
    transform = FeatureTransform.fit(values, classifier)
    np.testing.assert_allclose(transform(values).numpy(), slow(features, weight, bias), atol=1e-5)
    plain = FeatureTransform.fit(values)
    np.testing.assert_allclose(plain(values).numpy(), slow(features, weight, bias)[:, :5], atol=1e-5)


def test_blocks_are_normalised_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    own, mean = torch.randn(20, 5, generator=generator), 100 * torch.randn(20, 3, generator=generator)
    both, classifier = torch.cat([own, mean], 1), (torch.eye(5), torch.zeros(5))
    transform = FeatureTransform.fit(both, classifier, blocks=(5, 3))
    first, second = FeatureTransform.fit(own, classifier), FeatureTransform.fit(mean)
    expected = torch.cat([first(own)[:, :5], MEAN_WEIGHT * second(mean), first(own)[:, 5:]], 1)
    torch.testing.assert_close(transform(both), expected)
    for block, used in ((1, "the network's own vector"), (0, "the mean over places")):
        part = transform.without(block)
        kept = expected.clone()
        kept[:, [slice(0, 5), slice(5, 8)][block]] = 0
        torch.testing.assert_close(part(both), kept)
        assert part.words == used


def test_unreadable_images_are_left_out_of_the_fit() -> None:
    values = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    with_bad = torch.cat([values, torch.full((2, 4), torch.nan)])
    torch.testing.assert_close(FeatureTransform.fit(with_bad)(values), FeatureTransform.fit(values)(values))
    with pytest.raises(UserError):
        FeatureTransform.fit(torch.full((2, 4), torch.nan))


def test_features_that_are_all_zero_stay_finite() -> None:
    values = torch.zeros(3, 4)
    assert torch.isfinite(FeatureTransform.fit(values)(values)).all()


def test_features_of_other_sources_are_only_centred_and_scaled() -> None:
    values = torch.rand(20, 3) * torch.tensor([1.0, 5.0, 0.1]) + 2
    transform = FeatureTransform.fit(values, of_backbone=False)
    centred = values - values.mean(0)
    torch.testing.assert_close(transform(values), centred / centred.norm(dim=1).mean())


@pytest.mark.parametrize("shape", [(200, 30), (20, 90)])
def test_principal_components_are_those_of_the_covariance(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(shape, generator=generator) * torch.logspace(0, -2, shape[1])
    directions, variance = principal_components(features, 8)
    values, vectors = torch.linalg.eigh(features.T @ features / len(features))
    torch.testing.assert_close(variance, values.flip(0)[:8], rtol=0.05, atol=1e-5)
    torch.testing.assert_close(directions.T @ directions, torch.eye(8), rtol=0, atol=1e-4)
    overlap = (directions[:, :4].T @ vectors.flip(1)[:, :4]).square().sum(1)  # 1: within the space of the first four
    assert float(overlap.min()) > 0.98
    everything, _ = principal_components(features, 1000)
    assert everything.shape == (shape[1], min(shape))
    torch.testing.assert_close(features @ everything @ everything.T, features, rtol=0, atol=1e-4)
