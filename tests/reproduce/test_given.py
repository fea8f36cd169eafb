"""Published training labels in place of drawn ones, and tables on other data sets than the paper's."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from halflabel import drop
from halflabel.cli import app
from halflabel.compare.bench import Bench, Trained
from halflabel.compare.grid import Task
from halflabel.datasets import open_dataset
from halflabel.errors import LabelError, UserError
from halflabel.labels.table import LabelTable
from halflabel.reproduce.given import Given, read_given
from halflabel.reproduce.runner import reproduce
from halflabel.reproduce.setup import Changes
from halflabel.reproduce.tables import TABLES

HEAD = Changes(backbone="tiny", size=32, epochs=1, tune="head", device="cpu", workers=0)


@pytest.fixture
def full(voc2012: Path) -> LabelTable:
    return open_dataset("voc2012", voc2012, difficult="absent").train


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], LabelTable]:
    """What each run knew of the images that are not for the test, by row and seed."""
    found: dict[tuple[str, int], LabelTable] = {}
    original = Bench.train

    def train(self: Bench, task: Task, **more: object) -> Trained:
        found[task.contender.name, task.seed] = self.divide(task.hiding, task.seed).known
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
    assert read_given(path, full) == drawn


def test_other_forms_of_label_files_are_read_too(full: LabelTable, tmp_path: Path) -> None:
    from halflabel.labels import formats

    drawn = drop.single_positive(full, seed=7)
    formats.write(drawn, tmp_path / "long.csv")
    assert read_given(tmp_path / "long.csv", full) == drawn
    formats.write(drawn, tmp_path / "published", format="single-positive")
    assert read_given(tmp_path / "published", full) == drawn


def test_the_one_positive_comes_with_all_negatives_where_the_protocol_says_so(full: LabelTable) -> None:
    drawn = drop.single_positive(full, seed=7)
    given = Given("1-positive+negatives", (), drawn)
    assert given.apply(full, 0) == given.apply(full, 1) == drop.one_positive_all_negatives(full, seed=7)
    some = np.arange(3, 11)
    assert Given("single-positive", (), drawn).apply(full.subset(some), 0) == drawn.subset(some)


def test_what_is_no_such_list_is_refused(full: LabelTable, tmp_path: Path) -> None:
    drawn = drop.single_positive(full, seed=7)
    path = write_list(drawn, tmp_path / "list.csv")
    lines = path.read_text().splitlines()
    classes = len(full.classes)

    def shifted(line: str) -> str:
        name, kind = line.split(",")
        return f"{name},{(int(kind) + 1) % classes}"

    for text, says in (
        ("\n".join([lines[0], *map(shifted, lines[1:])]), "labels are not what the data set says"),
        ("id,class\n2008_000001,zebra\n", "has no class 'zebra'"),
        (f"id,class\n2008_000001,{classes}\n", f"has no class '{classes}'"),
        ("id,class\nanother,0\n", "not one of its images"),
    ):
        path.write_text(text)
        with pytest.raises(LabelError, match=says):
            read_given(path, full)
    with pytest.raises(LabelError, match="no such file"):
        read_given(tmp_path / "nothing.csv", full)


def test_a_published_list_at_the_prompt(
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
    assert "those of list.csv with every seed" in text
    assert "Epochs chosen on hidden truth (VOC), as the paper does" in text
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
    with pytest.raises(UserError, match="holds the labels of one run"):
        reproduce("S4-table2", coco2014, out=tmp_path / "a", rows=["S-BCE"], labels=path, changes=HEAD)
    with pytest.raises(UserError, match="holds the labels of one run"):
        reproduce("S4-table1", coco2014, out=tmp_path, rows=["CSL"], conditions=["COCO"], labels=path, changes=HEAD)


def test_a_table_on_another_data_set(voc2012: Path, tmp_path: Path, seen: dict[tuple[str, int], LabelTable]) -> None:
    found = reproduce(
        "S4-table2", voc2012, out=tmp_path, rows=["S-BCE"], conditions=["10 %"], dataset="voc2012", changes=HEAD
    )
    assert "the data set is voc2012 instead of coco2014" in found.differs
    assert "objects marked difficult are absent" in " ".join(found.protocol["10 %"])
    assert not found.on_hidden
    one = next(one for one in found.figures if one.measure == "mAP")
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


def test_what_another_data_set_lacks(voc2012: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data set is called 'voc1999'"):
        reproduce("S4-table2", voc2012, out=tmp_path, dataset="voc1999", changes=HEAD)
    with pytest.raises(UserError, match="voc2012 has no validation images"):
        reproduce("S1-table1", voc2012, out=tmp_path, rows=["logistic"], dataset="voc2012", changes=HEAD)
    moved = TABLES["S3-table1"].conditions[0].on("voc2012")
    assert moved.trials == ({},)  # its batches are CIFAR's
    same = TABLES["S2-table2"].conditions[0].on("voc2012")
    assert same.options == {"train": "train", "test": "val", "difficult": "unknown"}


def test_a_table_alone_shows_its_protocol() -> None:
    result = CliRunner().invoke(app, ["reproduce", "S5-table"], env={"COLUMNS": "220"})
    assert "labels that training sees: single-positive" in result.stdout
    assert "VOC: resnet50.tv_in1k, 448 px, all tuned, 10 epochs of adam at a rate of 1e-05" in result.stdout
    assert "also those hidden from training" in result.stdout
