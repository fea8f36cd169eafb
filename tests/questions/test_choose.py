"""Which entries are asked about: against a slow loop, and by what each rule promises."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from halflabel.errors import LabelError, UserError
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.questions.choose import (
    CONTROL_ABSENT,
    CONTROL_PRESENT,
    Question,
    choose_questions,
    read_questions,
    record_questions,
    weigh_answers,
    write_questions,
)
from halflabel.questions.next import doubtful_labels

HALF = np.full(4, 0.5)


def positives_only(n: int = 60, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, Table, np.ndarray]:
    """Scores, the labels known (some positives), and the truth."""
    draw = np.random.default_rng(seed)
    truth = np.where(draw.random((n, classes)) < np.linspace(0.1, 0.6, classes), 1, -1)
    scores = 1 / (1 + np.exp(-(1.5 * truth + draw.normal(size=truth.shape) - 1)))
    known = np.where((truth > 0) & (draw.random(truth.shape) < 0.5), 1, 0)
    return scores.astype(np.float32), Table.from_dense(known), truth


def partly_known(seed: int = 0, n: int = 60) -> tuple[np.ndarray, Table]:
    scores, _, truth = positives_only(n, seed=seed)
    known = np.where(np.random.default_rng(seed + 1).random(truth.shape) < 0.3, truth, 0)
    return scores, Table.from_dense(known)


def slowly(scores: np.ndarray, table: Table, count: int, per_image: int, both_teach: bool) -> set[tuple[int, int]]:
    """The greedy rule as it is written: look at every entry for every question."""
    labels = table.dense()
    q = scores.astype(np.float64)
    filled = np.maximum((labels > 0).sum(0), 1).astype(float)
    missed = [[1 - q[i, c] for i in range(len(labels)) if labels[i, c] > 0] for c in range(labels.shape[1])]
    average = np.mean([value for values in missed for value in values])
    error = [np.mean([*values, *[average] * 25]) for values in missed]
    chosen: set[tuple[int, int]] = set()
    while len(chosen) < count:
        best, entry = -1.0, None
        for c in range(labels.shape[1]):
            for i in range(len(labels)):
                taken = sum(image == i for image, _ in chosen)
                if labels[i, c] or (i, c) in chosen or taken >= per_image:
                    continue
                worth = error[c] * (q[i, c] * (1 - q[i, c]) + q[i, c] / (4 if both_teach else 2)) / filled[c]
                if worth > best:
                    best, entry = worth, (i, c)
        if entry is None:
            break
        chosen.add(entry)
        filled[entry[1]] += q[entry]
    return chosen


@pytest.mark.parametrize("per_image", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_is_the_slow_loop(seed: int, per_image: int) -> None:
    scores, table, _ = positives_only(seed=seed)
    questions = choose_questions(scores, table, HALF, 25, control=0, per_image=per_image)
    assert {(q.image, q.column) for q in questions} == slowly(scores, table, 25, per_image, both_teach=False)
    scores, table = partly_known(seed)
    questions = choose_questions(scores, table, HALF, 25, control=0, per_image=per_image)
    assert {(q.image, q.column) for q in questions} == slowly(scores, table, 25, per_image, both_teach=True)


def test_only_unknown_readable_and_unanswered_entries_are_asked() -> None:
    scores, table, _ = positives_only()
    scores[5] = np.nan
    questions = choose_questions(scores, table, HALF, 10_000, per_image=4, skip=[(3, 2)])
    asked = {(q.image, q.column) for q in questions}
    unknown = {(int(i), int(c)) for i, c in np.argwhere(table.dense() == 0)}
    assert asked == {(i, c) for i, c in unknown if i != 5} - {(3, 2)}
    assert len(questions) == len(asked)
    assert all(0 <= q.probability <= 1 for q in questions)


def test_near_duplicates_are_asked_about_once() -> None:
    draw = np.random.default_rng(0)
    scores, table, _ = positives_only(n=40)
    features = draw.normal(size=(40, 16)).astype(np.float16)
    features[:20] = features[0] + 0.01 * draw.normal(size=(20, 16))
    questions = choose_questions(scores, table, HALF, 80, control=0, per_image=4, features=features)
    for c in range(4):
        assert sum(q.image < 20 for q in questions if q.column == c) <= 1
    assert sum(q.image < 20 for q in choose_questions(scores, table, HALF, 80, control=0, per_image=4)) > 4


def test_control_is_a_fair_draw_of_both_strata_and_comes_first() -> None:
    scores, table, _ = positives_only(n=200)
    called = scores >= 0.5
    unknown = table.dense() == 0
    counts = np.zeros(scores.shape)
    for seed in range(60):
        questions = choose_questions(scores, table, HALF, 100, control=0.4, seed=seed)
        control = [q for q in questions if q.is_control]
        assert questions[: len(control)] == control
        assert [q.why for q in control].count(CONTROL_PRESENT) == 20
        assert [q.why for q in control].count(CONTROL_ABSENT) == 20
        for q in control:
            assert called[q.image, q.column] == (q.why == CONTROL_PRESENT)
            counts[q.image, q.column] += 1
            stratum = unknown & (called == called[q.image, q.column])
            assert q.weight == stratum.sum() / 20
    assert not counts[~unknown].any()
    for stratum in (unknown & called, unknown & ~called):
        drawn, score = counts[stratum], scores[stratum]
        expected = 60 * 20 / stratum.sum()
        # High scores are drawn no more often than low ones: the mean of either half is within 4 standard errors.
        for half in (score >= np.median(score), score < np.median(score)):
            assert abs(drawn[half].mean() - expected) < 4 * math.sqrt(expected / half.sum())


def test_control_depends_on_names_alone() -> None:
    scores, table, _ = positives_only()
    names = {(table.images[q.image], q.column) for q in choose_questions(scores, table, HALF, 20, control=1)}
    order = np.random.default_rng(3).permutation(len(table))
    moved = table.subset(order)
    again = {(moved.images[q.image], q.column) for q in choose_questions(scores[order], moved, HALF, 20, control=1)}
    assert names == again


def test_a_small_stratum_gives_what_it_has() -> None:
    scores, table, _ = positives_only()
    cuts = np.full(4, 2.0)  # nothing is called present
    questions = choose_questions(scores, table, cuts, 20, control=1)
    assert [q.why for q in questions] == [CONTROL_ABSENT] * 20
    assert {q.weight for q in questions} == {(table.dense() == 0).sum() / 20}


def test_questions_after_the_control_come_class_by_class() -> None:
    scores, table, _ = positives_only()
    columns = [q.column for q in choose_questions(scores, table, HALF, 60) if not q.is_control]
    changes = sum(a != b for a, b in itertools.pairwise(columns))
    assert changes == len(set(columns)) - 1


def test_doubtful_labels_are_the_least_probable_with_their_kind_of_score() -> None:
    labels = np.array([[1, -1], [1, -1], [1, 0], [-1, 1]])
    scores = np.array([[0.1, 0.2], [0.9, 0.95], [0.3, 0.99], [0.4, np.nan]], np.float32)
    table = Table.from_dense(labels)
    questions = doubtful_labels(scores, table, 10, trained_on=np.array([True, False, False, False]))
    assert [(q.image, q.column) for q in questions] == [(1, 1), (0, 0), (2, 0)]
    assert [q.why for q in questions] == [
        "labelled absent; held-out score",
        "labelled present; score of a label trained on",
        "labelled present; held-out score",
    ]
    assert [(q.image, q.column) for q in doubtful_labels(scores, table, 10, skip=[(1, 1)])] == [(0, 0), (2, 0)]


def test_doubtful_lets_no_class_crowd_out_the_others() -> None:
    labels = np.repeat([1, -1], 40)[:, None] * np.ones((1, 2), int)
    scores = np.stack([np.linspace(0.01, 0.2, 80), np.linspace(0.3, 0.4, 80)], axis=1).astype(np.float32)
    questions = doubtful_labels(scores, Table.from_dense(labels), 8, per_image=1)
    assert sorted(q.column for q in questions).count(0) >= 2
    assert len({q.image for q in questions}) == len(questions) == 8


def test_with_positives_only_a_label_that_the_model_misses_is_not_doubtful() -> None:
    scores = np.concatenate([np.linspace(0.2, 0.4, 20), [0.01]])[:, None].astype(np.float32)
    questions = doubtful_labels(scores, Table.from_dense(np.ones((21, 1), int)), 10)
    assert [q.image for q in questions] == [20]


def test_questions_survive_a_file(tmp_path) -> None:
    table = Table.from_dense([[0, 0], [0, 0]], images=["a,b.jpg", "ü.jpg"], classes=["cat", 'the "dog"'])
    asked = [Question(0, 1, 0.25, "uncertain, rare class"), Question(1, 0, math.nan, CONTROL_ABSENT, 12.5)]
    write_questions(asked, table, tmp_path / "q.csv")
    assert (tmp_path / "q.csv").read_text().splitlines()[0] == "image,class,probability,why,inclusion_weight"
    back = read_questions(tmp_path / "q.csv", table)
    assert back[0] == asked[0]
    assert back[1][:2] == (1, 0)
    assert math.isnan(back[1].probability)
    assert (back[1].weight, back[1].is_control) == (12.5, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image,class\nx.jpg,cat\n", "line 2, column 'image': the run has no image 'x.jpg'"),
        ("image,class\na.jpg,cow\n", "line 2, column 'class': the run has no class 'cow'"),
        ("image,class,probability\na.jpg,cat,high\n", "column 'probability': probability 'high' is not a number"),
        ("image,class,inclusion_weight\na.jpg,cat,-1\n", "inclusion_weight '-1' is negative"),
        ("photo,class\na.jpg,cat\n", "no column 'image'"),
    ],
)
def test_bad_question_files_are_refused(tmp_path, text: str, says: str) -> None:
    table = Table.from_dense([[0]], images=["a.jpg"], classes=["cat"])
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(LabelError) as error:
        read_questions(tmp_path / "q.csv", table)
    assert says in str(error.value)


@pytest.mark.parametrize("bad", [{"count": 0}, {"control": 1.5}, {"per_image": 0}])
def test_senseless_wishes_are_refused(bad: dict[str, float]) -> None:
    scores, table, _ = positives_only()
    with pytest.raises(UserError):
        choose_questions(scores, table, HALF, **{"count": 5, **bad})


@pytest.mark.parametrize("fair", [True, False])
def test_a_look_at_few_entries_at_a_time_finds_the_same(fair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, table, _ = positives_only(n=300)
    if fair:
        table = partly_known(n=300)[1]
    scores = scores.round(2)  # so that there are ties
    scores[7] = np.nan
    features = np.random.default_rng(2).normal(size=(40, 8)).repeat(8, axis=0)[:300]  # most are near-duplicates

    def chosen_names() -> list[str]:
        asked = choose_questions(scores, table, HALF, 90, features=features, skip=[(3, 2), (299, 0)])
        return [str(question) for question in asked + doubtful_labels(scores, table, 30, skip=[(0, 0)])]

    at_once = chosen_names()
    monkeypatch.setattr("halflabel.evaluation.scores._BLOCK_ENTRIES", 40)
    monkeypatch.setattr("halflabel.questions.choose._CANDIDATES", 3)
    assert chosen_names() == at_once


def test_choosing_takes_no_memory_per_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense tables of all entries took 56 bytes for each."""
    monkeypatch.setattr("halflabel.evaluation.scores._BLOCK_ENTRIES", 1 << 16)

    def peak(images: int) -> int:
        draw = np.random.default_rng(0)
        scores = draw.random((images, 200), np.float32)
        image = np.arange(images)
        table = Table.from_entries(
            Names.numbered(images), Names.numbered(200), image, image % 200, np.ones(images, np.int8)
        )
        tracemalloc.start()
        choose_questions(scores, table, np.full(200, 0.5), 50)
        doubtful_labels(scores, table, 50)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(4_000) - peak(2_000) < 2 * 2_000 * 200


def test_recorded_questions_weigh_answers_that_come_back_without_weights(tmp_path: Path) -> None:
    table, record = Table.from_dense(np.zeros((3, 2), np.int8)), tmp_path / "asked.csv"
    record_questions([Question(0, 0, 0.9, "uncertain"), Question(1, 1, 0.4, CONTROL_ABSENT, 5.0)], table, record)
    record_questions([Question(2, 0, 0.7, "uncertain"), Question(0, 1, 0.7, "uncertain")], table, record)
    image, column = np.array([0, 1, 2, 2, 0]), np.array([0, 1, 0, 1, 1])
    weight = np.array([np.nan, np.nan, np.nan, np.nan, 3.0])
    answers = Labels.build(table.images, table.classes, image, column, np.ones(5), weight=weight)
    weighed = weigh_answers(answers, record, tmp_path / "control.csv")
    assert np.array_equal(weighed.weight, [0, 5, 0, np.nan, 3], equal_nan=True)
