"""The map of photos: similar ones stand together, every photo has a place, and the places are stored."""

from __future__ import annotations

import time

import numpy as np

from halflabel.review import photo_map
from halflabel.review.photo_map import PhotoMap, lay_out


def three_groups(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    group = np.arange(count) % 3
    return (5 * np.eye(3, 16)[group] + draw.normal(size=(count, 16))).astype(np.float16), group


def share_of_neighbours(places: np.ndarray, group: np.ndarray) -> float:
    """The share of photos whose nearest other one is of the same group."""
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    return float((group[distance.argmin(1)] == group).mean())


def test_similar_photos_stand_together_also_those_beyond_the_sample() -> None:
    features, group = three_groups(150)
    for embedded in (150, 60):
        places = lay_out(features, embedded)
        assert places.shape == (150, 2)
        assert places.min() >= -0.05
        assert places.max() <= 1.05
        assert share_of_neighbours(places, group) > 0.95
    np.testing.assert_array_equal(places, lay_out(features, 60))


def test_few_or_unreadable_photos_have_a_place() -> None:
    assert np.isfinite(lay_out(np.full((9, 4), np.nan, np.float16))).all()
    for count in (0, 1, 4):
        assert lay_out(np.ones((count, 4), np.float16)).shape == (count, 2)


def test_places_are_computed_once(project, tmp_path, monkeypatch) -> None:
    session = project.session()
    path = tmp_path / "map.npz"

    def wait(made: PhotoMap) -> dict:
        while not (points := made.points())["ready"]:
            time.sleep(0.01)
        return points

    first = wait(PhotoMap(session, path))
    assert len(first["x"]) == len(first["images"]) == len(session.images)
    monkeypatch.setattr(photo_map, "lay_out", None)
    assert wait(PhotoMap(session, path)) == first


def test_colours_follow_scores_labels_and_answers(project, tmp_path) -> None:
    session = project.session()
    shown = PhotoMap(session, tmp_path / "map.npz")
    label = session.classes[3]
    before = shown.colours(label)
    table = session.scored.table.dense()
    assert before["state"] == table[:, 3].tolist()
    np.testing.assert_allclose(before["chance"], 100 * session.scored.scores[:, 3], atol=0.51)
    image = before["state"].index(0)
    session.add_answers([("key-of-answer", image * len(session.classes) + 3, -1)])
    assert shown.colours(label)["state"][image] == -1
    assert set(shown.colours("")["best"]) <= set(range(-1, len(session.classes)))
