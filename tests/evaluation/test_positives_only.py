"""Calibration from positives only: simulated labels whose truth is known, and the formulas against slow loops."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions, fit_decisions
from halflabel.evaluation.evaluate import measure
from halflabel.evaluation.positives_only import (
    _chosen_share,
    expected_f1_threshold,
    expected_threshold,
    fit_chosen_labels,
    fit_given_labels,
    fit_positives_only,
    match_positives_per_image,
)
from halflabel.labels.names import Names


def simulate(images: int = 8000, classes: int = 8, prior: float = -1.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logits with p = σ(2 x − 1), the probabilities, and which classes are present; no image is empty."""
    generator = np.random.default_rng(0)
    logits = generator.normal(prior, 2.0, size=(images, classes))
    p = 1 / (1 + np.exp(-(2 * logits - 1)))
    present = generator.random(p.shape) < p
    has_positive = present.any(1)
    return logits[has_positive], p[has_positive], present[has_positive]


def choose_one(present: np.ndarray) -> np.ndarray:
    generator = np.random.default_rng(1)
    labels = np.zeros(present.shape, np.int8)
    for row, classes in enumerate(present):
        labels[row, generator.choice(np.flatnonzero(classes))] = 1
    return labels


def test_the_chosen_share_is_that_of_all_combinations() -> None:
    p = np.array([[0.2, 0.9, 0.5, 0.0]])
    for column in range(4):
        other_columns, expected = [c for c in range(4) if c != column], 0.0
        for combination in product((0, 1), repeat=3):
            chance = np.prod([p[0, c] if on else 1 - p[0, c] for c, on in zip(other_columns, combination, strict=True)])
            expected += chance / (1 + sum(combination))
        assert _chosen_share(p)[0, column] == pytest.approx(expected, abs=1e-9)


def test_probabilities_from_one_chosen_label_per_image() -> None:
    logits, p, present = simulate()
    calibration = fit_chosen_labels(logits, choose_one(present))
    fitted = calibration.scores(torch.from_numpy(logits)).numpy()
    assert float(fitted.sum(1).mean()) == pytest.approx(present.sum(1).mean(), rel=0.12)
    assert float(np.abs(fitted - p).mean()) < 0.05
    assert "random" in calibration.assumption


def test_a_nonlinear_curve_is_fitted() -> None:
    """As with label smoothing: above 0 the logits grow three times as fast as the scores of the model."""
    logits, p, present = simulate(prior=-1)
    z = 2 * logits - 1
    calibration = fit_chosen_labels(np.where(z > 0, 3 * z, z), choose_one(present))
    fitted = calibration.scores(torch.from_numpy(np.where(z > 0, 3 * z, z))).numpy()
    assert calibration.bend < 0.7
    assert float(np.abs(fitted - p).mean()) < 0.05


@pytest.mark.parametrize("factor", [3.0, 0.5])
def test_labels_given_at_a_constant_rate_fit_a_nonlinear_curve(factor: float) -> None:
    """Scores above 0 that grow faster than their odds are corrected; others keep their share, and no bend exceeds 1."""
    logits, p, present = simulate(prior=-1)
    z = 2 * logits - 1
    labels = (present & (np.random.default_rng(2).random(p.shape) < 0.5)).astype(np.int8)
    x = np.where(z > 0, factor * z, z)
    calibration = fit_given_labels(x, labels)
    assert calibration.bend < 0.7 if factor > 1 else calibration.bend == pytest.approx(1, abs=0.05)
    assert calibration.bend <= 1
    assert abs(int(calibration.assumption.rsplit(" ", 2)[1]) - 50) <= 8
    assert float(np.abs(calibration.scores(torch.from_numpy(x)).numpy() - p).mean()) < 0.05


