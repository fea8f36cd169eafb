"""What may be drawn of counts, and of classes that no decision can be wrong about."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.methods.base import recipe
from halflabel.report import svg as charts
from halflabel.report.judged import curves
from halflabel.report.run_facts import Measured


def test_counts_have_whole_ticks() -> None:
    """Of single positives: none without, all with one."""
    drawn = charts.columns(np.array([0, 9]), np.array([-0.5, 0.5, 1.5]), "plain", alt="", x_label="n", whole=True)
    ticks = re.findall(r">([−\d.]+)</text>", drawn)
    assert "1" in ticks
    assert all("." not in tick and "−" not in tick for tick in ticks)


def test_a_class_without_a_known_negative_has_no_curve() -> None:
    labels = np.array([[1, 1], [-1, 1], [1, 0]], np.int8)
    row = {"AP": math.nan, "threshold": 0.5, "recall": math.nan, "precision": math.nan, "present": 2, "absent": 0}
    found = Measured(
        images=np.arange(3),
        scores=np.array([[0.9, 0.8], [0.1, 0.9], [0.7, 0.6]], np.float32),
        labels=labels,
        thresholds=np.full(2, 0.5),
        overall={"OR": 1.0, "OP": 1.0},
        per_class=[{**row, "class": "judged"}, {**row, "class": "never wrong"}],
        protocol="",
    )
    text = curves(found)
    assert "judged" in text
    assert "never wrong" not in text


@pytest.mark.parametrize(("name", "regime", "why"), [("role", "full", "unknown"), ("softmax", "partial", "but one")])
def test_methods_are_refused_for_a_reason_that_is_true(name: str, regime: str, why: str) -> None:
    with pytest.raises(UserError, match="cannot learn from") as caught:
        recipe(name).check_regime(regime)
    assert why in caught.value.message
    assert "nothing is known" not in caught.value.message
