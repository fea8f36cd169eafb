"""NUS-WIDE: the golden folder, splits, alignment, and every fault with its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.labels.audit import ValueCount
from halflabel.labels.formats import nus_wide
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "nus_wide"
IMAGES = ["actor/0001_2124494179.jpg", "actor/0002_174174086.jpg", "zebra/0003_2347354.jpg"]
SKY = "Groundtruth/AllLabels/Labels_sky.txt"
LIST = "ImageList/Imagelist.txt"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A copy of the golden folder, to break."""
    shutil.copytree(GOLDEN, tmp_path / "nus")
    return tmp_path / "nus"


@pytest.mark.parametrize("split", [None, "all", "ALL"])
def test_golden(split: str | None) -> None:
    rows, audit = nus_wide.read(GOLDEN, Policy(split=split))
    table = rows.training
    assert list(table.images) == IMAGES
    assert list(table.classes) == ["animal", "blue_sky", "sky"]
    assert table.dense().tolist() == [[-1, 1, 1], [-1, -1, -1], [1, -1, 1]]
    assert audit.value_counts == [ValueCount("1", "present", 4), ValueCount("0", "absent", 5)]


@pytest.mark.parametrize(("split", "numbers"), [("Train", [1, 2]), ("train", [1, 2]), ("TEST", [0])])
def test_splits(split: str, numbers: list[int]) -> None:
    assert nus_wide.read(GOLDEN, Policy(split=split)).table() == nus_wide.read(GOLDEN, Policy()).table().subset(numbers)


def test_other_case_of_names(base: Path) -> None:
    (base / "Groundtruth").rename(base / "GroundTruth")
    (base / LIST).rename(base / "ImageList" / "ImageList.txt")
    assert nus_wide.read(base, Policy()).table() == nus_wide.read(GOLDEN, Policy()).table()


def test_without_all_labels_the_split_must_be_stated(base: Path) -> None:
    shutil.rmtree(base / "Groundtruth" / "AllLabels")
    assert nus_wide.sniff(base)
    assert "‹split=Train›" in label_error(nus_wide.read, base).fix
    assert nus_wide.read(base, Policy(split="test")).table().shape == (1, 3)
    assert "AllLabels" in str(label_error(nus_wide.read, base, Policy(split="all")))
    assert "'val'" in str(label_error(nus_wide.read, base, Policy(split="val")))


@pytest.mark.parametrize("content", ["1\r0\r1\r", "\ufeff1\n0\n1\n", "1\t\n 0\n1\n\n\n", "1\n0\n1"])
def test_unusual_but_clear_lines(base: Path, content: str) -> None:
    (base / SKY).write_text(content, encoding="utf-8", newline="")
    assert nus_wide.read(base, Policy()).table() == nus_wide.read(GOLDEN, Policy()).table()


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("1\n0\n", None, "2 lines, but Imagelist.txt names 3 images"),
        ("1\n0\n1\n1\n", None, "4 lines, but Imagelist.txt names 3 images"),
        ("1\n2\n1\n", 2, "'2' is not 0 or 1"),
        ("1\n\n1\n", 2, "'' is not 0 or 1"),
        ("1\n0 1\n1\n", 2, "'0 1'"),
        ("10\n1\n", 1, "'10'"),
        ("1\n-1\n1\n", 2, "'-1'"),
        ("", None, "empty"),
    ],
)
def test_faults_in_a_class_file(base: Path, content: str, line: int | None, words: str) -> None:
    (base / SKY).write_text(content)
    error = label_error(nus_wide.read, base)
    assert error.file.endswith("Labels_sky.txt")
    assert (error.line, words in error.message) == (line, True)


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("a\\1.jpg\nb.jpg\na/1.jpg\n", 3, "'a/1.jpg' is already on line 1"),
        ("a.jpg\n\nb.jpg\n", 2, "has no image"),
        ("\n", None, "lists nothing"),
        ("", None, "empty"),
    ],
)
def test_faults_in_the_image_list(base: Path, content: str, line: int | None, words: str) -> None:
    (base / LIST).write_text(content)
    error = label_error(nus_wide.read, base)
    assert error.file.endswith("Imagelist.txt")
    assert (error.line, words in error.message) == (line, True)


def test_missing_parts(base: Path) -> None:
    (base / LIST).unlink()
    assert "ImageList/Imagelist.txt" in str(label_error(nus_wide.read, base))
    for file in (base / "Groundtruth" / "AllLabels").iterdir():
        file.unlink()
    assert "Labels_<class>.txt" in str(label_error(nus_wide.read, base))
    assert "_Train" not in str(label_error(nus_wide.read, base))
    shutil.rmtree(base / "Groundtruth")
    assert "Groundtruth" in str(label_error(nus_wide.read, base))
    assert "no such" in str(label_error(nus_wide.read, base / "nowhere"))
