"""CUB attributes: the golden folder, certainties, ragged lines, splits, and every fault with its place."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import GOLDEN_FILES, label_error

from halflabel.labels.audit import ValueCount
from halflabel.labels.formats import cub
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "cub" / "CUB_200_2011"
ALBATROSS = "001.Black_footed_Albatross/Black_Footed_Albatross_"
IMAGES = [f"{ALBATROSS}0046_18.jpg", f"{ALBATROSS}0009_34.jpg", "002.Laysan_Albatross/Laysan_Albatross_0002_1027.jpg"]
CLASSES = ["has_bill_shape::curved_(up_or_down)", "has_wing_color::blue", "has_wing_color::NA"]
LABELS = "attributes/image_attribute_labels.txt"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A copy of the golden folder, to break; attributes.txt lies beside it, as in the public archive."""
    shutil.copytree(GOLDEN.parent, tmp_path / "cub")
    return tmp_path / "cub" / GOLDEN.name


def test_golden() -> None:
    rows, audit = cub.read(GOLDEN, Policy())
    table = rows.training
    assert list(table.images) == IMAGES
    assert list(table.classes) == CLASSES
    assert table.dense().tolist() == [[-1, 1, 0], [1, -1, 0], [-1, 1, -1]]
    assert [rows.sources[number] for number in rows.source] == [
        *("probably", "definitely", "guessing", "definitely", "guessing", "probably", "definitely")
    ]
    assert audit.value_counts == [
        ValueCount("is_present 1, definitely", "present", 1),
        ValueCount("is_present 0, definitely", "absent", 2),
        ValueCount("is_present 1, probably", "present", 1),
        ValueCount("is_present 0, probably", "absent", 1),
        ValueCount("is_present 1, guessing", "present", 1),
        ValueCount("is_present 0, guessing", "absent", 1),
        ValueCount("is_present 1, not visible", "unknown", 1),
        ValueCount("is_present 0, not visible", "unknown", 1),
    ]
    assert audit.notes == ["2 lines do not have five fields: the first four are used"]


@pytest.mark.parametrize(("split", "numbers"), [("train", [1, 2]), ("test", [0])])
def test_splits(split: str, numbers: list[int]) -> None:
    table = cub.read(GOLDEN, Policy(split=split)).table()
    assert table == cub.read(GOLDEN, Policy()).table().subset(numbers)


@pytest.mark.parametrize("place", ["attributes/attributes.txt", "attributes.txt", "../attributes.txt"])
def test_places_of_the_attribute_list(base: Path, place: str) -> None:
    shutil.move(base.parent / "attributes.txt", base / place)
    assert list(cub.read(base, Policy()).rows.classes) == CLASSES


def slow(text: str, images: int, classes: int) -> np.ndarray:
    """The obvious loop: line by line, the first four fields, certainty 1 unknown."""
    labels = np.zeros((images, classes), np.int8)
    for line in text.splitlines():
        if line.split():
            image, column, present, certainty = (int(field) for field in line.split()[:4])
            if certainty > 1:
                labels[image - 1, column - 1] = 1 if present else -1
    return labels


@given(st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_parser_agrees_with_the_obvious_loop(seed: int) -> None:
    """Any order, blanks, tabs, CRLF, blank lines, stray fields, leading zeros, with or without a last line end."""
    rng = np.random.default_rng(seed)
    images, classes = (int(size) for size in rng.integers(1, 13, 2))
    pairs = rng.permutation(images * classes)[: int(rng.integers(1, images * classes + 1))]
    text = ""
    for pair in pairs:
        image, column = f"{pair // classes + 1:0{rng.integers(1, 5)}}", pair % classes + 1
        gap = rng.choice([" ", "  ", "\t"])
        fields = [image, column, rng.integers(2), rng.integers(1, 5), *(["0"] * rng.integers(3)), "1.5"]
        text += rng.choice(["", " "]) + gap.join(map(str, fields)) + rng.choice(["\n", "\r\n", " \n", "\n\n"])
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "attributes").mkdir()
        (base / LABELS).write_bytes(text.rstrip("\n").encode() if seed % 2 else text.encode())
        (base / "images.txt").write_text("".join(f"{i + 1} im{i}\n" for i in range(images)))
        (base / "attributes.txt").write_text("".join(f"{i + 1} at{i}\n" for i in range(classes)))
        assert cub.read(base, Policy()).table().dense().tolist() == slow(text, images, classes).tolist()


