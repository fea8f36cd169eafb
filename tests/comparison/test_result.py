"""Intervals over images and seeds together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import t

from halflabel import metrics
from halflabel.comparison.result import TaskScore, difference, interval, paired_interval, photos_to_see


def slow(values: list[float], replicates: list[list[float]], positives: int) -> tuple[float, float, float]:
    """The formula of a difference, step by step."""
    seeds = len(values)
    mean = sum(values) / seeds
    means = [sum(row[r] for row in replicates) / seeds for r in range(len(replicates[0]))]
    centre = sum(means) / len(means)
    of_images = sum((m - centre) ** 2 for m in means) / (len(means) - 1)
    of_seeds = sum((v - mean) ** 2 for v in values) / (seeds - 1) / seeds if seeds > 1 else 0.0
    freedom = (of_images + of_seeds) ** 2 / (of_seeds**2 / (seeds - 1)) if of_seeds else math.inf
    half = t.ppf(0.975, freedom) * math.sqrt(of_images + of_seeds + (0.25 / positives) ** 2)
    return mean, mean - half, mean + half


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_difference_is_the_formula(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    values = rng.normal(0.2, 0.01, seeds)
    replicates = values[:, None] + rng.normal(0, 0.05, (seeds, 50))
    for positives in (3, 1000):
        expected = slow(values.tolist(), replicates.tolist(), positives)
        assert tuple(difference(values, replicates, positives)) == pytest.approx(expected)


def test_interval_of_one_seed_is_that_of_the_bootstrap() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 0, 1], size=(30, 4), p=[0.7, 0.2, 0.1]).astype(np.int8)
    bootstrap = metrics.bootstrap(rng.normal(size=labels.shape) + labels, labels, n=50)
    positives = metrics.positives_of_mean(torch.from_numpy((labels > 0).sum(0)))
    actual_interval = interval(np.array([bootstrap.mean]), bootstrap.replicates.numpy()[None], positives)
    assert tuple(actual_interval) == pytest.approx((bootstrap.mean, bootstrap.mean_low, bootstrap.mean_high), abs=1e-9)


def test_interval_of_seeds_is_the_formula_of_the_metric() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.6, 0.02, 3)
    replicates = values[:, None] + 0.01 + rng.normal(0, 0.03, 50)
    centre, low, high = slow(values.tolist(), replicates.tolist(), 10**9)
    of_seeds, variance = values.var(ddof=1) / 3, replicates.mean(0).var(ddof=1) + values.var(ddof=1) / 3
    reports = [centre, variance, replicates.mean() - centre, 200]
    quantile = t.ppf(0.975, variance**2 / (of_seeds**2 / 2))
    assert (high - low) / 2 == pytest.approx(quantile * variance**0.5)
    ends = metrics.limits(*torch.tensor(reports, dtype=torch.float64), quantile)
    assert tuple(interval(values, replicates, 200)) == pytest.approx((centre, float(ends[0]), float(ends[1])))


def test_difference_covers_the_truth_at_the_stated_level() -> None:
    """Three seeds on one draw of images; the replicates know the spread of images, the values that of seeds."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        image_effect = rng.normal(0, 0.02)
        values = image_effect + rng.normal(0, 0.02, 3)
        replicates = values[:, None] + rng.normal(0, 0.02, 100)  # the same images for all seeds
        _, low, high = difference(values, replicates, 500)
        hits.append(low <= 0 <= high)
    assert 0.92 <= np.mean(hits) <= 0.99


def test_few_positives_widen_the_interval_of_a_difference() -> None:
    """Methods that rank all positives alike: with few positives a difference might not show."""
    mean, low, high = difference(np.zeros(3), np.zeros((3, 20)), 1)
    assert (mean, low, high) == pytest.approx((0, -0.49, 0.49), abs=1e-3)
    assert difference(np.zeros(3), np.zeros((3, 20)), 100).high == pytest.approx(0.0049, abs=1e-5)
    assert tuple(difference(np.ones(1), np.ones((1, 20)), 1)) == pytest.approx((1, 0.51, 1), abs=1e-3)


def test_equal_scores_differ_by_nothing_and_nearly_equal_ones_by_little() -> None:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(np.where(rng.random((200, 4)) < 0.1, 1, -1))
    logits = rng.normal(size=(200, 4)) + labels.numpy()

    def score(values: NDArray[np.float64]) -> TaskScore:
        result = metrics.bootstrap(torch.from_numpy(values), labels, n=50)
        positives = metrics.positives_of_mean((labels > 0).sum(0))
        known = np.ones(values.shape, bool)
        return TaskScore(float(result.mean), result.replicates.double().numpy(), positives, {}, (values, known))

    assert tuple(paired_interval([score(logits)], [score(logits.copy())])) == (0, 0, 0)
    near = paired_interval([score(logits)], [score(logits + 1e-3 * rng.normal(size=logits.shape))])
    far = paired_interval([score(logits)], [score(logits + rng.normal(size=logits.shape))])
    assert near.high - near.low < 0.1 * (far.high - far.low)
    assert near.low <= 0 <= near.high


def test_four_times_the_photos_halve_the_difference_that_they_show() -> None:
    rng = np.random.default_rng(0)
    scores, others = ([TaskScore(0.5, 0.5 + rng.normal(0, 0.02 / 2**0.5, 4000), 50)] for _ in range(2))
    assert photos_to_see(scores, others, 1000) == pytest.approx(1000 * (1.96 * 2) ** 2, rel=0.1)
    assert photos_to_see(scores, scores, 1000) == 0


def test_no_known_positive_has_no_interval() -> None:
    nothing = np.full((1, 20), np.nan)
    for ends in (interval(nothing[:, 0], nothing, 0), difference(nothing[:, 0], nothing, 0)):
        assert all(math.isnan(value) for value in ends)


def test_seeds_that_differ_widen_the_interval() -> None:
    draws = np.tile(np.linspace(0.4, 0.6, 30), (2, 1))
    calm, wild = (interval(np.array(values), draws, 500) for values in ((0.5, 0.5), (0.4, 0.6)))
    assert wild.high - wild.low > 2 * (calm.high - calm.low)
    calm, wild = (difference(np.array(values), draws, 500) for values in ((0.5, 0.5), (0.4, 0.6)))
    assert wild.high - wild.low > 2 * (calm.high - calm.low)


def test_replicates_without_a_positive_are_left_out() -> None:
    replicates = np.array([[0.4, np.nan, 0.6, 0.5]])
    for of in (interval, difference):
        assert of(np.array([0.5]), replicates, 9) == of(np.array([0.5]), replicates[:, [0, 2, 3]], 9)
