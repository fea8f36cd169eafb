"""Pascal VOC: the golden folder, difficult objects, and every fault with its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError
from halflabel.labels.audit import ValueCount
from halflabel.labels.formats.voc import voc
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "voc" / "VOC2007"
TRAINVAL = Policy(split="trainval")


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A copy of the golden folder's ImageSets/Main, to break."""
    shutil.copytree(GOLDEN, tmp_path / "VOC2007")
    return tmp_path / "VOC2007" / "ImageSets" / "Main"


def refusal(path: Path, policy: Policy = TRAINVAL) -> LabelError:
    return label_error(voc.read, path, policy)


def test_golden_difficult_is_unknown() -> None:
    rows, audit = voc.read(GOLDEN, TRAINVAL)
    table = rows.training
    assert list(table.images) == ["000005", "000007", "2008_000015"]
    assert list(table.classes) == ["aeroplane", "cat", "dining_table"]
    assert table.dense().tolist() == [[-1, 1, 0], [1, 1, -1], [0, -1, 1]]
    assert audit.value_counts == [
        ValueCount("1", "present", 4),
        ValueCount("-1", "absent", 3),
        ValueCount("0", "unknown", 2),
    ]
    assert any("difficult" in note for note in audit.notes)
    assert any("test" in note for note in audit.notes)


@pytest.mark.parametrize(("meaning", "value"), [("present", 1), ("absent", -1), ("unknown", 0)])
def test_difficult_as_stated(meaning: str, value: int) -> None:
    rows, audit = voc.read(GOLDEN, Policy(split="trainval", difficult=meaning))  # type: ignore[arg-type]
    assert rows.training.dense().tolist() == [[-1, 1, value], [1, 1, -1], [value, -1, 1]]
    assert ValueCount("0", meaning, 2) in audit.value_counts
    sources = [rows.sources[number] for number in rows.source]
    assert sources.count("difficult") == (2 if value else 0)


def test_main_folder_itself_and_other_split() -> None:
    table = voc.read(GOLDEN / "ImageSets" / "Main", Policy(split="test")).table()
    assert list(table.images) == ["000001", "000002"]
    assert table.dense().tolist() == [[1, -1, -1], [-1, 0, -1]]


def test_without_an_image_list_the_class_files_give_the_images(main: Path) -> None:
    (main / "trainval.txt").unlink()
    assert voc.read(main, TRAINVAL).table() == voc.read(GOLDEN, TRAINVAL).table()


def test_one_split_needs_no_statement(main: Path) -> None:
    for file in main.glob("*test.txt"):
        file.unlink()
    assert voc.read(main, Policy()).table() == voc.read(GOLDEN, TRAINVAL).table()


def test_several_splits_are_listed() -> None:
    error = refusal(GOLDEN, Policy())
    assert "test, trainval" in str(error)
    assert "‹split" in error.fix


def test_unknown_split() -> None:
    assert "trainval" in refusal(GOLDEN, Policy(split="val")).fix


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("000005 1\n000007 maybe\n2008_000015 1\n", 2, "'maybe'"),
        ("000005 1\n000007\n2008_000015 1\n", 2, "1 fields"),
        ("000005 1\n000007 1 1\n2008_000015 1\n", 2, "3 fields"),
        ("000005 1\n2008_000015 1\n000007 1\n", 2, "is where trainval.txt has '000007'"),
        ("5 1\n000007 1\n2008_000015 1\n", 1, "'5' is where trainval.txt has '000005'"),
        ("000005 1\n\n000007 1\n", 3, "ends after 2 images, but trainval.txt lists 3"),
        ("000005 1\n000007 1\n2008_000015 1\nmore 1\n", 4, "one more"),
        ("", None, "empty"),
    ],
)
def test_faults_in_a_class_file(main: Path, content: str, line: int | None, words: str) -> None:
    (main / "cat_trainval.txt").write_text(content)
    error = refusal(main)
    assert error.file.endswith("cat_trainval.txt")
    assert error.line == line
    assert words in error.message


def test_faults_in_the_image_list(main: Path) -> None:
    (main / "trainval.txt").write_text("000005\n000007\n000005\n")
    error = refusal(main)
    assert (error.line, "on line 1" in error.message) == (3, True)
    (main / "trainval.txt").write_bytes(b"000005\n\xff\xfe\n")
    assert refusal(main).line == 2
    (main / "trainval.txt").write_text("\n")
    assert "lists nothing" in str(refusal(main))
