"""Provenance: labels made by a model are recognized and never reach an evaluation table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halflabel.labels import formats
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table

SOURCES = ("", "person", "model:bce:runs/1", "machine", " Model", "rule", "modelling agency")
MODELS = {"model:bce:runs/1", "machine", " Model"}

Row = tuple[int, int, int, int]  # image, class, value, source

row_strategy = st.tuples(
    st.integers(0, 3), st.integers(0, 2), st.sampled_from([-1, 0, 1]), st.integers(0, len(SOURCES) - 1)
)


def build(entries: list[Row]) -> Labels:
    image, column, value, source = (np.array([entry[k] for entry in entries], np.int64) for k in range(4))
    score = np.arange(len(entries)) / 64
    return Labels.build(Names("abcd"), Names("xyz"), image, column, value, source, score, SOURCES)


@given(st.lists(row_strategy, max_size=25))
def test_matches_a_loop_over_the_rows(entries: list[Row]) -> None:
    rows = build(entries)
    holding = {}
    for number, (image, column, value, source) in enumerate(entries):
        held = holding.get((image, column))
        if held is not None and SOURCES[source] in MODELS and SOURCES[entries[held][3]] not in MODELS:
            continue  # a model's row changes nothing where a person's label holds
        holding.pop((image, column), None)
        if value:
            holding[image, column] = number
    training, evaluation = np.zeros((4, 3), int), np.zeros((4, 3), int)
    for pair, number in holding.items():
        training[pair] = entries[number][2]
        evaluation[pair] = 0 if SOURCES[entries[number][3]] in MODELS else entries[number][2]
    assert rows.is_model_made().tolist() == [SOURCES[entry[3]] in MODELS for entry in entries]
    for table, expected in ((rows.training, training), (rows.people, evaluation), (rows.evaluation, evaluation)):
        assert table.dense().tolist() == expected.tolist()
    holding_rows = rows.drop_overridden()
    order = [holding[pair] for pair in sorted(holding)]
    assert holding_rows.score.tolist() == [number / 64 for number in order]
    assert holding_rows.source.tolist() == [entries[number][3] for number in order]
    assert holding_rows.training == rows.training
    assert holding_rows.select(~holding_rows.is_model_made()).training == rows.people


def test_a_table_has_no_sources_so_all_of_it_evaluates() -> None:
    table = Table.from_dense([[1, 0], [-1, 1]])
    labels = Labels.of(table)
    assert all(each is table for each in (labels.training, labels.people, labels.evaluation, labels.choosing))
    assert Labels.of(labels) is labels


def test_select_from_memory_mapped_rows(tmp_path: Path) -> None:
    rows = build([(0, 0, 1, 1), (1, 2, -1, 2), (3, 1, 1, 5)]).drop_overridden()
    formats.write(rows, tmp_path / "a.labels")
    selected = formats.read(tmp_path / "a.labels").rows.select(np.array([False, True, True]))
    assert (selected.image.tolist(), selected.column.tolist(), selected.value.tolist()) == ([1, 3], [2, 1], [-1, 1])
    assert [selected.sources[n] for n in selected.source] == ["model:bce:runs/1", "rule"]
    assert selected.score.tolist() == [1 / 64, 2 / 64]


def test_answers_to_chosen_questions_are_not_calibrated_on() -> None:
    """One positive per image, 12 chosen answers and 4 random ones: three kinds of labels in three tables."""
    image = np.concatenate([np.arange(20), np.arange(12), np.arange(12, 16)])
    column = np.concatenate([np.zeros(20, int), np.ones(16, int)])
    value = np.concatenate([np.ones(20, int), np.tile([1, -1, -1], 4), [1, -1, -1, -1]])
    weight = np.repeat([np.nan, 0, 2.5], [20, 12, 4])
    names = Names([f"i{k:02}" for k in range(20)]), Names(["x", "y"])
    rows = Labels.build(*names, image, column, value, weight=weight)
    assert (rows.training.known, rows.evaluation.known) == (36, 20)
    assert rows.control is not None
    assert rows.control.nnz == 4
    assert rows.control[12:16].toarray()[:, 1].tolist() == [2.5, -2.5, -2.5, -2.5]
    assert not rows.is_asked
    # They are drawn more often among likely entries, so that they are not mixed with a sample of present and absent.
    some_absent = np.where(np.arange(36) < 10, -1, value)
    rows = Labels.build(*names, image, column, some_absent, weight=weight)
    assert (rows.evaluation.known, rows.is_asked) == (20, False)
    # Where hardly anything else is known, they are all that can say how good a model is.
    random = Labels.build(*names, image, column, some_absent, weight=np.where(np.isnan(weight), 2.5, weight))
    assert (random.evaluation.known, random.is_asked) == (24, True)
    # Answers alone are better than nothing.
    answers = rows.select(weight == 0)
    assert (answers.evaluation.known, answers.control) == (12, None)


def test_many_chosen_answers_choose_rather_than_few_random_ones() -> None:
    images, classes = Names([f"i{k:02}" for k in range(40)]), Names(["x", "y"])
    image = np.arange(40)

    def rows(weight: np.ndarray) -> Labels:
        source, names = np.repeat([0, 1], [30, 10]), ("person:ann", "model:bce:runs/1")
        return Labels.build(images, classes, image, image % 2, np.ones(40, int), source, None, names, weight)

    mostly_chosen = rows(np.repeat([0, 7.5, np.nan], [24, 6, 10]))
    assert mostly_chosen.evaluation.known == 6
    assert mostly_chosen.choosing.known == 30  # never labels of a model
    mostly_given = rows(np.repeat([np.nan, 0, np.nan], [20, 10, 10]))
    assert mostly_given.choosing.known == 20