def test_a_repeated_pair_is_noted(base: Path) -> None:
    with open(base / LABELS, "a") as file:
        file.write("1 1 1 4 1.0\n")
    rows, audit = cub.read(base, Policy())
    assert rows.training.dense()[0, 0] == 1
    assert any(note.startswith("1 lines repeat") for note in audit.notes)


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("1 1 0 3 2.0\n9 1 0 3 2.0\n", 2, "image_id 9 is not in images.txt"),
        ("1 1 0 3 2.0\n\n1 0 0 3 2.0\n", 3, "attribute_id 0 is not in attributes.txt"),
        ("1 1 2 3 2.0\n", 1, "is_present 2"),
        ("1 1 0 3 2.0\n1 1 0 5 2.0\n", 2, "certainty_id 5"),
        ("1 1 0 0 2.0\n", 1, "certainty_id 0"),
        ("1 1 0 3 2.0\n1 1 0\n", 2, "3 fields"),
        ("1 1 0 3 2.0 1 1 1 1\n", 1, "9 fields"),
        ("1 1 0 3 2.0\n1 one 0 3 2.0\n", 2, "attribute_id 'one'"),
        ("1 -1 0 3 2.0\n", 1, "attribute_id '-1'"),
        ("1 1 0 3\x00 2.0\n", 1, "certainty_id"),
        ("12345678901234567890 1 0 3 2\n", 1, "image_id '12345678901234567890'"),
        ("\n \n", None, "only blank lines"),
        ("", None, "empty"),
        ("1 1 0 3 2.0\r1 2 0 3 2.0\r", 1, "10 fields"),
    ],
)
def test_faults_in_the_labels(base: Path, content: str, line: int | None, words: str) -> None:
    (base / LABELS).write_text(content, newline="")
    error = label_error(cub.read, base)
    assert error.file.endswith("image_attribute_labels.txt")
    assert error.line == line
    assert words in error.message


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("images.txt", "1 a.jpg\nb.jpg\n", 2, "not a number and a name"),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", 2, "on line 1"),
        ("images.txt", "1 a.jpg\n2 b.jpg\n\n3 a.jpg\n", 4, "'a.jpg' is already on line 1"),
        ("images.txt", "\n", None, "lists nothing"),
        ("../attributes.txt", "1 a\n2\n3 b\n", 2, "not a number and a name"),
        (
            "attributes/certainties.txt",
            "1 definitely\n2 guessing\n3 probably\n4 not visible\n",
            None,
            "not have the meanings",
        ),
    ],
)
def test_faults_in_the_lists(base: Path, name: str, content: str, line: int | None, words: str) -> None:
    (base / name).write_text(content)
    error = label_error(cub.read, base)
    assert Path(error.file).name == Path(name).name
    assert (error.line, words in error.message) == (line, True)


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("1 0\n2 1\n", None, "image_id 3 has no line"),
        ("1 0\n2 1\n7 1\n", 3, "image_id 7"),
        ("1 0\n2 yes\n", 2, "'2 yes'"),
        ("1 0\n2\n", 2, "not an image_id"),
        ("1 0\n2 0\n3 0\n", None, "no image is in the split 'train'"),
    ],
)
def test_faults_in_the_split(base: Path, content: str, line: int | None, words: str) -> None:
    (base / "train_test_split.txt").write_text(content)
    error = label_error(cub.read, base, Policy(split="train"))
    assert (error.line, words in error.message) == (line, True)
