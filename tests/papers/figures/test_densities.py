"""Score densities against slow loops and SciPy, strongest edges, and names that the font has no letters for."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import wasserstein_distance

from halflabel.labels.names import Names
from halflabel.methods.parts.label_graph import Edges
from halflabel.methods.parts.matching_pursuit import Similar
from halflabel.papers.figures import FigureUnavailable, save_figure, score_densities, spread_queries, strongest_edges


def make(images=80, classes=6):
    rng = np.random.default_rng(0)
    truth = rng.choice([-1, -1, 0, 1], (images, classes)).astype(np.int8)
    return np.clip(rng.beta(2, 5, (images, classes)) + 0.3 * (truth > 0), 0, 1).round(2), truth


def slow_distance(positives, negatives):
    """∫ |F⁺ − F⁻| over every interval between neighbouring scores."""
    total = 0.0
    for low, high in itertools.pairwise(sorted({*positives, *negatives})):
        above = sum(s <= low for s in positives) / len(positives) - sum(s <= low for s in negatives) / len(negatives)
        total += abs(above) * (high - low)
    return total


def test_distances_are_scipys_and_the_slow_loops():
    scores, truth = make()
    densities = score_densities(scores, truth, bins=17)
    for c in range(truth.shape[1]):
        positives, negatives = scores[truth[:, c] > 0, c], scores[truth[:, c] < 0, c]
        slow = slow_distance(positives.tolist(), negatives.tolist())
        assert math.isclose(densities.per_class[c], slow, abs_tol=1e-12)
    whole = wasserstein_distance(scores[truth > 0], scores[truth < 0])
    assert math.isclose(densities.wasserstein, whole, abs_tol=1e-12)
    for density in (densities.present, densities.absent):
        assert math.isclose((density * np.diff(densities.edges)).sum(), 1)
    np.testing.assert_allclose(score_densities((truth > 0).astype(float), truth).per_class, 1)
    np.testing.assert_allclose(score_densities(np.full(truth.shape, 0.3), truth).per_class, 0, atol=1e-12)


def test_unread_images_and_empty_sides():
    scores, truth = make()
    truth[:, 1] = -1
    broken = scores.copy()
    broken[:9] = np.nan
    actual, clean = score_densities(broken, truth), score_densities(scores[9:], truth[9:])
    np.testing.assert_allclose(actual.per_class, clean.per_class, atol=1e-12)
    np.testing.assert_allclose(actual.present, clean.present)
    assert np.flatnonzero(np.isnan(actual.per_class)).tolist() == [1]
    nothing = score_densities(scores[:1], np.zeros((1, 6)))
    assert np.isnan([*nothing.per_class, nothing.wasserstein, *nothing.present]).all()


def test_strongest_edges_and_spread_queries():
    ends = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 2, 0, 1])
    after, before = (
        Edges(*ends, np.array([9, 0.5, 0.5, 2, 0, 1])),
        Edges(*ends, np.array([0.9, 0.1, 0.2, 0.3, 0.4, 0.5])),
    )
    edges = strongest_edges(before, after, Names(["dog", "cat", "sofa"]))
    expected = [("cat", "sofa", 2.0, 0.3), ("sofa", "cat", 1.0, 0.5), ("dog", "cat", 0.5, 0.1)]
    assert [tuple(edge) for edge in edges[:3]] == expected
    assert len(edges) == 4  # no loop, no edge of weight 0
    similar = Similar(torch.tensor([[1, 2], [0, -1], [-1, -1], [4, 0], [3, 1]]), (torch.rand(5, 2), torch.rand(5, 2)))
    assert spread_queries(similar) == [0, 1, 3, 4]
    assert spread_queries(similar, 2) == [0, 4]
    with pytest.raises(FigureUnavailable, match="not one image has a neighbour"):
        spread_queries(Similar(torch.full((5, 2), -1), similar.weights))


def test_a_name_in_letters_that_the_font_lacks_is_drawn_without_a_warning(tmp_path: Path) -> None:
    figure = Figure(layout="constrained")
    figure.subplots().set_title("犬 ꧁ cat")  # warnings are errors here
    save_figure(figure, tmp_path / "a.png", "犬")
    assert (tmp_path / "a.png").stat().st_size > 1000
