"""A run from positives alone decides, and the exports decide like it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digit_scenes import CLASSES, scenes, write_folder
from scipy.sparse import csr_array
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import fit_decisions
from halflabel.fitting.config import Config
from halflabel.labels import drop
from halflabel.labels.answers import Answer, AnswerStore
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.questions.next import next_questions
from halflabel.runs.export.hub import export_hub
from halflabel.runs.export.onnx import export_onnx
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.new_run import continue_training
from halflabel.runs.train import train
from halflabel.system.reporter import Reporter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on 80 scenes with one positive each."""
    folder = tmp_path_factory.mktemp("positives")
    write_folder(folder, 80, size=32)
    names = sorted(path.name for path in (folder / "images").iterdir())
    table = drop.single_positive(Table.from_dense(scenes(80, size=32).labels, names, CLASSES))
    config = Config(method="n-ls", backbone="tiny", size=32, fit="linear", l2_strength=1e-3, device="cpu")
    run = RunFolder(folder / "runs" / "first")
    train(table, folder / "images", config, run)
    return run


@pytest.fixture
def files(run: RunFolder) -> list[Path]:
    return sorted((run.folder.parent.parent / "images").iterdir())[:6]


def test_the_run_states_its_assumption_and_estimates(run: RunFolder) -> None:
    calibration, metrics = run.read_calibration(), run.read_object("metrics.json")
    assert "at random" in calibration.assumption
    assert calibration.assumption in metrics["protocol"]
    assert (
        0 < metrics["estimated_precision_low"] <= metrics["estimated_precision"] <= metrics["estimated_precision_high"]
    )
    assert 0 < metrics["OR"] <= 1
    assert len(set(run.read_thresholds().values())) == 1


@pytest.mark.parametrize("stated", [{}, {"threshold": 0.9}, {"threshold": "recall=0.5"}, {"positives_per_image": 4.0}])
def test_exports_decide_like_the_run(run: RunFolder, files: list[Path], tmp_path: Path, stated: dict[str, Any]) -> None:
    predictor = Model.open(run).deciding(**stated)
    export_onnx(predictor, tmp_path / "m.onnx")
    export_hub(run, tmp_path / "hub", **stated)
    expected = predictor.predict(files, all_scores=True)
    for path in (tmp_path / "m.onnx", tmp_path / "hub"):
        opened = Model.open(path)
        assert opened.calibration.assumption == predictor.calibration.assumption
        for expected_image, actual_image in zip(expected, opened.predict(files, all_scores=True), strict=True):
            present = [
                {label["class"] for label in image.labels if label["present"]}
                for image in (expected_image, actual_image)
            ]
            assert present[0] == present[1]


