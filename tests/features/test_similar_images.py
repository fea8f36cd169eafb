"""Similar images against a slow loop, at the edges and after saving."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from halflabel.features.similar_images import SimilarImages, nearest_images


def make(images: int = 12, channels: int = 5, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(images, channels, generator=generator)
    return features, (torch.rand(images, classes, generator=generator) > 0.5).float()


@pytest.mark.parametrize(("weight", "count"), [(0.0, 1), (0.4, 3), (1.0, 12)])
def test_scores_are_mixed_with_the_guesses_of_the_most_similar_images(weight: float, count: int) -> None:
    features, guesses = make()
    similar = SimilarImages.build(torch.eye(5), features, guesses, weight=weight, count=count, sharpness=5.0)
    new, logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), torch.linspace(-3, 3, 12).view(4, 3)
    mixed = torch.sigmoid(similar(new, logits))
    for row in range(len(new)):  # with as many keys as channels a cosine of keys is that of the features
        cosines = [float(torch.cosine_similarity(new[row], reference, dim=0)) for reference in features]
        nearest = sorted(range(len(cosines)), key=lambda image: -cosines[image])[:count]
        shares = np.array([math.exp(5.0 * cosines[image]) for image in nearest])
        shares /= shares.sum()
        for column in range(3):
            guess = sum(share * float(guesses[image, column]) for share, image in zip(shares, nearest, strict=True))
            expected = (1 - weight) / (1 + math.exp(-float(logits[row, column]))) + weight * guess
            assert float(mixed[row, column]) == pytest.approx(expected, abs=1e-3)  # keys have half precision


def test_extreme_logits_stay_finite() -> None:
    features, guesses = make()
    similar = SimilarImages.build(torch.eye(5), features, guesses, weight=0.3, count=2, sharpness=5.0)
    assert torch.isfinite(similar(features[:2], torch.tensor([[1e4, -1e4, 0.0]] * 2))).all()


def test_neighbours_are_never_of_the_same_fold() -> None:
    features, _ = make()
    fold = torch.arange(len(features)) % 3
    keys = torch.nn.functional.normalize(features, dim=1)
    references = torch.arange(0, len(features), 2)
    values, index = nearest_images(keys, fold, references, 4)
    for image in range(len(features)):
        candidates = [reference for reference in references.tolist() if fold[reference] != fold[image]]
        expected = sorted(candidates, key=lambda reference: -float(keys[image] @ keys[reference]))[:4]
        assert references[index[image]].tolist() == expected
        assert values[image].tolist() == pytest.approx(
            [float(keys[image] @ keys[reference]) for reference in expected], abs=1e-6
        )
