"""Intervals from images and seeds together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from halflabel.compare.result import interval


def slow(values: list[float], replicates: list[list[float]]) -> tuple[float, float, float]:
    """The formula, step by step."""
    seeds = len(values)
    mean = sum(values) / seeds
    means = [sum(row[r] for row in replicates) / seeds for r in range(len(replicates[0]))]
    centre = sum(means) / len(means)
    of_images = sum((m - centre) ** 2 for m in means) / (len(means) - 1)
    of_seeds = sum((v - mean) ** 2 for v in values) / (seeds - 1) / seeds if seeds > 1 else 0.0
    freedom = (of_images + of_seeds) ** 2 / (of_seeds**2 / (seeds - 1)) if of_seeds else math.inf
    half = t.ppf(0.975, freedom) * math.sqrt(of_images + of_seeds)
    return mean, mean - half, mean + half


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_interval_is_the_formula(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    values = rng.normal(0.5, 0.1, seeds)
    replicates = values[:, None] + rng.normal(0, 0.05, (seeds, 50))
    assert tuple(interval(values, replicates)) == pytest.approx(slow(values.tolist(), replicates.tolist()))


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Three seeds on one draw of images; the replicates know the spread of images, the values that of seeds."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        image_effect = rng.normal(0, 0.02)
        values = image_effect + rng.normal(0, 0.02, 3)
        replicates = values[:, None] + rng.normal(0, 0.02, 100)  # the same images for all seeds
        _, low, high = interval(values, replicates)
        hits.append(low <= 0 <= high)
    assert 0.92 <= np.mean(hits) <= 0.99


def test_no_difference_has_no_width() -> None:
    assert tuple(interval(np.zeros(3), np.zeros((3, 20)))) == (0, 0, 0)


def test_seeds_that_differ_widen_the_interval() -> None:
    calm = interval(np.array([0.5, 0.5]), np.tile(np.linspace(0.4, 0.6, 30), (2, 1)))
    wild = interval(np.array([0.4, 0.6]), np.tile(np.linspace(0.4, 0.6, 30), (2, 1)))
    assert wild.high - wild.low > 2 * (calm.high - calm.low)


def test_replicates_without_a_positive_are_left_out() -> None:
    replicates = np.array([[0.4, np.nan, 0.6, 0.5]])
    assert interval(np.array([0.5]), replicates) == interval(np.array([0.5]), replicates[:, [0, 2, 3]])
