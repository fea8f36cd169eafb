"""Who made a label: rows of models are known as such, and what holds is told from what may judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.labels.provenance import by_model, decisive, pick, tables
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable

SOURCES = ("", "person", "model:bce:runs/1", "machine", "model", "rule", "modelling agency")  # rule: from people's
MADE = {"model:bce:runs/1", "machine", "model"}

one = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([-1, 0, 1]), st.integers(0, len(SOURCES) - 1))


def build(said: list[tuple[int, int, int, int]]) -> Rows:
    image, column, value, source = (np.array([row[k] for row in said], np.int64) for k in range(4))
    score = np.arange(len(said)) / 64
    return Rows.build(Names("abcd"), Names("xyz"), image, column, value, source, score, SOURCES)


@given(st.lists(one, max_size=25))
def test_as_a_loop_over_the_rows_has_it(said: list[tuple[int, int, int, int]]) -> None:
    rows = build(said)
    holds = {}
    for number, (image, column, value, _) in enumerate(said):
        holds.pop((image, column), None)
        if value:
            holds[image, column] = number
    every, people = np.zeros((4, 3), int), np.zeros((4, 3), int)
    for at, number in holds.items():
        every[at] = said[number][2]
        people[at] = 0 if SOURCES[said[number][3]] in MADE else said[number][2]
    assert by_model(rows).tolist() == [SOURCES[row[3]] in MADE for row in said]
    assert [table.dense().tolist() for table in tables(rows)] == [every.tolist(), people.tolist()]
    kept = decisive(rows)
    order = [holds[at] for at in sorted(holds)]
    assert kept.score.tolist() == [number / 64 for number in order]
    assert kept.source.tolist() == [said[number][3] for number in order]
    assert kept.resolve() == rows.resolve()


def test_a_table_says_nothing_of_who_made_it() -> None:
    table = LabelTable.from_dense([[1, 0], [-1, 1]])
    assert tables(table) == (table, table)


def test_rows_of_a_file_opened_in_place_are_picked_too(tmp_path: Path) -> None:
    rows = decisive(build([(0, 0, 1, 1), (1, 2, -1, 2), (3, 1, 1, 5)]))
    formats.write(rows, tmp_path / "a.labels")
    some = pick(formats.read(tmp_path / "a.labels").rows, np.array([False, True, True]))
    assert (some.image.tolist(), some.column.tolist(), some.value.tolist()) == ([1, 3], [2, 1], [-1, 1])
    assert [some.sources[n] for n in some.source] == ["model:bce:runs/1", "rule"]
    assert some.score.tolist() == [1 / 64, 2 / 64]
