"""`reproduce --labels` with published training labels, and `--dataset` with another data set than the paper's."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.data.datasets import open_dataset
from halflabel.errors import LabelError, UserError
from halflabel.experiments.bench import Bench, Trained
from halflabel.experiments.grid import Task
from halflabel.labels import drop, formats
from halflabel.labels.table import LabelTable
from halflabel.papers.given_labels import GivenLabels, GivenMask, read_given_labels
from halflabel.papers.run import reproduce
from halflabel.papers.settings import Overrides
from halflabel.papers.spec import MaskSpec, TableRow
from halflabel.papers.tables import TABLES

HEAD = Overrides(backbone="tiny", size=32, epochs=1, tune="head", device="cpu", workers=0)


@pytest.fixture
def full(voc2012: Path) -> LabelTable:
    return open_dataset("voc2012", voc2012, difficult="absent").train


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], LabelTable]:
    """The known labels of the non-test images in each run, by row and seed."""
    found: dict[tuple[str, int], LabelTable] = {}
    original = Bench.train

    def train(self: Bench, task: Task, **more: object) -> Trained:
        found[task.candidate.name, task.seed] = self.divide(task.label_mask, task.seed).known
        return original(self, task, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Bench, "train", train)
    return found


def write_list(table: LabelTable, path: Path, *, numbers: bool = True, ending: str = "") -> Path:
    image, column, value = table.entries()
    names, classes = list(table.images), list(table.classes)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "class_index" if numbers else "class"])
        for number, kind in zip(image[value > 0], column[value > 0], strict=True):
            writer.writerow([names[number] + ending, kind if numbers else classes[kind]])
    return path


@pytest.mark.parametrize(("numbers", "ending"), [(True, ""), (False, ".jpg")])
def test_a_list_is_read_by_name_or_number(full: LabelTable, tmp_path: Path, numbers: bool, ending: str) -> None:
    drawn = drop.single_positive(full, seed=7)
    path = write_list(drawn, tmp_path / "list.csv", numbers=numbers, ending=ending)
    assert read_given_labels(path, full).labels == drawn


def test_a_list_without_header_keeps_its_first_line(full: LabelTable, tmp_path: Path) -> None:
    drawn = drop.single_positive(full, seed=7)
    for numbers in (True, False):
        path = write_list(drawn, tmp_path / "list.csv", numbers=numbers)
        head, *lines = path.read_text().splitlines()
        path.write_text("\n".join(lines))
        assert read_given_labels(path, full).labels == drawn
        for head in (",0", "image,label"):
            path.write_text("\n".join([head, *lines]))
            found = read_given_labels(path, full)
            assert (found.labels, found.images, found.unknown) == (drawn, len(lines), 0)
        # A first line with an unknown image is not a header; one with an unknown class is an error.
        path.write_text("\n".join([f"gone,{lines[0].split(',')[1]}", *lines]))
        assert read_given_labels(path, full).unknown == 1
        path.write_text("\n".join([f"{lines[0].split(',')[0]},zebra", *lines[1:]]))
        with pytest.raises(LabelError, match="no class 'zebra'"):
            read_given_labels(path, full)


def test_a_list_about_other_images_is_refused(voc2012: Path, full: LabelTable, tmp_path: Path) -> None:
    test = open_dataset("voc2012", voc2012, difficult="absent").test
    path = write_list(drop.single_positive(full, seed=7), tmp_path / "list.csv")
    four = path.read_text().splitlines()[1:5]
    kind = four[0].split(",")[1]

    def read(known: int, strange: int, elsewhere: int = 0) -> GivenLabels:
        lines = [*four[:known], *(f"gone{number},{kind}" for number in range(strange))]
        lines += [f"{name},{kind}" for name in list(test.images)[:elsewhere]]
        path.write_text("\n".join(["id,class", *lines]))
        return read_given_labels(path, full, [test.images])

    for known, strange in ((1, 3), (0, 4)):
        with pytest.raises(LabelError, match=r"of its 4 images (is|are) in the data set.*'2008_000000'"):
            read(known, strange)
    with pytest.raises(LabelError, match="not one of its 3 images is a training image"):
        read(0, 0, 3)
    assert read(2, 2).describe_coverage(full) == (
        "list.csv: 2 labels of 2 of 50 training images; 4 images in the file, 0 in other splits, 2 not in the data set"
    )
    found = read(4, 0, 9)  # a list of more splits than training has
    assert found.labels.known == 4
    some = full.subset(full.images.index([line.split(",")[0] for line in four]))
    assert found.describe_coverage(some) == (
        "list.csv: 4 labels of 4 of 4 training images; 13 images in the file, 9 in other splits, 0 not in the data set"
    )
    with pytest.raises(LabelError, match="no label of any of the 2 training images"):
        found.describe_coverage(full.subset(np.array([40, 41])))


def test_other_label_formats_are_read(full: LabelTable, tmp_path: Path) -> None:
    drawn = drop.single_positive(full, seed=7)
    formats.write(drawn, tmp_path / "long.csv")
    assert read_given_labels(tmp_path / "long.csv", full).labels == drawn
    formats.write(drawn, tmp_path / "published", format="single-positive")
    assert read_given_labels(tmp_path / "published", full).labels == drawn


def test_given_positives_are_joined_with_all_negatives(full: LabelTable) -> None:
    drawn = drop.single_positive(full, seed=7)
    given = GivenMask("1-positive+negatives", (), drawn)
    assert given.apply(full, 0) == given.apply(full, 1) == drop.one_positive_all_negatives(full, seed=7)
    some = np.arange(3, 11)
    assert GivenMask("single-positive", (), drawn).apply(full.subset(some), 0) == drawn.subset(some)


def test_invalid_lists_are_refused(full: LabelTable, tmp_path: Path) -> None:
    drawn = drop.single_positive(full, seed=7)
    path = write_list(drawn, tmp_path / "list.csv")
    lines = path.read_text().splitlines()
    classes = len(full.classes)

    def shifted(line: str) -> str:
        name, kind = line.split(",")
        return f"{name},{(int(kind) + 1) % classes}"

    for text, says in (
        ("\n".join([lines[0], *map(shifted, lines[1:])]), "labels contradict the data set"),
        ("id,class\n2008_000001,zebra\n", "has no class 'zebra'"),
        (f"id,class\n2008_000001,{classes}\n", f"has no class '{classes}'"),
        ("id,class\nanother,0\n", "not one of its 1 images is in the data set"),
    ):
        path.write_text(text)
        with pytest.raises(LabelError, match=says):
            read_given_labels(path, full)
    with pytest.raises(LabelError, match="no such file"):
        read_given_labels(tmp_path / "nothing.csv", full)


def test_published_list_on_the_command_line(
    voc2012: Path, full: LabelTable, tmp_path: Path, seen: dict[tuple[str, int], LabelTable]
) -> None:
    drawn = drop.single_positive(full, seed=7)
    path = write_list(drawn, tmp_path / "list.csv")
    words = ["reproduce", "S5-table", voc2012, "--conditions", "VOC", "--rows", "AN loss,All P.,1 P.", "--seeds", "2"]
    words += ["--backbone", "tiny", "--size", "32", "--epochs", "1", "--device", "cpu", "--workers", "0"]
    words += ["--tune", "head", "--out", tmp_path / "out", "--labels", path]
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "220"})
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert (
        "labels that training sees: single-positive; all labels (All P. & All N.: BCE loss); "
        "1-positive+negatives (1 P. & All N.: BCE loss); those of list.csv with every seed"
    ) in text
    assert "list.csv: 49 labels of 49 of 49 training images; 49 images in the file" in text
    assert "Epochs chosen by hidden labels (VOC), as the paper does" in text
    assert "features 49/49" in text  # no bar where there is no terminal
    shown = drawn.subset(drawn.images.index(seen["AN loss", 0].images.array))
    assert seen["AN loss", 0] == seen["AN loss", 1] == shown
    both = seen["1 P. & All N.: BCE loss", 1]
    assert both == drop.one_positive_all_negatives(full, seed=7).subset(full.images.index(both.images.array))
    assert seen["All P. & All N.: BCE loss", 0].known == len(shown) * len(full.classes)
    # What is kept belongs to these labels.
    without = CliRunner().invoke(app, [str(word) for word in words[:-2]], env={"COLUMNS": "220"})
    assert without.exit_code == 2
    assert "given labels" in without.stderr
    assert "--force" in without.stderr


def test_one_file_of_labels_is_for_one_column(coco2014: Path, full: LabelTable, tmp_path: Path) -> None:
    path = write_list(drop.single_positive(full, seed=7), tmp_path / "list.csv")
    with pytest.raises(UserError, match=r"labels of one run.*choose one column by --conditions: 10 %; 30 %"):
        reproduce("S4-table2", coco2014, out=tmp_path / "a", rows=["S-BCE"], labels=path, overrides=HEAD)
    with pytest.raises(
        UserError, match=r"labels of one run.*'MS-COCO' is the mean of 9 runs.*leave --labels out.*: S4-table2"
    ):
        reproduce("S4-table1", coco2014, out=tmp_path, rows=["CSL"], conditions=["COCO"], labels=path, overrides=HEAD)


def test_rows_with_different_masks_are_named(
    coco2014: Path, full: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_list(drop.single_positive(full, seed=7), tmp_path / "list.csv")
    table = TABLES["S4-table2"]
    rows = (TableRow("one", "bce"), TableRow("two", "an"), TableRow("three", "bce", mask=MaskSpec("single-positive")))
    monkeypatch.setitem(TABLES, table.id, replace(table, rows=rows))
    with pytest.raises(UserError, match=r"different labels.*by --rows those of one kind: one, two; or three"):
        reproduce(table.id, coco2014, out=tmp_path, conditions=["10 %"], labels=path, overrides=HEAD)


def test_rows_with_different_settings_share_the_labels(
    coco2014: Path, tmp_path: Path, seen: dict[tuple[str, int], LabelTable]
) -> None:
    """All rows of S2-table4 except the first tune the whole network: two groups for one column."""
    truth = open_dataset("coco2014", coco2014).train
    drawn = drop.partial(truth, 0.2, seed=5)
    formats.write(drawn, tmp_path / "some.csv")
    overrides = Overrides(backbone="tiny", size=32, epochs=1, device="cpu", workers=0)
    rows = ["BCE, not fine-tuned", "partial-BCE"]
    result = reproduce(
        "S2-table4", coco2014, out=tmp_path / "out", rows=rows, labels=tmp_path / "some.csv", overrides=overrides
    )
    assert len(list((tmp_path / "out").glob("*/config.json"))) == 2
    assert seen == dict.fromkeys([("BCE, not fine-tuned", 0), ("partial-BCE", 0)], drawn)
    said = [line for line in result.protocol["10 %"] if "some.csv" in line]
    assert said[0] == (
        f"some.csv: {drawn.known} labels of 50 of 50 training images; "
        "50 images in the file, 0 in other splits, 0 not in the data set"
    )
    assert len(said) == 2  # each once


def test_a_table_on_another_data_set(voc2012: Path, tmp_path: Path, seen: dict[tuple[str, int], LabelTable]) -> None:
    result = reproduce(
        "S4-table2", voc2012, out=tmp_path, rows=["S-BCE"], conditions=["10 %"], dataset="voc2012", overrides=HEAD
    )
    assert "the data set is voc2012 instead of coco2014" in result.differs
    assert "objects marked difficult are absent" in " ".join(result.protocol["10 %"])
    assert not result.on_hidden
    one = next(one for one in result.figures if one.measure == "mAP")
    assert one.published == 61.7
    assert not math.isnan(one.ours)
    assert math.isnan(one.difference)
    assert (one.note, one.published_on) == ("", "coco2014")
    assert 0 < seen["S-BCE", 0].known < 0.2 * 50 * 10


def test_a_table_on_another_data_set_shows_no_difference(voc2012: Path, tmp_path: Path) -> None:
    words = ["reproduce", "S4-table2", voc2012, "--dataset", "voc2012", "--rows", "S-BCE", "--conditions", "10 %"]
    words += ["--backbone", "tiny", "--size", "32", "--epochs", "1", "--device", "cpu", "--workers", "0"]
    result = CliRunner().invoke(app, [str(word) for word in [*words, "--tune", "head", "--out", tmp_path / "out"]])
    assert result.exit_code == 0, result.output
    assert "difference" not in result.stdout
    assert result.stdout.count("published on coco2014, ours on another data set") == 1
    assert "CF1: F1 of CP and CR" in result.stdout
    assert "last epoch" in result.stdout


def test_missing_parts_of_another_data_set(voc2012: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no data set 'voc1999'"):
        reproduce("S4-table2", voc2012, out=tmp_path, dataset="voc1999", overrides=HEAD)
    with pytest.raises(UserError, match="voc2012 has no validation images"):
        reproduce("S1-table1", voc2012, out=tmp_path, rows=["logistic"], dataset="voc2012", overrides=HEAD)
    moved = TABLES["S3-table1"].conditions[0].on_dataset("voc2012")
    assert moved.trials == ({},)  # its batches are CIFAR's
    same = TABLES["S2-table2"].conditions[0].on_dataset("voc2012")
    assert same.dataset_options == {"train": "train", "test": "val", "difficult": "unknown"}


def test_a_table_alone_shows_its_protocol() -> None:
    result = CliRunner().invoke(app, ["reproduce", "S5-table"], env={"COLUMNS": "220"})
    assert "labels that training sees: single-positive" in result.stdout
    assert "VOC: resnet50.tv_in1k, 448 px, all tuned, 10 epochs of adam at a rate of 1e-05" in result.stdout
    assert "including those hidden from training" in result.stdout
    shares = CliRunner().invoke(app, ["reproduce", "S4-table1"], env={"COLUMNS": "220"})
    assert "10, 20, 30, 40, 50, 60, 70, 80 and 90 % of the labels, drawn one by one" in shares.stdout
    assert "exact=" not in shares.stdout


def test_a_format_that_needs_an_option_points_to_import(tmp_path: Path, full: LabelTable) -> None:
    wide = tmp_path / "my list.csv"
    wide.write_text("image," + ",".join(full.classes) + f"\n{full.images[0]}" + ",-1" * len(full.classes) + "\n")
    with pytest.raises(UserError, match=r"halflabel import '.*my list\.csv' OUT\.csv .*--minus-one"):
        read_given_labels(wide, full)
    wide.write_text('a,"' + "x" * 140_000)
    with pytest.raises(LabelError, match="this is not a CSV"):
        read_given_labels(wide, full)
