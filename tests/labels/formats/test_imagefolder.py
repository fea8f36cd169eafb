"""Hugging Face ImageFolder: golden folders, round trips, and every fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import UserError
from halflabel.labels import formats
from halflabel.labels.formats import imagefolder
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

GOLDEN = GOLDEN_FILES / "imagefolder"
UNKNOWN, ABSENT = Policy(unlisted="unknown"), Policy(unlisted="absent")
COLUMNS = [[1, -1, 0], [1, 0, -1], [0, 0, 1]]


def jsonl(folder: Path, *records: Any) -> Path:
    path = folder / "metadata.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_golden_columns(kind: str) -> None:
    policy = Policy(ignore=("width",)) if kind == "csv" else Policy()
    for path in (GOLDEN / kind, GOLDEN / kind / f"metadata.{kind}"):
        assert imagefolder.sniff(path)
        table = imagefolder.read(path, policy).table()
        assert list(table.images) == ["0001.png", "sub/0002.png", "a, b.png"]
        assert list(table.classes) == ["cat", "NA", "dog"]
        assert table.dense().tolist() == COLUMNS


def test_golden_lists() -> None:
    result = imagefolder.read(GOLDEN / "lists" / "metadata.jsonl", UNKNOWN)
    table = result.table()
    assert list(table.images) == ["0001.png", "0002.png", "0003.png", "0004.png"]
    assert list(table.classes) == ["dog", "cat", "NA"]
    assert table.dense().tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert [tuple(line) for line in result.audit.value_counts] == [
        ("in labels", "present", 4),
        ("not listed", "unknown", 8),
    ]
    assert "columns not used: caption" in result.audit.notes


def test_an_image_without_a_list_stays_unknown() -> None:
    result = imagefolder.read(GOLDEN / "lists" / "metadata.jsonl", ABSENT)
    assert result.table().dense().tolist() == [[1, 1, -1], [-1, -1, -1], [0, 0, 0], [1, -1, 1]]
    assert ("not listed", "absent", 5) in [tuple(line) for line in result.audit.value_counts]
    assert any(note.startswith("1 images were labelled by nobody") for note in result.audit.notes)


def test_lists_alone_need_a_word_about_the_unlisted() -> None:
    error = label_error(imagefolder.read, GOLDEN / "lists")
    assert "‹unlisted=unknown›" in error.fix


def test_golden_lists_of_present_and_absent() -> None:
    result = imagefolder.read(GOLDEN / "lists_absent", Policy())
    table = result.table()
    assert list(table.classes) == ["dog", "cat", "bird"]
    assert table.dense().tolist() == [[1, 1, -1], [-1, -1, 0], [0, 0, 1]]
    assert result.rows.count_conflicts() == 1
    assert any("1 entries are both present and absent" in note for note in result.audit.notes)
    assert [tuple(line) for line in result.audit.value_counts] == [
        ("in labels", "present", 3),
        ("in absent", "absent", 4),
        ("not listed", "unknown", 3),
    ]


def test_lists_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "metadata.parquet"
    for kind in (pa.list_(pa.string()), pa.large_list(pa.large_string())):
        columns = {
            "file_name": ["a", "b", "c"],
            "labels": pa.array([["x", "y"], [], None], kind),
            "negatives": pa.array([[], ["x", "z"], None], kind),
            "image": pa.array([{"bytes": b""}] * 3),  # not a label, and not in the way of lists
        }
        pq.write_table(pa.table(columns), path)
        table = imagefolder.read(path, Policy()).table()
        assert list(table.classes) == ["x", "y", "z"]
        assert table.dense().tolist() == [[1, 1, 0], [-1, 0, -1], [0, 0, 0]]
    numbers = pa.table({"file_name": ["a"], "labels": pa.array([[3, 17]])})
    pq.write_table(numbers, path)
    assert list(imagefolder.read(path, UNKNOWN).rows.classes) == ["3", "17"]


def test_minus_one_is_never_guessed(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"file_name": "a", "cat": 1}, {"file_name": "b", "cat": -1})
    error = label_error(imagefolder.read, path)
    assert (error.line, error.column) == (2, "cat")
    assert "‹minus_one" in error.fix
    assert imagefolder.read(path, Policy(minus_one="unknown")).table().dense().tolist() == [[1], [0]]


def test_the_meaning_of_an_odd_value_can_be_stated_or_its_column_ignored(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"file_name": "a", "cat": 1, "mood": "maybe"})
    error = label_error(imagefolder.read, path)
    assert (error.line, error.column) == (1, "mood")
    assert "‹ignore=mood›" in error.fix
    assert imagefolder.read(path, Policy(values={"maybe": "absent"})).table().dense().tolist() == [[1, -1]]
    result = imagefolder.read(path, Policy(ignore=("mood",)))
    assert list(result.rows.classes) == ["cat"]
    assert "columns ignored: mood" in result.audit.notes


def test_options_without_meaning_are_refused() -> None:
    assert "‹unlisted" in label_error(imagefolder.read, GOLDEN / "jsonl", ABSENT).fix
    with pytest.raises(UserError, match="zero means nothing"):
        imagefolder.read(GOLDEN / "lists", Policy(unlisted="absent", zero="absent"))
    assert "no column 'cow'" in label_error(imagefolder.read, GOLDEN / "jsonl", Policy(ignore=("cow",))).message


def test_one_value_per_class_is_not_taken_for_names(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"file_name": "a", "labels": [1, 0]}, {"file_name": "b", "labels": [1, 1]})
    error = label_error(imagefolder.read, path, UNKNOWN)
    assert (error.line, error.column) == (2, "labels")
    assert "one value per class" in error.message


def test_numbers_keep_their_spelling(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"file_name": 12, "labels": ["007", 7, 12345678901234567890123]}')
    rows = imagefolder.read(path, UNKNOWN).rows
    assert (list(rows.images), list(rows.classes)) == (["12"], ["007", "7", "12345678901234567890123"])


def test_latin_1(tmp_path: Path) -> None:
    for path in (tmp_path / "metadata.csv", tmp_path / "metadata.jsonl"):
        text = "file_name,été\na,1\n" if path.suffix == ".csv" else '{"file_name": "a",\t"été": 1}\n'
        path.write_text(text, encoding="latin-1")
        assert "‹encoding" in label_error(imagefolder.read, path).fix
        assert list(imagefolder.read(path, Policy(encoding="latin-1")).rows.classes) == ["été"]
        assert "encoding" in label_error(imagefolder.read, path, Policy(encoding="klingon")).message
    assert label_error(imagefolder.read, tmp_path / "metadata.jsonl").line == 1


LINES = {
    "not JSON": ('{"file_name": "b", "cat": tru}', None),
    "not an object": ("[1, 2]", None),
    "'cat' occurs twice": ('{"file_name": "b", "cat": 1, "cat": 0}', None),
    "no name": ('{"file_name": null, "cat": 1}', "file_name"),
    "other labels on line 1": ('{"file_name": "a", "cat": 0}', "file_name"),
    "an object or a list": ('{"file_name": "b", "cat": {}}', "cat"),
    "nested too deep": ("[" * 100_000, None),
}


@pytest.mark.parametrize("message", LINES)
def test_fault_has_its_line(message: str, tmp_path: Path) -> None:
    line, column = LINES[message]
    error = label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "a", "cat": 1}, "", line))
    assert message in error.message
    assert (error.line, error.column) == (3, column)


def test_faults_in_lists(tmp_path: Path) -> None:
    for item in ("cat", 3, ["cat", None], [["cat"]], [True], [""], {"cat": 1}):
        path = jsonl(tmp_path, {"file_name": "a", "labels": ["cat"]}, {"file_name": "b", "labels": item})
        error = label_error(imagefolder.read, path, UNKNOWN)
        assert (error.line, error.column) == (2, "labels")
    path = jsonl(tmp_path, {"file_name": "a", "labels": ["cat"], "tags": ["x"]})
    assert "‹ignore" in label_error(imagefolder.read, path, UNKNOWN).fix
    assert list(imagefolder.read(path, Policy(unlisted="unknown", ignore=("tags",))).rows.classes) == ["cat"]
    assert (
        "no image has a label"
        in label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "a", "labels": []}), UNKNOWN).message
    )
    pq.write_table(pa.table({"file_name": ["a", "b"], "labels": [["x"], ["x", None]]}), tmp_path / "m.parquet")
    assert label_error(imagefolder.read, tmp_path / "m.parquet", UNKNOWN).line == 2


def test_other_faults(tmp_path: Path) -> None:
    assert "no such file" in label_error(imagefolder.read, tmp_path / "not there").message
    assert "no metadata.csv" in label_error(imagefolder.read, tmp_path).message
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "metadata.csv").touch()
    assert label_error(imagefolder.read, tmp_path).fix == "name the folder to read: train"
    assert "empty" in label_error(imagefolder.read, tmp_path / "train").message
    assert "'file_name'" in label_error(imagefolder.read, jsonl(tmp_path, {"image": "a", "cat": 1})).message
    assert "no column is left" in label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "a"})).message
    assert (
        "half a character" in label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "\ud800", "cat": 1})).message
    )
    assert "half a character" in label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "a", "\ud800": 1})).message
    assert "has no name" in label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "a", "": 1})).message
    assert "no rows" in label_error(imagefolder.read, jsonl(tmp_path, "", " ")).message
    (tmp_path / "metadata.csv").write_text("file_name,cat\na,1\n")
    assert "metadata.csv and metadata.jsonl" in label_error(imagefolder.read, tmp_path).message
    (tmp_path / "metadata.json").write_text("{}")
    assert ".jsonl" in label_error(imagefolder.read, tmp_path / "metadata.json").message
    pq.write_table(pa.table({"file_name": ["a"], "image": [{"bytes": b"x"}]}), tmp_path / "m.parquet")
    assert "‹ignore=image›" in label_error(imagefolder.read, tmp_path / "m.parquet").fix


@pytest.mark.parametrize("name", ["metadata.jsonl", "folder"])
def test_round_trip_of_golden(name: str, tmp_path: Path) -> None:
    for source in (GOLDEN / "jsonl", GOLDEN / "lists_absent"):
        table = imagefolder.read(source, Policy()).table()
        formats.write(table, tmp_path / name, format="imagefolder")
        assert formats.read(tmp_path / name, format="imagefolder").table() == table
    assert imagefolder.sniff(tmp_path / name)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="called 'file_name'"):
        imagefolder.write(Labels.from_table(Table.from_dense([[1]], ["a"], ["file_name"])), tmp_path / "out")
    with pytest.raises(UserError, match=r"\.json file"):
        imagefolder.write(Labels.from_table(Table.from_dense([[1]])), tmp_path / "metadata.json")
    assert not list(tmp_path.iterdir())


def test_a_fix_names_only_options_that_the_format_has(tmp_path: Path) -> None:
    fix = label_error(imagefolder.read, jsonl(tmp_path, {"file_name": "a", "cat": "maybe"})).fix
    assert "‹ignore=cat›" in fix
    assert "‹where" not in fix
    assert "‹format" not in fix