def test_exports_keep_curves_and_thresholds_per_class(run: RunFolder, files: list[Path], tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    copy = RunFolder.open(tmp_path / "run")
    ramp = np.linspace(0.5, 2, len(CLASSES)).tolist()
    calibration = Calibration(1.5, 1.0, 9, "", 0.5, tuple(ramp), tuple(ramp[::-1]))
    copy.write_calibration(calibration, dict(zip(CLASSES, (np.array(ramp) / 3).tolist(), strict=True)))
    predictor = Model.open(copy)
    assert predictor.calibration == calibration
    export_onnx(predictor, tmp_path / "m.onnx")
    export_hub(copy, tmp_path / "hub")
    expected = predictor.predict(files, all_scores=True)
    assert len({label["present"] for label in expected[0].labels}) == 2
    for path in (tmp_path / "m.onnx", tmp_path / "hub"):
        opened = Model.open(path)
        assert opened.calibration == calibration
        for expected_image, actual_image in zip(expected, opened.predict(files, all_scores=True), strict=True):
            assert [item["class"] for item in expected_image.labels] == [item["class"] for item in actual_image.labels]
            assert [item["present"] for item in expected_image.labels] == [
                item["present"] for item in actual_image.labels
            ]
            probabilities = [[item["probability"] for item in image.labels] for image in (expected_image, actual_image)]
            assert np.allclose(*probabilities, atol=1e-4)


def test_a_stated_number_of_positives_holds_on_the_training_images(run: RunFolder, files: list[Path]) -> None:
    stored = run.read_scores()
    assert stored is not None
    for number in (1.2, 4.0):
        predictor = Model.open(run).deciding(positives_per_image=number)
        scores = predictor.calibration.scores(torch.from_numpy(stored.logits))
        assert float(scores.sum(1).mean()) == pytest.approx(number, rel=1e-3)
        assert f"{number:g}" in predictor.calibration.assumption


def test_bad_decision_options_are_refused(run: RunFolder, tmp_path: Path) -> None:
    predictor = Model.open(run)
    for options in (
        {"threshold": 1.5},
        {"threshold": "precision=2"},
        {"threshold": "f1=0.5"},
        {"threshold": "often"},
        {"positives_per_image": 0.0},
        {"positives_per_image": 99.0},
    ):
        with pytest.raises(UserError):
            predictor.deciding(**options)
    export_hub(run, tmp_path / "hub")
    with pytest.raises(UserError, match="out-of-fold"):
        Model.open(tmp_path / "hub").deciding(positives_per_image=2.0)


def test_the_command_takes_a_threshold(run: RunFolder, files: list[Path]) -> None:
    def call(*words: str) -> list[int]:
        result = CliRunner().invoke(
            app, ["predict", str(run.folder), *map(str, files), "--all", "--format", "json", *words]
        )
        assert result.exit_code == 0, result.output
        return [sum(label["present"] for label in image["labels"]) for image in json.loads(result.stdout)]

    assert call("--threshold", "0") == [len(CLASSES)] * len(files)
    assert sum(call("--threshold", "recall=0.2")) <= sum(call("--threshold", "recall=0.9"))
    assert sum(call("--positives-per-image", "1")) <= sum(call("--positives-per-image", "6"))


def test_decisions_after_next_review_and_continue(run: RunFolder, tmp_path: Path) -> None:
    """next, review, train --continue: 30 true answers to chosen questions, 6 to random ones."""
    folder = run.folder.parent.parent / "images"
    table = run.read_labels()
    truth = scenes(80, size=32).labels
    next_batch = next_questions(run, folder, 36, control=1 / 6)
    store = AnswerStore(tmp_path / "answers.sqlite")
    store.add(
        [
            Answer(f"{k}", table.images[q.image], table.classes[q.column], int(truth[q[:2]]), weight=q.weight)
            for k, q in enumerate(next_batch.questions)
        ],
        "somebody",
    )
    answers = store.label_rows(table.images, table.classes)
    store.close()
    messages: list[str] = []
    job = continue_training(run, RunFolder(tmp_path / "second"), answers=answers, images=folder)
    job.start(Reporter(message=messages.append))
    second = RunFolder.open(tmp_path / "second")
    calibration = second.read_calibration()
    assert "6 control answers" in calibration.assumption
    assert any("chosen" in message for message in messages)
    rows = second.read_rows()
    assert rows.evaluation == table
    assert rows.control is not None
    assert rows.control.nnz == 6


def test_chosen_answers_do_not_change_the_labels_per_image() -> None:
    """60 answers, most to the likeliest unknown entries: labels per image stay within 30 % of the truth."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-2, 2.5, size=(1500, 8))
    present = generator.random(logits.shape) < 1 / (1 + np.exp(-2 * logits))
    logits, present = logits[present.any(1)], present[present.any(1)]
    truth = Table.from_dense(np.where(present, 1, -1))
    single = drop.single_positive(truth)
    unknown = np.argwhere(single.dense() == 0)
    order = np.argsort(-logits[tuple(unknown.T)])
    chosen, control = unknown[order[:50]], unknown[generator.choice(len(unknown), 10, replace=False)]
    rows = Labels.from_table(single)
    for entries, weight in ((chosen, 0), (control, len(unknown) / len(control))):
        value, weights = np.where(present[tuple(entries.T)], 1, -1), np.full(len(entries), weight)
        rows = rows.append(Labels.build(truth.images, truth.classes, *entries.T, value, "person:ann", weight=weights))
    assert rows.control is not None
    x = torch.from_numpy(logits)
    calibration, thresholds = fit_decisions(x, torch.from_numpy(rows.evaluation.dense()), control=rows.control)
    labels_per_image = float((calibration.scores(x) >= thresholds).sum(1).double().mean())
    assert labels_per_image == pytest.approx(present.sum(1).mean(), rel=0.3)


def test_control_answers_correct_the_probabilities() -> None:
    """Labels that were given twice as often where the model is sure: the assumption fails, and 300 answers show it."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-2, 3, size=(4000, 5))
    p = 1 / (1 + np.exp(-logits))
    present = generator.random(p.shape) < p
    labelled = present & (generator.random(p.shape) < np.where(logits > 2, 0.8, 0.2))
    known = torch.from_numpy(labelled.astype(np.int8))
    answers = np.zeros(p.shape, np.int8)
    row, column = np.nonzero(~labelled & (p > 0.05))
    drawn = generator.choice(len(row), 300, replace=False)
    answers[row[drawn], column[drawn]] = np.where(present[row[drawn], column[drawn]], 1, -1)
    x = torch.from_numpy(logits)
    before = fit_decisions(x, known).calibration
    after = fit_decisions(x, known, control=csr_array(answers)).calibration
    errors = [float(np.abs(calibration.scores(x).numpy() - p).mean()) for calibration in (before, after)]
    assert errors[1] < 0.8 * errors[0]
    assert "than" in after.assumption.split(";")[1]
