"""The model that learns during a review: out-of-fold fits, questions, random checks, estimates, and the session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from halflabel import metrics
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs
from halflabel.images.sources import Features
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.questions.choose import Question
from halflabel.review.live import LiveReview, fit_probabilities, measure
from halflabel.review.live_questions import EntryAnswer, Explorer, draw_controls

CLASSES = 6


@pytest.fixture(scope="module")
def photos() -> tuple[torch.Tensor, np.ndarray]:
    """Features of 240 photos in 6 clusters, and their labels: the cluster, and sometimes another class."""
    draw = np.random.default_rng(0)
    cluster = draw.integers(0, CLASSES, 240)
    truth = -np.ones((240, CLASSES), np.int8)
    truth[np.arange(240), cluster] = 1
    second = draw.integers(0, CLASSES, 240)
    truth[np.flatnonzero(draw.random(240) < 0.3), second[draw.random(240).argsort()[:1]]] = 1
    centres = draw.normal(size=(CLASSES, 24))
    features = (truth > 0) @ centres + draw.normal(size=(240, 24))
    return torch.from_numpy(features.astype(np.float32)), truth


def rows_of(labels: np.ndarray) -> Labels:
    return Labels.of(Table.from_dense(labels))


def open_review(features: torch.Tensor, labels: np.ndarray, method: str = "wan", **more: Any) -> LiveReview:
    inputs = Inputs(lambda: Features(features, Names.numbered(len(features)), bad_rows(features)), of_backbone=False)
    config = Config(method=method, fit="linear", device="cpu", from_nothing=method == "wan", **more)
    return LiveReview(inputs, config, rows_of(labels))


def bad_rows(features: torch.Tensor) -> list[int]:
    return torch.isnan(features).any(1).nonzero()[:, 0].tolist()


def test_a_label_never_reaches_the_scores_of_its_own_image(photos) -> None:
    features, truth = photos
    labels = np.where(np.random.default_rng(1).random(truth.shape) < 0.3, truth, 0).astype(np.int8)
    labels[0, 0] = 1
    changed = labels.copy()
    changed[0] = [-1, 1, 1, 0, -1, 1]
    scores = []
    for known in (labels, changed):
        review = open_review(features, labels, "bce", l2_strength=1e-3)
        review.refit(rows_of(labels))
        scores.append(review.refit(rows_of(known)))
    np.testing.assert_allclose(scores[0][0], scores[1][0], atol=1e-5)
    assert np.abs(scores[0] - scores[1]).max() > 0.1


def test_unreadable_images_have_no_scores(photos) -> None:
    features, truth = photos
    broken = features.clone()
    broken[7] = torch.nan
    logits = open_review(broken, truth, "bce").refit(rows_of(truth))
    assert np.isnan(logits[7]).all()
    assert not np.isnan(np.delete(logits, 7, 0)).any()


def answer_all(review: LiveReview, truth: np.ndarray, count: int, *, random: bool = False):
    answers: dict[tuple[int, int], EntryAnswer] = {}
    entries = np.random.default_rng(0).permutation(truth.size)
    update = review.update([])
    while len(answers) < count:
        for item in update.queue:
            if (entry := (item.image, item.column)) in answers:
                assert item.is_control
                answers[entry] = answers[entry]._replace(weight=item.weight)
        queue = update.queue
        if random:
            queue = [Question(*divmod(int(e), CLASSES), 0.5, "") for e in entries[len(answers) :]]
        for item in queue[:20]:
            assert (item.image, item.column) not in answers
            value = int(truth[item.image, item.column])
            answers[item.image, item.column] = EntryAnswer(item.image, item.column, value, item.weight)
        update = review.update(list(answers.values()))
    return update, list(answers.values())


def test_from_nothing_chosen_questions_beat_random_ones(photos) -> None:
    features, truth = photos
    reached = []
    for random in (False, True):
        none = np.zeros_like(truth)
        review = open_review(features, none)
        update, _ = answer_all(review, truth, 80, random=random)
        reached.append(metrics.mean_average_precision(torch.from_numpy(update.probabilities), truth))
    assert reached[0] > reached[1] + 0.03


def test_from_one_positive_each_the_unknown_are_not_called_too_often(photos) -> None:
    features, truth = photos
    labels = np.zeros_like(truth)
    labels[np.arange(len(truth)), (truth > 0).argmax(1)] = 1
    review = open_review(features, labels, "n-ls", l2_strength=1e-3)
    update = review.update([])
    unknown = labels == 0
    assert update.probabilities[unknown].mean() == pytest.approx((truth[unknown] > 0).mean(), abs=0.06)
    assert update.quality.unknown == int(unknown.sum())


def test_the_queue_has_its_share_of_random_checks(photos) -> None:
    features, truth = photos
    none = np.zeros_like(truth)
    review = open_review(features, none)
    update, answers = answer_all(review, truth, 100)
    checks = [item for item in answers if item.weight]
    assert 6 <= len(checks) <= 25
    assert update.quality.controls == len(checks)
    first = [item.is_control for item in update.queue[:20]]
    assert sum(first) == 2


def test_random_checks_estimate_precision_without_bias() -> None:
    """Chosen answers do not matter, and every check counts for as many entries as it stands for."""
    draw = np.random.default_rng(0)
    p = draw.random((400, 5)).astype(np.float32)
    truth = np.where(draw.random(p.shape) < p**2, 1, -1)  # the scores are too high
    expected = float((truth[p >= 0.5] > 0).mean())
    z = np.log(p / (1 - p))
    estimates = []
    for seed in range(30):
        questions = draw_controls(p, np.ones(p.shape, bool), [], 0.5, 200, (seed,))
        controls = [EntryAnswer(q.image, q.column, int(truth[q.image, q.column]), q.weight) for q in questions]
        quality = measure(z, fit_probabilities(z, []), np.zeros(p.shape, np.int8), controls, answers=200)
        called = [c for c in controls if p[c.image, c.column] >= 0.5]
        share = np.average([c.value > 0 for c in called], weights=[c.weight for c in called])
        estimates.append(share)
        if quality.threshold >= 0.5:
            assert quality.precision is not None
            low, high = quality.precision[1:]
            assert low < quality.precision[0] < high
    assert abs(np.mean(estimates) - expected) < 0.02


def test_random_checks_correct_probabilities() -> None:
    draw = np.random.default_rng(0)
    z = draw.normal(0, 2, (2000, 4)).astype(np.float32)
    truth = np.where(draw.random(z.shape) < 1 / (1 + np.exp(2 - z)), 1, -1)
    controls = [EntryAnswer(i, c, int(truth[i, c]), 1.0) for i, c in np.argwhere(np.ones((100, 4))).tolist()]
    fitted = fit_probabilities(z, controls)
    assert abs(fitted.scores(z).mean() - (truth > 0).mean()) < 0.04
    assert abs(fit_probabilities(z, []).scores(z).mean() - (truth > 0).mean()) > 0.15
    quality = measure(z, fitted, np.zeros(z.shape, np.int8), controls, answers=400)
    value, low, high = quality.mean_average_precision
    assert low < metrics.mean_average_precision(torch.from_numpy(z), truth) < high
    assert low < value < high


def test_a_class_without_positives_is_asked_about_in_unexplained_photos() -> None:
    features = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    labels = np.zeros((30, 3), np.int8)
    labels[0, 0] = 1  # class 0 is the first cluster
    p = np.zeros((30, 3), np.float32)
    p[:10, 0] = 0.9
    explorer = Explorer(features, 3)
    guesses = explorer.probabilities(p, labels)
    assert guesses[15, 1] > 3 * guesses[5, 1]
    labels[10, 1] = -1  # class 1 is not the second cluster
    guesses = explorer.probabilities(p, labels)
    assert guesses[25, 1] > 0.4
    assert guesses[15, 1] == pytest.approx(0)


def test_an_update_keeps_what_a_tab_shows(project) -> None:
    session = project.session(live=True)
    shown = [item["entry"] for item in session.take_questions("tab", 3)]
    free = next(e for e in session.pool if e not in shown)
    session.add_answers([("key-00000001", free, 1)])
    scores = np.full(session.scored.scores.shape, 0.25, np.float32)
    new = Question(7, 3, 0.25, "likely")
    check = Question(*divmod(free, len(session.classes)), 0.5, "control: called present", 50.0)
    session.apply_update(scores, 0.4, [new, check])
    assert [item["entry"] for item in session.take_questions("other", 5)] == [7 * len(session.classes) + 3]
    assert set(shown) <= set(session.pool)
    assert session.progress()["answered"] == 1
    assert session.entry_answers() == [(*divmod(free, len(session.classes)), 1, 50.0)]
    assert float(session.scored.scores[0, 0]) == 0.25
