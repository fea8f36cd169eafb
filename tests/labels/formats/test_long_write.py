"""Writing long rows: files that are easy to read, and round trips."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import GOLDEN_FILES, source_of

from halflabel.errors import UserError
from halflabel.labels.formats import long
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "long"
HEADER = "image,class,value,source,score\n"


def same(first: Labels, other: Labels) -> bool:
    """The same rows in the same order, and the same images and classes in theirs."""
    return (
        first.images == other.images
        and first.classes == other.classes
        and all(
            np.array_equal(getattr(first, part), getattr(other, part), equal_nan=part in ("score", "weight"))
            for part in ("image", "column", "value", "score", "weight")
        )
        and source_of(first) == source_of(other)
    )


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
@pytest.mark.parametrize("golden", ["own.csv", "quoted.csv"])
def test_round_trip_of_the_golden_files(tmp_path: Path, name: str, golden: str) -> None:
    stated = Policy(unlisted="unknown", ignore=("confidence",)) if golden == "quoted.csv" else Policy()
    rows = long.read(GOLDEN / golden, stated).rows
    long.write(rows, tmp_path / name)
    assert same(long.read(tmp_path / name, Policy()).rows, rows)
    assert long.sniff(tmp_path / name)


def test_files_stay_plain(file: Path) -> None:
    table = Table.from_dense([[1, 0], [0, -1]], ["a", "b"], ["cat", "dog"])
    rows = Labels.from_table(table, "me")
    long.write(
        Labels.build(rows.images, rows.classes, rows.image, rows.column, rows.value, "me", np.float32([0.7, 1])), file
    )
    assert file.read_text() == HEADER + "a,cat,1,me,0.7\nb,dog,-1,me,1\n"
    long.write(
        Labels.build(rows.images, rows.classes, rows.image, rows.column, rows.value, "a,b", np.float32([0.7, 1])), file
    )
    assert file.read_text() == HEADER + 'a,cat,1,"a,b",0.7\nb,dog,-1,"a,b",1\n'


def test_a_file_begins_with_labels_and_keeps_the_order(file: Path) -> None:
    table = Table.from_dense([[0, 0, 1], [0, 0, 0], [1, 0, 0]], ["b", "none", "a"], ["cat", "never", "dog"])
    long.write(Labels.from_table(table), file)
    lines = file.read_text().splitlines()
    assert lines[1:3] == ["b,dog,1,,", "a,cat,1,,"]
    assert lines[3:] == [",cat,,,", ",never,,,", ",dog,,,", "b,,,,", "none,,,,", "a,,,,"]
    assert long.read(file, Policy()).table() == table
    in_front = "\n".join([lines[0], *lines[3:], *lines[1:3]]) + "\n"
    file.write_text(in_front)
    assert long.read(file, Policy()).table() == table


def test_many_blocks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images out of order, so that they are declared; every part is longer than a block."""
    monkeypatch.setattr(long, "_BLOCK", 7)
    rng = np.random.default_rng(0)
    blank = Table.from_dense(np.zeros((30, 20)))
    image, column = rng.integers(30, size=100), rng.integers(20, size=100)
    rows = Labels.build(blank.images, blank.classes, image, column, rng.integers(-1, 2, 100), "s", rng.random(100))
    for path in (file, file.with_suffix(".parquet")):
        long.write(rows, path)
        assert same(long.read(path, Policy()).rows, rows)


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)


@given(
    st.lists(cells, min_size=1, max_size=4, unique=True),
    st.lists(cells, min_size=1, max_size=4, unique=True),
    st.lists(st.one_of(cells, st.just("")), min_size=1, max_size=3, unique=True),
    st.integers(0, 2**31),
    st.sampled_from(["x.csv", "x.parquet"]),
)
@settings(max_examples=100, deadline=None)
def test_round_trip_of_any_rows(
    images: list[str], classes: list[str], sources: list[str], seed: int, name: str
) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 12))
    blank = Table.from_dense(np.zeros((len(images), len(classes))), images, classes)
    rows = Labels.build(
        blank.images,
        blank.classes,
        rng.integers(len(images), size=count),
        rng.integers(len(classes), size=count),
        rng.integers(-1, 2, count),
        rng.integers(len(sources), size=count),
        np.where(rng.random(count) < 0.5, np.nan, rng.random(count)),
        sources,
        rng.choice([np.nan, 0, 12.5, 1e6], count) if rng.random() < 0.5 else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        long.write(rows, Path(folder) / name)
        read_back = long.read(Path(folder) / name, Policy()).rows
    assert same(read_back, rows)
    assert read_back.training == rows.training


@pytest.mark.parametrize(("image", "label"), [("", "cat"), ("a", "")])
def test_write_refuses_names_it_cannot_hold(file: Path, image: str, label: str) -> None:
    with pytest.raises(UserError, match="has no name"):
        long.write(Labels.from_table(Table.from_dense([[1]], [image], [label])), file)
    assert not file.exists()
