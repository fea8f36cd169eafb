"""Estimates by inclusion weights: against slow loops, and unbiased over draws from strata of unequal size."""

from __future__ import annotations

import numpy as np
import pytest

from halflabel.evaluation.calibration import fit_correction
from halflabel.evaluation.inclusion import counts_in_curve, weighted_share


def draw_strata(strata: np.ndarray, number: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw so many entries of each stratum; return their numbers and their inclusion weights."""
    drawn, weights = [], []
    for stratum in np.unique(strata):
        entries = np.flatnonzero(strata == stratum)
        drawn.append(generator.choice(entries, number, replace=False))
        weights.append(np.full(number, len(entries) / number))
    return np.concatenate(drawn), np.concatenate(weights)


def slow_share(weight: list[float], present: list[bool]) -> tuple[float, float]:
    above = below = squares = 0.0
    for w, is_present in zip(weight, present, strict=True):
        above += w if is_present else 0.0
        below += w
        squares += w * w
    return above / below, below**2 / squares


def slow_counts(weight: list[float], score: list[float]) -> list[float]:
    order = sorted(range(len(weight)), key=lambda k: score[k])
    side = max(2, int(len(weight) * 0.05))
    relative = [0.0] * len(weight)
    for place, k in enumerate(order):
        neighbours = [order[min(max(place + step, 0), len(order) - 1)] for step in range(-side, side + 1)]
        relative[k] = weight[k] / (sum(weight[n] for n in neighbours) / len(neighbours))
    number = sum(relative) ** 2 / sum(r * r for r in relative)
    return [r * number / sum(relative) for r in relative]


@pytest.mark.parametrize("count", [1, 2, 5, 60, 200])
def test_equal_to_slow_loops(count: int) -> None:
    generator = np.random.default_rng(count)
    weight, present = generator.uniform(1, 900, count), generator.random(count) < 0.4
    score = generator.normal(size=count)
    share, number = weighted_share(weight, present)
    assert (share, number) == pytest.approx(slow_share(weight.tolist(), present.tolist()))
    counts = counts_in_curve(weight, score)
    assert counts.tolist() == pytest.approx(slow_counts(weight.tolist(), score.tolist()))
    groups = np.array([3, 0, 2]), np.array([1, 0, 2]), np.array([2.0, 9.0, 30.0])  # answers, present, weight
    expected = slow_share([2.0] * 3 + [30.0] * 2, [True, False, False, True, True])
    assert weighted_share(groups[2], groups[1], groups[0]) == pytest.approx(expected)


def test_equal_weights_change_nothing() -> None:
    generator = np.random.default_rng(0)
    score, weight = generator.normal(size=50), np.full(50, 37.5)
    np.testing.assert_allclose(counts_in_curve(weight, score), 1)
    assert weighted_share(weight, np.arange(50) < 20) == pytest.approx((0.4, 50))
    assert len(counts_in_curve(weight[:0], score[:0])) == 0


def test_a_share_is_unbiased_over_draws_from_unequal_strata() -> None:
    generator = np.random.default_rng(0)
    strata = np.repeat([0, 1, 2], [100, 900, 9000])
    present = generator.random(10_000) < np.array([0.9, 0.5, 0.1])[strata]
    shares, plain, covered = [], [], 0
    for _ in range(400):
        drawn, weight = draw_strata(strata, 40, generator)
        share, number = weighted_share(weight, present[drawn])
        assert number < 120
        shares.append(share)
        plain.append(present[drawn].mean())
        covered += abs(share - present.mean()) < 1.96 * np.sqrt(share * (1 - share) / number)
    error = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - present.mean()) < 3 * error
    assert np.mean(plain) > present.mean() + 0.2  # what a plain random sample would have said
    assert covered > 0.85 * 400


def correct(log_odds: np.ndarray, present: np.ndarray, strata: np.ndarray, *, weighted: bool) -> float:
    """Return the corrected number of present entries, divided by the true one, as a mean over draws."""
    generator, ratios = np.random.default_rng(1), []
    for _ in range(30):
        drawn, weight = draw_strata(strata, 200, generator)
        fitted = fit_correction(log_odds[drawn], present[drawn], weight if weighted else np.ones(len(drawn)))
        ratios.append(float(fitted.scores(log_odds).sum()) / present.sum())
    return float(np.mean(ratios))


def test_a_curve_is_unbiased_where_strata_know_more_than_the_score() -> None:
    """Strata by an earlier model, which saw what the present one does not."""
    generator = np.random.default_rng(0)
    log_odds, unseen = generator.normal(-2.5, 3, 20_000), generator.normal(0, 2, 20_000)
    present = generator.random(20_000) < 1 / (1 + np.exp(-(log_odds + unseen - 1)))
    strata = (log_odds + unseen > 1).astype(int)
    assert correct(log_odds, present, strata, weighted=True) == pytest.approx(1, abs=0.05)
    assert correct(log_odds, present, strata, weighted=False) > 1.15