@pytest.mark.parametrize("differ", [True, False])
def test_classes_have_their_own_curves_where_known_labels_show_it(differ: bool) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3000, 4))
    offsets = np.array([-2.0, -1.0, 0.0, 2.0]) if differ else np.zeros(4)
    p = 1 / (1 + np.exp(-(2 * logits + offsets)))
    labels = np.where(generator.random(p.shape) < p, 1, -1) * (generator.random(p.shape) < 0.5)
    labels[:200] = np.minimum(labels[:200], 0)  # at least as many known negatives as positives
    labels[:1500][(labels[:1500] > 0) & (generator.random((1500, 4)) < 0.5)] = 0
    calibration = fit_decisions(torch.from_numpy(logits), torch.from_numpy(labels.astype(np.int8))).calibration
    assert bool(calibration.class_slope) == differ


def test_the_assumption_depends_on_the_positives_per_image() -> None:
    logits, p, present = simulate(600)
    single = choose_one(present)
    several = (present & (np.random.default_rng(2).random(p.shape) < 0.6)).astype(np.int8)
    assert fit_positives_only(logits, single) == fit_chosen_labels(logits, single)
    assert fit_positives_only(logits, several) == fit_given_labels(logits, several)
    single[:5] = several[:5]  # a few answers do not change the kind of labels
    assert fit_positives_only(logits, single) == fit_chosen_labels(logits, single)


@pytest.mark.parametrize("labels", [np.zeros((6, 3), np.int8), np.ones((6, 3), np.int8)])
def test_uninformative_labels_leave_the_scores_unchanged(labels: np.ndarray) -> None:
    calibration = fit_positives_only(np.zeros((6, 3)), labels)
    assert (calibration.slope, calibration.offset) == (1.0, 0.0)
    assert calibration.assumption


def test_a_stated_number_of_positives_is_met() -> None:
    logits = simulate(500)[0]
    logits[3] = np.nan
    for number in (0.5, 1.7, 5.0):
        scores = match_positives_per_image(logits, Calibration(2.0, 7.0), number).scores(torch.from_numpy(logits))
        assert float(scores.nansum(1).sum() / (len(logits) - 1)) == pytest.approx(number, rel=1e-3)


def test_the_threshold_maximises_the_expected_f1() -> None:
    p = np.random.default_rng(0).beta(0.3, 2, size=(200, 5))
    p[0, 0] = np.nan

    def expected_f1(threshold: float) -> float:
        predicted = p >= threshold
        return float(2 * np.nansum(p[predicted]) / (predicted.sum() + np.nansum(p)))

    best = expected_f1_threshold(p)
    assert expected_f1(best) >= max(expected_f1(cut) for cut in np.linspace(0.01, 0.99, 99)) - 1e-9
    assert expected_f1_threshold(np.full((2, 2), np.nan)) == 0.5


def test_thresholds_reach_the_target_precision_or_recall() -> None:
    p = np.random.default_rng(0).beta(0.5, 1, size=(300, 4))
    p[0, 0] = np.nan
    predicted = p >= (threshold := expected_threshold(p, precision=0.8))
    assert 0.8 <= p[predicted].mean() < 0.81
    predicted = p >= expected_threshold(p, recall=0.6)
    assert 0.6 <= p[predicted].sum() / np.nansum(p) < 0.61
    assert expected_threshold(p, precision=0.9) > threshold
    assert expected_threshold(p * 0.5, precision=0.9) == 1.0


def test_precision_is_estimated_where_it_cannot_be_measured() -> None:
    logits, _, present = simulate()
    labels = torch.from_numpy(choose_one(present))
    calibration, thresholds = fit_decisions(torch.from_numpy(logits), labels)
    decisions = Decisions(calibration, thresholds)
    result = measure(torch.from_numpy(logits), labels, Names(list("abcdefgh")), decisions)
    predicted = calibration.scores(torch.from_numpy(logits)).numpy() >= thresholds.numpy()
    precision = (predicted & present).sum() / predicted.sum()
    assert result.overall["estimated_precision"] == pytest.approx(precision, abs=0.05)
    assert np.isnan(result.overall["mAP"])
    assert calibration.assumption in result.protocol
