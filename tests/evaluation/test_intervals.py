"""Intervals of average precision against literal resampling, the formula in plain numbers, and a known population."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from metric_examples import close, make

from halflabel import metrics
from halflabel.errors import UserError


def slow_limits(value, replicates, positives, z):
    """The formula of the docstring, one number at a time."""
    drawn = [r for r in replicates if not math.isnan(r)]
    mean = sum(drawn) / len(drawn)
    variance = sum((r - mean) ** 2 for r in drawn) / (len(drawn) - 1)
    u = 2 / positives**2
    if 0 < value < 1:
        u += variance / (value * (1 - value))

    def wilson(c):
        half = z * math.sqrt(c * (1 - c) * u + z**2 * u**2 / 4)
        return (c + z**2 * u / 2 - half) / (1 + z**2 * u), (c + z**2 * u / 2 + half) / (1 + z**2 * u)

    return wilson(max(value - 2 * max(mean - value, 0), 0))[0], wilson(value)[1]


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("chunk", [1 << 22, 200])
def test_bootstrap_equals_literal_resampling(decimals, chunk, monkeypatch):
    monkeypatch.setattr("halflabel.evaluation.intervals._CHUNK_ENTRIES", chunk)
    scores, labels = make(50, images=40, classes=6, positive=0.15, decimals=decimals)
    labels[:, 1] = np.minimum(labels[:, 1], 0)
    labels[:, 2] = -1
    labels[7, 2] = 1  # a single positive: missing from about a third of the replicates
    scores[7, 3], labels[7, 3], labels[:7, 3], labels[8:, 3] = 1, 1, -1, -1  # one that ranks first
    n, seed, z = 200, 11, NormalDist().inv_cdf(0.95)
    drawn = metrics.resample(40, range(n), seed)
    assert drawn.min() == 0
    assert drawn.max() == 39
    literal = np.stack([metrics.average_precision(scores[index], labels[index]).numpy() for index in drawn])
    assert 0.2 < np.isnan(literal[:, 2]).mean() < 0.5
    result = metrics.bootstrap(scores, labels, n=n, level=0.9, seed=seed)
    means = np.nanmean(literal, axis=1)
    close(result.replicates, means, 1e-12)
    close(result.ap, metrics.average_precision(scores, labels))
    assert result.mean == metrics.mean_average_precision(scores, labels)
    positives = (labels > 0).sum(0)
    for c in (0, 2, 3, 4, 5):
        expected = slow_limits(float(result.ap[c]), literal[:, c].tolist(), int(positives[c]), z)
        close([result.ap_low[c], result.ap_high[c]], expected, 1e-9)
    counts = [int(count) for count in positives if count]
    effective = min(sum(counts), math.sqrt(2) * len(counts) / math.sqrt(sum(1 / count**2 for count in counts)))
    expected = slow_limits(result.mean, means.tolist(), effective, z)
    close([result.mean_low, result.mean_high], expected, 1e-9)
    assert result.ap_low[1].isnan()
    assert result.ap_high[1].isnan()


def test_bootstrap_depends_on_the_seed_alone():
    scores, labels = make(51)
    first, second = metrics.bootstrap(scores, labels, n=20, seed=3), metrics.bootstrap(scores, labels, n=20, seed=3)
    assert torch.equal(first.replicates, second.replicates)
    close(first.replicates[:7], metrics.bootstrap(scores, labels, n=7, seed=3).replicates)
    assert not torch.equal(first.replicates, metrics.bootstrap(scores, labels, n=20, seed=4).replicates)
    with pytest.raises(UserError, match="0 < level < 1"):
        metrics.bootstrap(scores, labels, level=95)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_interval_contains_its_value(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 4)))
    labels = data.draw(arrays.arrays(np.int8, shape, elements=st.integers(-1, 1)))
    scores = data.draw(arrays.arrays(np.float64, shape, elements=st.integers(0, 4).map(float)))
    interval = metrics.bootstrap(
        scores, labels, n=data.draw(st.integers(1, 12)), level=data.draw(st.floats(0.01, 0.999))
    )
    low, value, high = (
        torch.cat([part, torch.tensor([mean], dtype=torch.float64)])
        for part, mean in (
            (interval.ap_low, interval.mean_low),
            (interval.ap, interval.mean),
            (interval.ap_high, interval.mean_high),
        )
    )
    measured = torch.from_numpy((labels > 0).any(0) & (labels < 0).any(0))
    assert torch.equal(~value[:-1].isnan(), measured)
    known = ~value.isnan()
    assert torch.equal(low.isnan(), ~known)
    assert torch.equal(high.isnan(), ~known)
    assert ((low <= value) & (value <= high) & (low >= 0) & (high <= 1) & (low < high))[known].all()


def test_few_positives_give_wide_intervals():
    """All positives rank first: the fewer there are, the lower the lower end."""
    widths = []
    for positives in (1, 2, 4, 8, 100):
        labels = np.full((200, 1), -1, dtype=np.int8)
        labels[:positives] = 1
        interval = metrics.bootstrap(-np.arange(200.0)[:, None], labels, n=50)
        assert interval.ap_high == 1
        widths.append(1 - float(interval.ap_low))
    z2 = NormalDist().inv_cdf(0.975) ** 2
    close(widths, [2 * z2 / (2 * z2 + p**2) for p in (1, 2, 4, 8, 100)])
    close(widths[0], 0.885, 1e-3)
    # Sums of 1 / P would be 1 + 2e-16 of some.
    labels = np.where(np.arange(200)[:, None] <= np.arange(150), 1, -1).astype(np.int8)
    interval = metrics.bootstrap(-np.tile(np.arange(200.0)[:, None], 150), labels, n=20)
    assert (interval.ap == 1).all()
    assert (interval.ap_high == 1).all()
    assert (interval.ap_low < 1).all()


def test_a_higher_level_is_wider_and_bias_lowers_the_lower_end():
    scores, labels = make(55, images=200)
    small, large = metrics.bootstrap(scores, labels, n=200, level=0.5), metrics.bootstrap(scores, labels, n=200)
    assert (large.ap_low < small.ap_low)[~small.ap.isnan()].all()
    assert (large.ap_high > small.ap_high)[~small.ap.isnan()].all()
    assert large.mean_low < small.mean_low < small.mean < small.mean_high < large.mean_high
    one = torch.ones(1, dtype=torch.float64)
    plain = metrics.limits(0.5 * one, 0.01 * one, 0 * one, 50 * one)
    close(plain[0] + plain[1], 1)
    biased = metrics.limits(0.5 * one, 0.01 * one, 0.03 * one, 50 * one)
    assert biased[1] == plain[1]
    close(plain[0] - biased[0], 0.06, 0.01)
    assert metrics.limits(0.5 * one, 0.01 * one, -0.03 * one, 50 * one) == plain


def test_intervals_cover_the_truth_at_the_stated_level():
    """Scores of N(0, 1) where absent and N(d, 1) where present: AP of the population is an integral."""
    rng = np.random.default_rng(0)
    share, d = np.geomspace(0.01, 0.2, 8), np.linspace(1, 3, 8)
    cut = np.linspace(-6, 8, 2001)
    tail = np.vectorize(NormalDist().cdf)
    true_positives, false_positives = tail(d[:, None] - cut), tail(-cut)
    precision = (
        share[:, None] * true_positives / (share[:, None] * true_positives + (1 - share[:, None]) * false_positives)
    )
    truth = -np.trapezoid(precision, true_positives, axis=1)
    covered, mean_covered, quantiles_covered = [], [], []
    for _ in range(100):
        present = rng.random((100, 8)) < share
        scores = rng.normal(size=present.shape) + d * present
        labels = np.where(present, 1, -1).astype(np.int8)
        has_positive = present.any(0)
        interval = metrics.bootstrap(scores, labels, n=200)
        covered += ((interval.ap_low.numpy() <= truth) & (truth <= interval.ap_high.numpy()))[has_positive].tolist()
        target = truth[has_positive].mean()
        mean_covered.append(interval.mean_low <= target <= interval.mean_high)
        low, high = np.quantile(interval.replicates.numpy(), [0.025, 0.975])
        quantiles_covered.append(low <= target <= high)
    assert 0.93 <= np.mean(covered) <= 0.98
    assert 0.9 <= np.mean(mean_covered) <= 0.99
    assert np.mean(quantiles_covered) < 0.75  # plain quantiles of the replicates are too narrow
