"""Reliability, and thinning of curves."""

from __future__ import annotations

import numpy as np
import pytest

from halflabel.evaluation.thresholded import calibration_error
from halflabel.report.curves import reliability, thin
from halflabel.system.rng import uniform


def test_reliability_sums_to_the_calibration_error() -> None:
    scores = uniform(0, np.arange(300)[:, None], np.arange(4))
    scores[0, 0] = 1.0
    labels = np.where(uniform(1, np.arange(300)[:, None], np.arange(4)) < 0.3, 1, -1).astype(np.int8)
    labels[:, 1] = 0
    curve = reliability(scores, labels, bins=10)
    error = np.nansum(curve.entries * abs(curve.score - curve.present)) / curve.entries.sum()
    assert error == pytest.approx(calibration_error(scores, labels, bins=10))
    assert (curve.low < curve.present).all()
    assert (curve.present < curve.high).all()
    empty = reliability(np.full((2, 1), 0.05), np.array([[1], [-1]]), bins=10)
    assert empty.entries.tolist() == [2] + [0] * 9
    assert np.isnan(empty.present[1:]).all()


def test_thinning_keeps_the_ends_and_the_peak() -> None:
    x = np.arange(10_001.0)
    y = np.where(abs(x - 5_000) < 3, 1.0, 0.0)
    a, b = thin(x, y, 50)
    assert len(a) <= 50
    assert (a[0], a[-1], b.max()) == (0, 10_000, 1)
    assert thin(x[:50], y[:50], 50)[0] is not None
    assert len(thin(x[:50], y[:50], 50)[0]) == 50
