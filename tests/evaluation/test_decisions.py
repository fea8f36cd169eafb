"""Calibration from few to many known negatives: no label decides alone, and probabilities stay near the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halflabel.evaluation.decisions import calibrate

Arrays = tuple[NDArray[np.float32], NDArray[np.int8]]


def world(seed: int, images: int, classes: int, slope: float = 1.5, mean: float = -1.0) -> Arrays:
    """Return logits and the truth (N, C); classes differ in how often they are present."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(mean, 1.5, (images, classes)).astype(np.float32)
    p = 1 / (1 + np.exp(-slope * logits - generator.normal(0, 0.5, (1, classes))))
    return logits, np.where(generator.random(p.shape) < p, 1, -1).astype(np.int8)


def hide(truth: NDArray[np.int8], seed: int, *, present: float, absent: float) -> NDArray[np.int8]:
    """Keep these shares of the present and of the absent labels."""
    share = np.where(truth > 0, present, absent)
    return np.where(np.random.default_rng(seed + 1).random(truth.shape) < share, truth, 0).astype(np.int8)


def with_negatives(labels: NDArray[np.int8], truth: NDArray[np.int8], count: int) -> NDArray[np.int8]:
    """Return positives alone and so many absent labels at random; more of them contain fewer."""
    result = np.maximum(labels, 0)
    entries = np.argwhere(truth < 0)
    chosen = entries[np.random.default_rng(9).permutation(len(entries))[:count]]
    result[tuple(chosen.T)] = -1
    return result


def mean_probability(logits: NDArray[np.float32], labels: NDArray[np.int8]) -> float:
    return float(calibrate(logits, labels).scores(logits).mean())


SHARES = st.sampled_from([0.02, 0.1, 0.3, 0.8, 1.0])
WORLDS = st.tuples(*map(st.integers, (0, 60, 1), (10_000, 400, 6)), st.floats(0, 2), st.floats(-2, 2))


@settings(max_examples=25)
@given(numbers=WORLDS, present=SHARES, absent=SHARES, is_balanced=st.booleans(), place=st.integers(0, 10_000))
def test_no_label_moves_the_mean_probability_by_more_than_three_points(
    numbers: tuple[int, int, int, float, float], present: float, absent: float, is_balanced: bool, place: int
) -> None:
    logits, truth = world(*numbers)
    labels = hide(truth, numbers[0], present=present, absent=absent)
    if is_balanced:
        labels = with_negatives(labels, truth, int((labels > 0).sum()))
    known = np.argwhere(labels != 0)
    if min((labels > 0).sum(), (labels < 0).sum()) <= 50:
        return
    image, column = known[place % len(known)]
    fewer = labels.copy()
    fewer[image, column] = 0
    assert abs(mean_probability(logits, fewer) - mean_probability(logits, labels)) < 0.03


@pytest.mark.parametrize("mean", [-1.5, 1.0])
def test_labels_of_a_random_half_are_calibrated_whatever_the_share_of_negatives(mean: float) -> None:
    logits, truth = world(3, 600, 5, mean=mean)
    labels = hide(truth, 3, present=0.5, absent=0.5)
    assert mean_probability(logits, labels) == pytest.approx(float((truth > 0).mean()), abs=0.03)


@pytest.mark.parametrize("negatives", [0, 1, 5, 20, 50, 200, 600])
def test_positives_with_some_negatives_are_calibrated(negatives: int) -> None:
    logits, truth = world(5, 1500, 5)
    labels = with_negatives(hide(truth, 5, present=0.5, absent=0), truth, negatives)
    assert mean_probability(logits, labels) == pytest.approx(float((truth > 0).mean()), abs=0.05)


def test_negatives_that_were_asked_about_change_little() -> None:
    """Absent labels of likely entries tell how they were chosen, not that likely entries are absent."""
    logits, truth = world(11, 1500, 5)
    labels = hide(truth, 11, present=0.5, absent=0)
    likely = np.argwhere((truth < 0) & (logits > np.median(logits[truth > 0])))[:60]
    labels[tuple(likely.T)] = -1
    assert mean_probability(logits, labels) == pytest.approx(float((truth > 0).mean()), abs=0.05)
