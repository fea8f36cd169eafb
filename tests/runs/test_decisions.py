"""A run from positives alone decides, and the exports decide like it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.data.datasets.digits import CLASSES, scenes, write_folder
from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.metrics.calibration import Platt
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor, open_model, predict_files
from halflabel.runs.train import train
from halflabel.training.config import Config, Settings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on 80 scenes with one positive each."""
    folder = tmp_path_factory.mktemp("positives")
    write_folder(folder, 80, size=32)
    names = sorted(path.name for path in (folder / "images").iterdir())
    table = drop.single_positive(LabelTable.from_dense(scenes(80, size=32).labels, names, CLASSES))
    config = Config(
        method="n-ls", backbone="tiny", size=32, solver="lbfgs", l2_strength=1e-3, settings=Settings(device="cpu")
    )
    run = RunFolder(folder / "runs" / "first")
    train(table, folder / "images", config, run)
    return run


@pytest.fixture
def files(run: RunFolder) -> list[Path]:
    return sorted((run.folder.parent.parent / "images").iterdir())[:6]


def test_the_run_states_what_it_assumes_and_what_it_estimates(run: RunFolder) -> None:
    calibration, metrics = run.read_calibration(), run.read_metrics()
    assert "at random" in calibration.assumption
    assert calibration.assumption in metrics["protocol"]
    assert (
        0 < metrics["estimated_precision_low"] <= metrics["estimated_precision"] <= metrics["estimated_precision_high"]
    )
    assert 0 < metrics["OR"] <= 1
    assert len(set(run.read_thresholds().values())) == 1


@pytest.mark.parametrize("stated", [{}, {"threshold": 0.9}, {"positives_per_image": 4.0}])
def test_exports_decide_like_the_run(
    run: RunFolder, files: list[Path], tmp_path: Path, stated: dict[str, float]
) -> None:
    predictor = Predictor.from_run(run).deciding(**stated)
    export_onnx(predictor, tmp_path / "m.onnx")
    export_hub(run, tmp_path / "hub", **stated)
    expected = predict_files(predictor, files, all_scores=True)
    for path in (tmp_path / "m.onnx", tmp_path / "hub"):
        opened = open_model(path)
        assert opened.platt.assumption == predictor.platt.assumption
        for ours, theirs in zip(expected, predict_files(opened, files, all_scores=True), strict=True):
            present = [{label["class"] for label in each.labels if label["present"]} for each in (ours, theirs)]
            assert present[0] == present[1]


def test_curves_and_thresholds_per_class_travel_with_the_exports(
    run: RunFolder, files: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    copy = RunFolder.open(tmp_path / "run")
    ramp = np.linspace(0.5, 2, len(CLASSES)).tolist()
    platt = Platt(1.5, 1.0, 9, "", 0.5, tuple(ramp), tuple(ramp[::-1]))
    copy.write_calibration(platt, dict(zip(CLASSES, (np.array(ramp) / 3).tolist(), strict=True)))
    predictor = Predictor.from_run(copy)
    assert predictor.platt == platt
    export_onnx(predictor, tmp_path / "m.onnx")
    export_hub(copy, tmp_path / "hub")
    expected = predict_files(predictor, files, all_scores=True)
    assert len({label["present"] for label in expected[0].labels}) == 2
    for path in (tmp_path / "m.onnx", tmp_path / "hub"):
        opened = open_model(path)
        assert opened.platt == platt
        for ours, theirs in zip(expected, predict_files(opened, files, all_scores=True), strict=True):
            assert [item["class"] for item in ours.labels] == [item["class"] for item in theirs.labels]
            assert [item["present"] for item in ours.labels] == [item["present"] for item in theirs.labels]
            probabilities = [[item["probability"] for item in each.labels] for each in (ours, theirs)]
            assert np.allclose(*probabilities, atol=1e-4)


def test_a_calibration_of_other_classes_is_refused(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    copy = RunFolder.open(tmp_path / "run")
    copy.write_json("calibration.json", Platt(class_slope=(1.0, 2.0), class_offset=(0.0, 0.0))._asdict())
    with pytest.raises(UserError, match="damaged"):
        copy.read_calibration()


def test_a_stated_number_of_positives_holds_on_the_training_images(run: RunFolder, files: list[Path]) -> None:
    logits = run.read_out_of_fold(run.read_labels().images)
    assert logits is not None
    for number in (1.2, 4.0):
        predictor = Predictor.from_run(run).deciding(positives_per_image=number)
        scores = predictor.platt.scores(torch.from_numpy(logits[0]))
        assert float(scores.sum(1).mean()) == pytest.approx(number, rel=1e-3)
        assert f"{number:g}" in predictor.platt.assumption


def test_what_cannot_work_is_refused(run: RunFolder, tmp_path: Path) -> None:
    predictor = Predictor.from_run(run)
    for wrong in ({"threshold": 1.5}, {"positives_per_image": 0.0}, {"positives_per_image": 99.0}):
        with pytest.raises(UserError):
            predictor.deciding(**wrong)
    export_hub(run, tmp_path / "hub")
    with pytest.raises(UserError, match="out-of-fold"):
        open_model(tmp_path / "hub").deciding(positives_per_image=2.0)


def test_the_command_takes_a_threshold(run: RunFolder, files: list[Path]) -> None:
    def call(*words: str) -> list[int]:
        result = CliRunner().invoke(
            app, ["predict", str(run.folder), *map(str, files), "--all", "--format", "json", *words]
        )
        assert result.exit_code == 0, result.output
        return [sum(label["present"] for label in image["labels"]) for image in json.loads(result.stdout)]

    assert call("--threshold", "0") == [len(CLASSES)] * len(files)
    assert sum(call("--positives-per-image", "1")) <= sum(call("--positives-per-image", "6"))


def test_known_labels_are_never_mixed_with_estimates(run: RunFolder) -> None:
    """With all labels of other images known, everything is measured and nothing estimated."""
    folder = run.folder.parent.parent / "images"
    names = sorted(path.name for path in folder.iterdir())
    truth = LabelTable.from_dense(scenes(80, size=32).labels, names, CLASSES)
    evaluation = Predictor.from_run(run).evaluate(truth, folder)
    assert "estimated_precision" not in evaluation.overall
    assert np.isfinite(evaluation.overall["mAP"])
