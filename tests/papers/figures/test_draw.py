"""The command that draws the papers' figures: on tiny runs, every figure or the reason why there is none."""

from __future__ import annotations

import csv
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from digit_scenes import write_folder
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.fitting.config import Config
from halflabel.labels import drop, formats
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.papers.figures import score_densities
from halflabel.report.run_facts import read_run_facts
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import TrainingJob

CLASSES = ["a$^$b", "one_$", *(f"digit {i}" for i in range(2, 10))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits")
    write_folder(path, 60, size=32)
    return path


@pytest.fixture(scope="module")
def truth(folder: Path) -> Table:
    table = formats.read(folder / "train.csv", Policy(zero="absent")).table()
    return Table.from_dense(table.dense(), list(table.images), CLASSES)


def make(folder: Path, name: str, truth: Table, *, hidden: bool = True, **more: Any) -> RunFolder:
    """A run of two epochs on labels of which a third is hidden."""
    how = {"epochs": 2, "batch_size": 16, "lr": 0.01, "device": "cpu"}
    config = Config(**{"backbone": "tiny", "size": 32, "held_out": 0.4, **how, **more})
    run = RunFolder(folder / name)
    known = drop.partial(truth, 0.66, seed=0)
    TrainingJob(Labels.of(known), folder / "images", config, run, truth if hidden else None).start()
    return run


@pytest.fixture(scope="module")
def imcl(folder: Path, truth: Table) -> RunFolder:
    """A run that can have every figure; read only."""
    return make(folder, "imcl", truth, method="imcl", options={"logistic_share": 0.5, "graph_rate": 5.0})


@pytest.fixture(scope="module")
def bce(folder: Path, truth: Table) -> RunFolder:
    """A run of another size whose views are cropped; no truth, nothing held out; read only."""
    return make(folder, "bce", truth, method="bce", hidden=False, held_out=0.0, size=48, resize="crop", tune="all")


def call(*words: Any, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["figures", *map(str, words)])
    assert result.exit_code == code, (result.output, result.exception)
    return " ".join((result.stdout + result.stderr).split())


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_pictures(out: Path) -> set[str]:
    """Check that each file is a picture with a JSON or CSV file beside it; return the names."""
    names = set()
    for path in out.glob("*.png"):
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", head[16:24])) > 200
        assert path.with_suffix(".json").exists() or path.with_suffix(".csv").exists()
        names.add(path.stem)
    return names


def test_every_figure_of_a_complete_run(imcl: RunFolder, folder: Path, truth: Table, tmp_path: Path) -> None:
    out = tmp_path / "new" / "figures"
    output = call(imcl.folder, folder / "images", "--out", out)
    names = {"densities", "label_neighbours", "image_neighbours"}
    assert check_pictures(out) == names
    assert "skipped" not in output
    for paper in ("Zhou 2022", "Huynh 2020"):
        assert paper in output
    for path in out.iterdir():
        assert str(folder).encode() not in path.read_bytes()

    measured = read_run_facts(imcl).held_out
    assert measured is not None
    densities = json.loads((out / "densities.json").read_text(encoding="utf-8"))
    expected = score_densities(measured.scores, truth.rows(measured.images))
    assert densities["wasserstein"] == pytest.approx(expected.wasserstein)
    assert list(densities["per_class"]) == CLASSES
    assert "Zhou 2022" in densities["figure"]
    assert densities["on"].endswith("by the hidden truth")

    training = read_run_facts(imcl).training
    edges = rows(out / "label_neighbours.csv")
    assert any(float(edge["weight"]) != float(edge["weight at the start"]) for edge in edges)
    pairs = rows(out / "image_neighbours.csv")
    assert {pair["image"] for pair in pairs} <= {truth.images[int(i)] for i in training}
    assert all(pair["image"] != pair["neighbour"] for pair in pairs)
    assert all(float(pair["c"]) >= 0 and float(pair["c̄"]) >= 0 for pair in pairs)


def test_skipped_figures_are_reported_with_the_reason(
    bce: RunFolder, imcl: RunFolder, folder: Path, tmp_path: Path
) -> None:
    output = call(bce.folder, "--out", tmp_path / "a")
    assert "densities: skipped; no images were held out" in output
    assert "image neighbours: skipped; bce learns no similarities: imcl does" in output
    assert not (tmp_path / "a").exists()
    output = call(imcl.folder, "--out", tmp_path / "b")
    assert "image neighbours: skipped; it needs the photos" in output
    assert check_pictures(tmp_path / "b") == {"densities", "label_neighbours"}
    call(imcl.folder, folder / "images", "--out", tmp_path / "b")
    assert rows(tmp_path / "b" / "image_neighbours.csv")
    moved = RunFolder(shutil.copytree(imcl.folder, tmp_path / "run"))
    shutil.rmtree(moved.checkpoints)
    output = call(moved.folder, folder / "images", "--out", tmp_path / "c")
    assert output.count("skipped; what the method has learned is in the run's checkpoints") == 2
    assert check_pictures(tmp_path / "c") == {"densities"}


def test_bad_arguments_are_refused_with_a_fix(imcl: RunFolder, folder: Path, tmp_path: Path) -> None:
    photos, out = folder / "images", ("--out", tmp_path / "out")
    for words, message, fix in (
        ((imcl.folder, tmp_path / "nowhere", *out), "is not a folder", "name the folder with the images"),
        ((tmp_path, *out), "is not a run", "name the folder of a run"),
        ((imcl.folder, "--out", imcl.folder / "config.yaml"), "is a file", "name a folder with --out"),
    ):
        output = call(*words, code=2)
        assert message in output
        assert fix in output
    assert "--out" in call(imcl.folder, photos, code=2)
    assert not (tmp_path / "out").exists()
