"""Table, Names and Labels against dense arrays and slow loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table

# Shared machines stall: a deadline would measure them instead of the code.
quick = settings(deadline=None, max_examples=50)

IMAGES = [f"img {i}.jpg" for i in range(9)]
CLASSES = ["cat", "dog", "Kuh", "狗", "007", "a,b"]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Tables whose names come from common lists, in any order, so that two of them overlap."""
    images = draw(st.lists(st.sampled_from(IMAGES), unique=True, max_size=7))
    classes = draw(st.lists(st.sampled_from(CLASSES), unique=True, max_size=5))
    labels = draw(arrays(np.int8, (len(images), len(classes)), elements=st.integers(-1, 1)))
    return Table.from_dense(labels, images, classes)


def as_dict(table: Table) -> dict[tuple[str, str], int]:
    dense = table.dense()
    return {
        (image, name): int(dense[i, c])
        for i, image in enumerate(table.images)
        for c, name in enumerate(table.classes)
        if dense[i, c]
    }


def merge(first: Table, other: Table) -> Table:
    """All images and classes of both; where both know an entry, `other` wins."""
    return Labels.of(first).append(Labels.of(other)).training


def check_form(table: Table) -> None:
    """Compressed rows as promised: classes ascending within an image, values ±1."""
    assert table.values.dtype == np.int8
    table.values.check_format()
    assert table.start[0] == 0
    assert table.start[-1] == len(table.column) == len(table.value) == table.known
    assert set(table.value.tolist()) <= {-1, 1}
    for i in range(len(table)):
        row = table.column[table.start[i] : table.start[i + 1]]
        assert np.all(np.diff(row.astype(int)) > 0)


@quick
@given(arrays(np.int8, st.tuples(st.integers(0, 6), st.integers(0, 5)), elements=st.integers(-1, 1)))
def test_dense_round_trip(labels: NDArray[np.int8]) -> None:
    table = Table.from_dense(labels)
    check_form(table)
    np.testing.assert_array_equal(table.dense(), labels)
    assert table.shape == labels.shape
    assert table.known == np.count_nonzero(labels)


@quick
@given(tables(), st.data())
def test_rows_are_rows_of_dense(table: Table, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=8)) if len(table) else []
    rows = table.rows(index)
    assert rows.dtype == np.int8
    np.testing.assert_array_equal(rows, table.dense()[np.array(index, int)])


@quick
@given(tables())
def test_entries_and_keep(table: Table) -> None:
    image, column, value = table.entries()
    slow = [(i, c, v) for i, row in enumerate(table.dense().tolist()) for c, v in enumerate(row) if v]
    assert list(zip(image.tolist(), column.tolist(), value.tolist(), strict=True)) == slow
    positive = table.keep(value > 0)
    check_form(positive)
    np.testing.assert_array_equal(positive.dense(), np.maximum(table.dense(), 0))
    assert table.keep(np.ones(table.known, bool)) == table


@quick
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 1)), max_size=30))
def test_from_entries_equals_writing_one_after_the_other(entries: list[tuple[int, int, int]]) -> None:
    slow = np.zeros((4, 3), np.int8)
    for i, c, v in entries:
        slow[i, c] = v
    image, column, value = np.array(entries, int).reshape(-1, 3).T
    table = Table.from_entries(Names.numbered(4), Names.numbered(3), image, column, value)
    check_form(table)
    np.testing.assert_array_equal(table.dense(), slow)
    rows = Labels.build(Names.numbered(4), Names.numbered(3), image, column, value)
    assert rows.training == table


@pytest.mark.parametrize(
    "entry", [(2, 0, 1), (-1, 0, 1), (0, 3, 1), (0, -1, 1), (0, 0, 3), (0, 0, -2)], ids=lambda entry: str(entry)
)
def test_from_entries_refuses_what_does_not_fit(entry: tuple[int, int, int]) -> None:
    image, column, value = (np.array([number]) for number in entry)
    with pytest.raises(ValueError, match="must"):
        Table.from_entries(Names.numbered(2), Names.numbered(3), image, column, value)


def test_from_dense_reads_nan_as_unknown_and_refuses_other_values() -> None:
    assert Table.from_dense([[1.0, np.nan], [-1.0, 0.0]]).dense().tolist() == [[1, 0], [-1, 0]]
    with pytest.raises(UserError, match="0\\.5"):
        Table.from_dense([[1.0, 0.5]])
    with pytest.raises(UserError, match="1 dimensions"):
        Table.from_dense([1, -1])


