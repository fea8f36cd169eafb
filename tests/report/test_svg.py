"""The charts: positions, ticks and labels, and reliability."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from halflabel.evaluation.thresholded import calibration_error
from halflabel.report import svg
from halflabel.system.rng import uniform


def test_chart_puts_values_where_they_belong() -> None:
    drawn = svg.interval_chart(
        ["a"], np.array([0.5]), np.array([0.0]), np.array([1.0]), alt="x", reference=math.nan, span=(0, 1)
    )
    whisker = re.search(r'<line x1="([\d.]+)" x2="([\d.]+)" y1="[\d.]+" y2="[\d.]+" class="whisker">', drawn)
    circle = re.search(r'cx="([\d.]+)"', drawn)
    assert whisker is not None
    assert circle is not None
    assert float(circle[1]) == pytest.approx((float(whisker[1]) + float(whisker[2])) / 2)
    ends = np.array([0.4])
    dots = [np.array([0.45, 0.55])]
    drawn = svg.interval_chart(["m"], np.array([0.5]), ends, 1 - ends, alt="", reference=math.nan, dots=dots)
    assert drawn.count('class="f1 seed"') == 2
    assert drawn.count('class="middle"') == 1
    assert 'r="4"' not in drawn


def test_axes_have_names_and_enough_ticks() -> None:
    shares = svg.Series("m", np.array([10.0, 50.0]), np.array([0.3, 0.5]))
    drawn = svg.interval_lines([shares._replace(low=shares.y, high=shares.y)], alt="", labels=("%", "mAP"))
    assert ">mAP</text>" in drawn
    assert {"10", "50"} <= set(re.findall(r'text-anchor="middle">([\d.]+)</text>', drawn))
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn)]
    assert 46 < places[0] < places[1] < svg.WIDTH - 10
    assert "m at 50: 50.0 (50.0 – 50.0)" in drawn
    assert {"30", "35", "50"} <= set(re.findall(r'text-anchor="end">([\d.]+)</text>', drawn))
    value, low, high = np.array([[-0.0123], [-0.03], [0.005]])
    drawn = svg.interval_chart(["m"], value, low, high, alt="", reference=0.0, span=(-0.03, 0.01), differences=True)
    assert "m: −1.23 (−3.00 to +0.50)" in drawn
    assert {"−3", "−2", "0"} <= set(re.findall(r'text-anchor="middle">([−\d.]+)</text>', drawn))
    edges = np.array([-0.5, 0.5, 1.5])  # single positives: none without, all with one
    drawn = svg.histogram(np.array([0, 9]), edges, "plain", alt="", labels=("n", ""), integers=True)
    ticks = re.findall(r">([−\d.]+)</text>", drawn)
    assert "1" in ticks
    assert all("." not in tick and "−" not in tick for tick in ticks)


def test_reliability_sums_to_the_calibration_error() -> None:
    scores = uniform(0, np.arange(300)[:, None], np.arange(4))
    scores[0, 0] = 1.0
    labels = np.where(uniform(1, np.arange(300)[:, None], np.arange(4)) < 0.3, 1, -1).astype(np.int8)
    labels[:, 1] = 0
    curve = svg.reliability(scores, labels, bins=10)
    error = np.nansum(curve.entries * abs(curve.score - curve.present)) / curve.entries.sum()
    assert error == pytest.approx(calibration_error(scores, labels, bins=10))
    assert (curve.low < curve.present).all()
    assert (curve.present < curve.high).all()
    empty = svg.reliability(np.full((2, 1), 0.05), np.array([[1], [-1]]), bins=10)
    assert empty.entries.tolist() == [2] + [0] * 9
    assert np.isnan(empty.present[1:]).all()
