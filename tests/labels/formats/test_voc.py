"""Pascal VOC: the golden folder, difficult objects, round trips, and every fault with its place."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import ValueCount
from halflabel.labels.formats import voc
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

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


def test_sniff() -> None:
    assert voc.sniff(GOLDEN)
    assert voc.sniff(GOLDEN / "ImageSets" / "Main")
    assert not voc.sniff(GOLDEN.parent)
    assert not voc.sniff(GOLDEN / "ImageSets" / "Main" / "trainval.txt")
    assert not voc.sniff(GOLDEN / "nowhere")


def test_several_splits_are_listed() -> None:
    error = refusal(GOLDEN, Policy())
    assert "test, trainval" in str(error)
    assert "--split" in error.fix


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
        ("", 0, "ends after 0 images"),
    ],
)
def test_faults_in_a_class_file(main: Path, content: str, line: int, words: str) -> None:
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


def test_wrong_folders(tmp_path: Path) -> None:
    assert "ImageSets/Main" in str(refusal(tmp_path))
    assert "no such" in str(refusal(tmp_path / "nowhere"))
    (tmp_path / "Main").mkdir()
    assert "<class>_<split>" in str(refusal(tmp_path / "Main"))
    (tmp_path / "file").write_text("x")
    assert "a folder is needed" in str(refusal(tmp_path / "file"))


def test_round_trip_of_the_golden_folder(tmp_path: Path) -> None:
    result = voc.read(GOLDEN, TRAINVAL)
    voc.write(result.rows, tmp_path / "new")
    assert voc.read(tmp_path / "new", Policy()).table() == result.table()
    main = tmp_path / "new" / "ImageSets" / "Main"
    assert (main / "aeroplane_trainval.txt").read_text() == "000005 -1\n000007  1\n2008_000015  0\n"
    assert (main / "trainval.txt").read_text() == "000005\n000007\n2008_000015\n"


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1)
short = words.filter(lambda name: len(name.encode()) < 60)


@given(
    st.lists(words, min_size=1, max_size=4, unique=True),
    st.lists(short, min_size=1, max_size=3, unique=True),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_round_trip_of_any_table(images: list[str], classes: list[str], seed: int) -> None:
    labels = np.random.default_rng(seed).integers(-1, 2, (len(images), len(classes)))
    table = Table.from_dense(labels, images, sorted(classes))
    with tempfile.TemporaryDirectory() as folder:
        voc.write(Labels.from_table(table), Path(folder))
        assert voc.read(Path(folder), Policy()).table() == table


@pytest.mark.parametrize(
    ("images", "classes", "words"),
    [
        (["a b"], ["cat"], "'a b'"),
        ([""], ["cat"], "''"),
        (["a"], ["cat/dog"], "'cat/dog'"),
        (["a"], [""], "cannot hold the name"),
        (["a"], ["x" * 300], "cannot write"),
    ],
)
def test_write_refuses_what_it_cannot_hold(tmp_path: Path, images: list[str], classes: list[str], words: str) -> None:
    with pytest.raises(UserError, match="Fix: ") as caught:
        voc.write(Labels.from_table(Table.from_dense([[1]], images, classes)), tmp_path)
    assert words in caught.value.message


def test_write_refuses_nothing_and_a_folder_with_other_classes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no class to write"):
        voc.write(Labels.from_table(Table.from_dense(np.zeros((1, 0)), ["a"], [])), tmp_path)
    voc.write(Labels.from_table(Table.from_dense([[1, 1]], ["a"], ["cat", "dog"])), tmp_path)
    voc.write(Labels.from_table(Table.from_dense([[0, -1]], ["b"], ["cat", "dog"])), tmp_path)
    with pytest.raises(UserError, match="other classes: dog"):
        voc.write(Labels.from_table(Table.from_dense([[1]], ["a"], ["cat"])), tmp_path)
    assert voc.read(tmp_path, Policy()).table() == Table.from_dense([[0, -1]], ["b"], ["cat", "dog"])


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data) + 1))
    noise = bytes(rng.choice(list(b"\x00\xff\n\r \t1-0a;\"'"), int(rng.integers(0, 4))).tolist())
    return data[:at] + noise + data[at + int(rng.integers(0, 4)) :]


def test_no_bytes_bring_it_down(main: Path) -> None:
    rng = np.random.default_rng(0)
    files = sorted(main.glob("*trainval.txt"))
    read = 0
    for _ in range(150):
        file = files[int(rng.integers(len(files)))]
        before = file.read_bytes()
        file.write_bytes(mutated(before, rng))
        fault = None
        try:
            voc.read(main, TRAINVAL)
            read += 1
        except LabelError as error:
            fault = error
        assert fault is None or fault.fix
        file.write_bytes(before)
    assert 0 < read < 150
