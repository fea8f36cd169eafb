"""Fills by control answers keep their promise, and more answers find no less: cells of benchmarks/fill_promises.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from halflabel.filling.plan import FillOptions

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: tests/reference has an omp, too
from fill_promises import plan, simulate

OPTIONS = FillOptions(precision=0.95, confidence=0.9)


def draw(kind: str, wrong: float, seed: int, count: int = 100) -> tuple[float, int]:
    """Return the share of fills that is right, and the number of present labels found, answers included."""
    scores, table, truth = simulate(300, 5, kind, wrong, seed)
    planned = plan(scores, table, truth, OPTIONS, seed, count)
    assert planned is not None
    value = planned.rows().training.dense()
    shares = [float((truth[value == sign] == sign).mean()) for sign in (1, -1) if (value == sign).any()]
    answered = 0 if planned.answered is None else int((planned.answered.dense() > 0).sum() - (table.dense() > 0).sum())
    return min(shares, default=1.0), int((value > 0).sum()) + answered


@pytest.mark.parametrize(("kind", "wrong"), [("random", 0.0), ("photos", 0.05), ("easy", 0.0), ("easy", 0.05)])
def test_the_precision_is_reached_as_often_as_promised(kind: str, wrong: float) -> None:
    assert np.mean([draw(kind, wrong, seed)[0] >= OPTIONS.precision for seed in range(8)]) >= 0.75


def test_more_answers_find_no_less() -> None:
    found = [np.mean([draw("positives", 0.0, seed, count)[1] for seed in range(8)]) for count in (15, 30, 60)]
    assert found == sorted(found)
