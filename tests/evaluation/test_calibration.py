"""Calibration scaling: against its likelihood, and on labels drawn from known probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from halflabel.evaluation.calibration import Calibration, fit_platt


def drawn(slope: float, offset: float, n: int = 40_000, known: float = 0.5) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (n // 4, 4))
    labels = np.where(rng.random(logits.shape) < 1 / (1 + np.exp(-slope * logits - offset)), 1, -1)
    labels[rng.random(logits.shape) > known] = 0
    return torch.from_numpy(logits).float(), torch.from_numpy(labels.astype(np.int8))


@pytest.mark.parametrize(("slope", "offset"), [(1, 0), (0.3, -1), (2, 1.5)])
def test_slope_and_offset_of_the_labels_are_recovered(slope: float, offset: float) -> None:
    logits, labels = drawn(slope, offset)
    calibration = fit_platt(logits, labels)
    assert calibration.slope == pytest.approx(slope, rel=0.06)
    assert calibration.offset == pytest.approx(offset, abs=0.06)
    assert calibration.known == int((labels != 0).sum())


def test_fit_maximises_platts_likelihood() -> None:
    logits, labels = drawn(0.7, 0.4, n=400)
    calibration = fit_platt(logits, labels)
    known = labels.numpy() != 0
    x, present = logits.numpy()[known].astype(np.float64), labels.numpy()[known] > 0
    n_pos, n_neg = present.sum(), (~present).sum()
    target = np.where(present, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))

    def likelihood(slope: float, offset: float) -> float:
        p = 1 / (1 + np.exp(-slope * x - offset))
        return float((target * np.log(p) + (1 - target) * np.log(1 - p)).mean())

    best = likelihood(calibration.slope, calibration.offset)
    for step in (1e-3, -1e-3):
        assert likelihood(calibration.slope + step, calibration.offset) < best
        assert likelihood(calibration.slope, calibration.offset + step) < best


def test_unknown_entries_and_unreadable_images_do_not_count() -> None:
    logits, labels = drawn(0.5, 1, n=800)
    before = fit_platt(logits, labels)
    spoiled = torch.where(labels == 0, 99.0, logits)
    assert fit_platt(spoiled, labels) == before
    more = torch.cat([logits, torch.full((3, 4), math.nan)]), torch.cat([labels, torch.ones(3, 4, dtype=torch.int8)])
    assert fit_platt(*more) == before


def test_perfectly_separated_labels_keep_a_finite_slope() -> None:
    logits = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    calibration = fit_platt(logits, logits.sign().to(torch.int8))
    assert 0 < calibration.slope < 100
    scores = calibration.scores(logits)
    assert bool((scores > 0).all() and (scores < 1).all())


@pytest.mark.parametrize("value", [1, -1, 0], ids=["positives only", "negatives only", "nothing"])
def test_without_both_signs_nothing_is_fitted(value: int) -> None:
    assert fit_platt(torch.randn(5, 2), torch.full((5, 2), value, dtype=torch.int8)) == Calibration()


@given(
    st.lists(st.tuples(st.floats(-1e4, 1e4, width=32), st.sampled_from([-1, 0, 1])), min_size=1, max_size=30),
)
def test_any_scores_give_a_finite_rising_pair(entries: list[tuple[float, int]]) -> None:
    logits = torch.tensor([[x] for x, _ in entries])
    labels = torch.tensor([[y] for _, y in entries], dtype=torch.int8)
    calibration = fit_platt(logits, labels)
    assert math.isfinite(calibration.slope)
    assert math.isfinite(calibration.offset)
    assert calibration.slope > 0