@quick
@given(tables(), st.data())
def test_subset(table: Table, data: st.DataObject) -> None:
    images = np.array(data.draw(st.permutations(range(len(table)))), int)[: data.draw(st.integers(0, 7))]
    classes = np.array(data.draw(st.permutations(range(len(table.classes)))), int)[: data.draw(st.integers(0, 5))]
    part = table.subset(images, classes)
    check_form(part)
    np.testing.assert_array_equal(part.dense(), table.dense()[images][:, classes])
    assert list(part.images) == [list(table.images)[i] for i in images]
    assert list(part.classes) == [list(table.classes)[c] for c in classes]
    assert part == table.subset(images=images).subset(classes=classes)
    assert part == table.subset(classes=classes).subset(images=images)


@quick
@given(tables(), tables())
def test_merge_other_wins(first: Table, other: Table) -> None:
    merged = merge(first, other)
    check_form(merged)
    assert as_dict(merged) == as_dict(first) | as_dict(other)
    assert list(merged.images) == list(dict.fromkeys([*first.images, *other.images]))
    assert list(merged.classes) == list(dict.fromkeys([*first.classes, *other.classes]))


@quick
@given(tables(), tables())
def test_equal_tables_have_equal_digests(first: Table, other: Table) -> None:
    assert (first == other) == (first.digest() == other.digest())
    assert first == Table.from_dense(first.dense(), first.images, first.classes)


def test_digest_never_changes() -> None:
    table = Table.from_dense([[1, 0, -1], [0, 0, 0], [-1, 1, 1]], ["a", "b", "ü"], ["cat", "dog", "狗"])
    assert table.digest() == "0b1398c641d4e1fcf4e0279b5e3f9173b01ec8828b1d6802fb1504048b3f1fee"


def test_arrays_are_not_copied() -> None:
    """They may be mapped from a file."""
    column, value = np.array([0, 2, 1], np.int32), np.array([1, -1, 1], np.int8)
    table = Table.from_parts(Names.numbered(2), Names.numbered(3), np.array([0, 2, 3]), column, value)
    assert np.shares_memory(table.column, column)
    assert np.shares_memory(table.value, value)


class TestNames:
    def test_lookup_and_order(self) -> None:
        names = Names(["b", "a", "ü"])
        assert list(names) == ["b", "a", "ü"]
        assert names.index(["ü", "x", "b"]).tolist() == [2, -1, 0]
        assert list(names.take(np.array([2, 0]))) == ["ü", "b"]
        assert list(Names.numbered(3)) == ["0", "1", "2"]

    def test_names_must_differ(self) -> None:
        with pytest.raises(UserError, match="'dog' is given twice"):
            Names(["cat", "dog", "dog"])

    @quick
    @given(st.lists(st.text("ab", max_size=3), unique=True), st.lists(st.text("ab", max_size=3), unique=True))
    def test_union_keeps_order_and_adds_what_is_new(self, first: list[str], other: list[str]) -> None:
        assert list(Names(first).union(Names(other))) == list(dict.fromkeys([*first, *other]))


class TestRows:
    def rows(self, *entries: tuple[int, int, int], source: str = "") -> Labels:
        image, column, value = np.array(entries, int).reshape(-1, 3).T
        return Labels.build(Names(["a", "b"]), Names(["x", "y"]), image, column, value, source)

    def test_conflicts_count_pairs_called_both(self) -> None:
        assert (
            self.rows((0, 0, 1), (0, 0, -1), (0, 0, 1), (1, 1, 1), (1, 1, 1), (1, 0, -1), (1, 0, 0)).count_conflicts()
            == 1
        )

    @quick
    @given(tables())
    def test_table_to_rows_and_back(self, table: Table) -> None:
        rows = Labels.from_table(table, "import")
        assert len(rows) == table.known
        assert rows.sources == ("import",)
        assert np.isnan(rows.score).all()
        assert rows.training == table

    def test_weights_follow_their_rows(self) -> None:
        images, classes = Names("abc"), Names("xy")
        image, column, weight = np.array([0, 1, 2, 2]), np.array([1, 1, 0, 0]), np.array([0, 12.5, np.nan, 3])
        rows = Labels.build(images, classes, image, column, np.array([1, -1, 1, 1]), weight=weight)
        more = Labels.build(Names("cd"), classes, np.array([0, 1]), np.array([1, 1]), np.array([1, 1]))
        joined = rows.append(more).drop_overridden()
        assert joined.weight.tolist() == pytest.approx([0, 12.5, 3, np.nan, np.nan], nan_ok=True)
        assert joined.select(joined.weight > 0).weight.tolist() == [12.5, 3]
        table = Table.from_dense([[1, 1], [0, 1], [1, 0]], images, classes)
        relabelled = rows.with_labels(table)
        assert relabelled.weight.tolist() == pytest.approx([np.nan, 0, 12.5, 3], nan_ok=True)

    @quick
    @given(tables(), tables())
    def test_append_keeps_sources(self, first: Table, other: Table) -> None:
        both = Labels.from_table(first, "anna").append(Labels.from_table(other, "bob"))
        row_sources = [both.sources[number] for number in both.source]
        assert row_sources == ["anna"] * first.known + ["bob"] * other.known
