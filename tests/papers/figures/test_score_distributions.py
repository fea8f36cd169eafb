"""Score densities and histograms, against slow loops and SciPy; each picture is written."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from halflabel.errors import UserError
from halflabel.papers.figures import (
    draw_score_densities,
    score_densities,
)
from halflabel.report.curves import probability_histograms


def make(seed=0, images=80, classes=6):
    rng = np.random.default_rng(seed)
    truth = rng.choice([-1, -1, 0, 1], (images, classes)).astype(np.int8)
    scores = np.clip(rng.beta(2, 5, (images, classes)) + 0.3 * (truth > 0), 0, 1)
    return scores.round(2), truth


def is_picture(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width > 200 and height > 200


def slow_distance(positives, negatives):
    """∫ |F⁺ − F⁻| over every interval between neighbouring scores."""
    points = sorted({*positives, *negatives})
    total = 0.0
    for low, high in itertools.pairwise(points):
        above = sum(s <= low for s in positives) / len(positives) - sum(s <= low for s in negatives) / len(negatives)
        total += abs(above) * (high - low)
    return total


def test_distances_are_scipys_and_the_slow_loops():
    scores, truth = make()
    densities = score_densities(scores, truth)
    for c in range(truth.shape[1]):
        positives, negatives = scores[truth[:, c] > 0, c], scores[truth[:, c] < 0, c]
        assert math.isclose(densities.per_class[c], wasserstein_distance(positives, negatives), abs_tol=1e-12)
        assert math.isclose(
            densities.per_class[c], slow_distance(positives.tolist(), negatives.tolist()), abs_tol=1e-12
        )
    assert math.isclose(densities.distance, wasserstein_distance(scores[truth > 0], scores[truth < 0]), abs_tol=1e-12)


def test_densities_integrate_to_one_and_ends_are_right():
    scores, truth = make()
    densities = score_densities(scores, truth, bins=17)
    for density in (densities.present, densities.absent):
        assert math.isclose((density * np.diff(densities.edges)).sum(), 1)
    perfect = score_densities((truth > 0).astype(float), truth)
    np.testing.assert_allclose(perfect.per_class, 1)
    np.testing.assert_allclose(score_densities(np.full(truth.shape, 0.3), truth).per_class, 0, atol=1e-12)


def test_unread_images_and_empty_sides():
    scores, truth = make()
    truth[:, 1] = -1
    broken = scores.copy()
    broken[:9] = np.nan
    actual, clean = score_densities(broken, truth), score_densities(scores[9:], truth[9:])
    np.testing.assert_allclose(actual.per_class, clean.per_class, atol=1e-12)
    assert np.isnan(actual.per_class[1])
    assert not np.isnan(np.delete(actual.per_class, 1)).any()
    np.testing.assert_allclose(actual.present, clean.present)
    nothing = score_densities(scores[:1], np.zeros((1, 6)))
    assert np.isnan(nothing.per_class).all()
    assert math.isnan(nothing.distance)
    assert np.isnan(nothing.present).all()
    assert np.isnan(score_densities(np.zeros((0, 3)), np.zeros((0, 3))).per_class).all()


def test_histograms_count_every_entry_once():
    scores, labels = make()
    scores[3, 2] = 1.0
    scores[4] = np.nan
    histograms = probability_histograms(scores, labels, bins=10)
    for counts, value in ((histograms.present, 1), (histograms.absent, -1), (histograms.unknown, 0)):
        slow = [0] * 10
        for s, y in zip(scores.flat, labels.flat, strict=True):
            if y == value and not math.isnan(s):
                slow[min(int(np.searchsorted(histograms.edges, s, side="right")) - 1, 9)] += 1
        assert counts.tolist() == slow


@pytest.mark.parametrize("function", [score_densities, probability_histograms])
def test_logits_and_odd_shapes_are_refused(function):
    scores, labels = make()
    with pytest.raises(UserError, match="sigmoid"):
        function(scores * 4 - 2, labels)
    with pytest.raises(UserError, match="shape"):
        function(scores[:-1], labels)


def test_pictures_are_written(tmp_path):
    scores, truth = make()
    truth[:, 2] = 0
    densities = score_densities(scores, truth)
    draw_score_densities(densities, tmp_path / "densities.png", [f"name $^${c}" for c in range(6)], most=3)
    assert is_picture(tmp_path / "densities.png")
    empty = score_densities(np.zeros((0, 3)), np.zeros((0, 3)))
    draw_score_densities(empty, tmp_path / "empty.png", ["a", "b", "c"])
    assert is_picture(tmp_path / "empty.png")
