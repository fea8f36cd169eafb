"""Open Images: golden files, verified and machine-generated labels, blocks, round trips, and every fault."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from label_files import GOLDEN_FILES, label_error, source_of

from halflabel.labels.audit import ValueCount
from halflabel.labels.formats import open_images
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "open_images"
VERIFIED = GOLDEN / "verified" / "validation-annotations-human-imagelabels.csv"
MIXED = GOLDEN / "mixed" / "train-annotations-mixed-imagelabels.csv"
BOXES = GOLDEN / "boxes" / "train-annotations-bbox.csv"
HEADER = "ImageID,Source,LabelName,Confidence\n"


def test_golden_verified() -> None:
    rows, audit = open_images.read(VERIFIED, Policy())
    table = rows.training
    assert list(table.images) == ["0001eeaf4aed83f9", "0004886b7d043cfd", "000595fe6fee6369"]
    # Two ids are called Tank, so theirs is kept beside the name; /m/0zz9z has no description.
    assert list(table.classes) == ["Airplane", "Chest of drawers, old", "/m/0zz9z", "Tank (/m/04h7h)"]
    assert table.dense().tolist() == [[1, -1, 0, 0], [0, 1, 1, 0], [-1, 0, 0, -1]]
    assert source_of(rows) == ["verification", "verification", "crowdsource-verification", *["verification"] * 3]
    assert np.isnan(rows.score).all()
    assert audit.value_counts == [ValueCount("1", "present", 3), ValueCount("0", "absent", 3)]
    assert audit.notes == ["1 classes have no description and keep their id as name"]


def test_guesses_are_unknown_by_default_and_keep_their_places() -> None:
    rows, audit = open_images.read(MIXED, Policy())
    assert list(rows.images) == ["00aa", "00bb", "00cc"]
    assert list(rows.classes) == ["/m/a", "/m/b", "/m/c"]
    assert rows.training.dense().tolist() == [[0, 1, 0], [-1, 0, 0], [0, 0, 0]]
    assert audit.value_counts == [
        ValueCount("1", "present", 1),
        ValueCount("0", "absent", 1),
        ValueCount("a machine's guess", "unknown", 4),
    ]
    assert any("‹machine=0.9›" in note for note in audit.notes)


def test_guesses_from_the_stated_confidence_on_are_present_but_never_beat_a_person() -> None:
    """0.7 counts at 0.7, although it is less in single precision; 00bb, /m/a was verified absent before the guess."""
    rows, audit = open_images.read(MIXED, Policy(machine=0.7))
    assert rows.training.dense().tolist() == [[1, 1, 0], [-1, 0, 0], [0, 0, 1]]
    assert source_of(rows) == ["machine", "machine", "machine", "verification", "verification"]
    assert rows.score[:3].tolist() == pytest.approx([0.7, 0.9, 1.0])
    assert np.isnan(rows.score[3:]).all()
    assert ValueCount("a machine's guess of 0.7 or more", "present", 3) in audit.value_counts
    assert ValueCount("a machine's guess below 0.7", "unknown", 1) in audit.value_counts
    assert any(note.startswith("1 entries are both") for note in audit.notes)


def test_boxes_read_the_same_way() -> None:
    rows, audit = open_images.read(BOXES, Policy())
    assert len(rows) == 3
    assert list(rows.classes) == ["Person", "NA"]
    assert rows.training.dense().tolist() == [[1, 0], [0, 1]]
    assert source_of(rows) == ["xclick", "xclick", "activemil"]
    assert audit.files == [str(BOXES), str(BOXES.parent / "class-descriptions-boxable.csv")]


def test_the_descriptions_that_fit_best_are_taken(tmp_path: Path) -> None:
    shutil.copy(VERIFIED, tmp_path)
    (tmp_path / "class-descriptions-boxable.csv").write_text("/m/0cmf2,Plane\n")
    (tmp_path / "oidv6-class-descriptions.csv").write_text("LabelName,DisplayName\n/m/0cmf2,Jet\n/m/04f2k,Chest\n")
    assert list(open_images.read(tmp_path / VERIFIED.name, Policy()).rows.classes)[:2] == ["Jet", "Chest"]


def test_a_name_that_looks_like_another_id_does_not_clash(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(HEADER + "a,v,/m/1,1\na,v,/m/2,0\n")
    (tmp_path / "class-descriptions.csv").write_text("/m/1,/m/2\n")
    assert list(open_images.read(file, Policy()).rows.classes) == ["/m/2 (/m/1)", "/m/2 (/m/2)"]


def test_order_of_columns_and_a_missing_source(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"\xef\xbb\xbfLabelName,Confidence,ImageID\r\n/m/1,1.0,007\r\n\r\nNone,0,7\r\n")
    assert open_images.sniff(file)
    rows = open_images.read(file, Policy()).rows
    assert (list(rows.images), list(rows.classes)) == (["007", "7"], ["/m/1", "None"])
    assert rows.training.dense().tolist() == [[1, 0], [0, -1]]
    assert rows.sources == ("",)


def slow(path: Path, machine: float | None) -> tuple[list[str], list[str], dict[tuple[str, str], int]]:
    """The obvious loop over a file: images, classes, and what holds; a person's word beats a machine's."""
    images: dict[str, None] = {}
    classes: dict[str, None] = {}
    guessed: dict[tuple[str, str], int] = {}
    verified: dict[tuple[str, str], int] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            pair = row["ImageID"], row["LabelName"]
            images[pair[0]] = classes[pair[1]] = None
            confidence = float(row["Confidence"])
            if row["Source"] == "machine" or 0 < confidence < 1:
                if machine is not None and confidence >= machine:
                    guessed[pair] = 1
            else:
                verified[pair] = 1 if confidence else -1
    return list(images), list(classes), guessed | verified


@pytest.mark.parametrize("machine", [None, 0.5])
def test_many_blocks_agree_with_the_obvious_loop(
    tmp_path: Path, machine: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that come back in later blocks, and new classes and sources in each."""
    import pyarrow.csv as pa_csv

    open_csv, blocks = pa_csv.open_csv, []

    def in_small_blocks(path: Path, options: pa_csv.ReadOptions, *others: object) -> object:
        options.block_size = 4000
        reader = open_csv(path, options, *others)
        return (blocks.append(1) or batch for batch in reader)

    monkeypatch.setattr(pa_csv, "open_csv", in_small_blocks)
    rng = np.random.default_rng(3)
    file = tmp_path / "x.csv"
    with open(file, "w") as out:
        out.write(HEADER)
        for number in range(3000):
            image, label = rng.integers(number // 3 + 1), rng.integers(number // 100 + 1)
            source = rng.choice(["verification", "machine", f"s{number // 500}"])
            out.write(f"{image:016x},{source},/m/{label},{rng.choice(['0', '1', '0.5', '0.25'])}\n")
    rows = open_images.read(file, Policy(machine=machine)).rows
    images, classes, labels = slow(file, machine)
    assert len(blocks) > 20
    assert (list(rows.images), list(rows.classes)) == (images, classes)
    image, column, value = rows.training.entries()
    result = {(images[i], classes[c]): int(v) for i, c, v in zip(image, column, value, strict=True)}
    assert result == labels
    pairs = list(zip(rows.image.tolist(), rows.column.tolist(), rows.value.tolist(), strict=True))
    both = {pair[:2] for pair in pairs if pair[2] > 0} & {pair[:2] for pair in pairs if pair[2] < 0}
    assert rows.count_conflicts() == len(both) > 0


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        ("ImageID,Source,Confidence\na,v,1\n", 1, None, "no column 'LabelName'"),
        ("ImageID,ImageID,LabelName,Confidence\na,a,b,1\n", 1, None, "'ImageID' occurs twice"),
        (HEADER, None, None, "no rows"),
        (HEADER + "a,v,/m/1,1\n\na,v,/m/2,maybe\n", 4, "Confidence", "'maybe' is not a number"),
        (HEADER + "a,v,/m/1,1\na,v,/m/2,\n", 3, "Confidence", "blank"),
        (HEADER + "a,v,/m/1,1\na,v,/m/2,nan\n", 3, "Confidence", "from 0 to 1"),
        (HEADER + "a,v,/m/1,1\na,v,/m/2,1.5\n", 3, "Confidence", "1.5"),
        (HEADER + "a,v,/m/1,1\na,v,/m/2,-1\n", 3, "Confidence", "-1"),
        (HEADER + "a,v,/m/1,1\n\n,v,/m/2,1\n", 4, "ImageID", "blank"),
        (HEADER + "a,v,/m/1,1\na,v,,1\n", 3, "LabelName", "blank"),
        (HEADER + "a,v,/m/1,1\na,v,/m/2\n", 3, None, "3 fields where the first line has 4"),
        (HEADER + "a,v,/m/1,1\na,v,/m/2,1,1\n", 3, None, "5 fields where the first line has 4"),
        (HEADER + "a,v,/m/1,1\n\udcff,v,/m/2,1\n", 3, None, "byte 0xff is not UTF-8"),
        ("", None, None, "empty"),
    ],
)
def test_faults(tmp_path: Path, content: str, line: int | None, column: str | None, words: str) -> None:
    file = tmp_path / "x.csv"
    file.write_text(content, encoding="utf-8", errors="surrogateescape")
    error = label_error(open_images.read, file)
    assert (error.line, error.column) == (line, column)
    assert words in error.message


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [("/m/1,Cat\n/m/2\n", 2, "1 fields"), ("/m/1,Cat\n/m/1,Dog\n", 2, "two names"), ("/m/1,\n", 1, "filled")],
)
def test_faults_in_the_descriptions(tmp_path: Path, content: str, line: int, words: str) -> None:
    (tmp_path / "x.csv").write_text(HEADER + "a,v,/m/1,1\n")
    (tmp_path / "class-descriptions.csv").write_text(content)
    error = label_error(open_images.read, tmp_path / "x.csv")
    assert (Path(error.file).name, error.line) == ("class-descriptions.csv", line)
    assert words in error.message


def test_blank_lines_above_the_header(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("\n\n" + HEADER + "a,verification,/m/1,1\nb,verification,/m/1,0\n")
    assert open_images.read(file, Policy()).rows.training.dense().tolist() == [[1], [-1]]
