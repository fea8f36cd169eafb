"""The interval of a share against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from halflabel.system.intervals import wilson


def test_wilson_is_scipys() -> None:
    counts = [(0, 5), (3, 7), (50, 50), (1, 200), (70_000, 90_000)]
    interval = wilson(*np.array(counts, np.int32).T)
    for (successes, trials), low, high in zip(counts, *interval, strict=True):
        expected = binomtest(successes, trials).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)
        assert 0 <= low <= high <= 1
    one_sided = binomtest(9, 10, alternative="greater").proportion_ci(method="wilson").low
    assert float(wilson(9, 10, z=1.6448536).low) == pytest.approx(one_sided, abs=1e-6)
    assert all(math.isnan(end) for end in wilson(0, 0))
