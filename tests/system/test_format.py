"""How metrics are shown: in points of 100."""

from __future__ import annotations

import math

import pytest

from halflabel.system.format import points


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8294, "82.9"), (0.0, "0.0"), (1.0, "100.0"), (0.99999, "100.0"), (math.nan, "—"), (-0.00001, "0.0")],
)
def test_metrics_are_points_of_100(value: float, text: str) -> None:
    assert points(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "+1.23"), (-0.0123, "−1.23"), (-0.0004, "−0.04"), (-0.00001, "0.00"), (0.0, "0.00"), (math.nan, "—")],
)
def test_differences_have_two_digits_and_a_sign(value: float, text: str) -> None:
    assert points(value, 2, signed=True) == text
