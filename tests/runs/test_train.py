"""Training a run from labels and image files."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_examples import ALL, CLASSES, HEAD, LINEAR_INIT, TABLE, N, go, paint, weights, write_folder

from halflabel.errors import UserError
from halflabel.fitting.config import Config
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import TrainingJob, train
from halflabel.system.reporter import Reporter


def test_the_files_of_a_run(tmp_path: Path, folder: Path) -> None:
    run = RunFolder(tmp_path / "run")
    evaluation = train(TABLE, folder, HEAD, run)
    assert evaluation is not None
    assert {path.name for path in run.folder.iterdir()} == {
        "bad_images.csv", "best.safetensors", "calibration.json", "checksums.json", "config.yaml",
        "env.json", "images.parquet", "labels.parquet", "last", "log.csv", "log.jsonl", "made.json", "metrics.json",
        "model_card.md", "per_label.csv", "scores.parquet", "thresholds.json",
    }  # fmt: skip
    assert [line["epoch"] for line in run.read_log()] == [1, 2, 3]
    assert run.read_object("metrics.json")["mAP"] == pytest.approx(evaluation.overall["mAP"])
    assert evaluation.overall["mAP"] > 0.9  # bright or not is easy
    assert evaluation.overall["images"] == 6
    assert run.read_labels() == TABLE
    assert Config.from_dict(run.read_config()) == HEAD
    assert run.read_object("thresholds.json").keys() == set(CLASSES)
    assert (run / "bad_images.csv").read_text() == "image,path,reason\n"
    assert not list(run.folder.rglob("*.tmp"))


@pytest.mark.parametrize("config", [HEAD, ALL], ids=["head", "all"])
@pytest.mark.parametrize("kind", ["files", "tensor"])
def test_without_held_out_images_the_last_weights_are_saved(
    tmp_path: Path, folder: Path, config: Config, kind: str
) -> None:
    images = folder if kind == "files" else paint()[0]
    config = dataclasses.replace(config, held_out=0.0)
    assert go(tmp_path / "run", images, config) is None
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert RunFolder(tmp_path / "run").score_kind is None
    assert not RunFolder(tmp_path / "run").split_of(TABLE.images).any()
    (row,) = Model.open(RunFolder.open(tmp_path / "run")).predict([folder / "00.png"], top=3)
    assert len(row.labels) == 3


def test_files_and_tensors_of_the_same_images_train_alike(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(ALL, epochs=1)
    go(tmp_path / "files", folder, config)
    go(tmp_path / "tensor", paint()[0], config)
    assert weights(tmp_path / "files") == weights(tmp_path / "tensor")


def test_runs_in_one_folder_share_the_cache(tmp_path: Path, folder: Path) -> None:
    reports: list[tuple[int, int]] = []
    go(tmp_path / "one", folder, reporter=Reporter(lambda *at: reports.append(at)))
    assert reports[-1] == (N, N)
    reports.clear()
    go(
        tmp_path / "two",
        folder,
        dataclasses.replace(HEAD, method="an"),
        reporter=Reporter(lambda *at: reports.append(at)),
    )
    assert reports == []
    assert (tmp_path / "cache").is_dir()


def test_unreadable_images_are_reported_and_left_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", bad=(4, 5, 6, 7))
    for config in (HEAD, ALL, LINEAR_INIT):
        config = dataclasses.replace(config, max_bad=0.2)
        fitted = go(tmp_path / "run", folder, config)
        rows = (tmp_path / "run" / "bad_images.csv").read_text().splitlines()
        assert sorted(row.partition(",")[0] for row in rows[1:]) == ["04.png", "05.png", "06.png", "07.png"]
        assert fitted.overall["mAP"] > 0.5


@pytest.mark.parametrize("config", [HEAD, ALL], ids=["head", "all"])
def test_too_many_unreadable_images_stop_the_run_with_a_list(tmp_path: Path, config: Config) -> None:
    folder = write_folder(tmp_path / "images", bad=(4, 5, 6, 7))
    with pytest.raises(UserError, match=r"cannot be read, over the limit of 1 %.*bad_images.csv, or raise max_bad"):
        go(tmp_path / "run", folder, config)
    assert "truncated" in (tmp_path / "run" / "bad_images.csv").read_text()


POSITIVES = Table.from_dense(np.where(TABLE.dense() > 0, 1, 0), TABLE.images, CLASSES)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "bec"}, "no method is called 'bec'"),
    "option": ({"options": {"alpha": 1}}, "has no option 'alpha'"),
    "backbone": ({"backbone": "resnet5000"}, "no backbone called"),
    "weights": ({"weights": "nowhere.pth"}, "no weights file"),
    "size": ({"size": 8}, "too small"),
    "regime": ({"table": POSITIVES}, "cannot learn from positives-only labels"),
    "no folder": ({"images": Path("nowhere")}, "is not a folder"),
    "other images": ({"table": Table.from_dense([[1, -1]], ["x.png"], ["a", "b"])}, "none of the 1 images"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_errors_are_raised_before_anything_is_written(
    tmp_path: Path, folder: Path, change: dict[str, Any], message: str
) -> None:
    change = dict(change)
    table, images = change.pop("table", TABLE), change.pop("images", folder)
    with pytest.raises(UserError, match=message):
        go(tmp_path / "run", images, dataclasses.replace(HEAD, **change), table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_an_error_for_training_only(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(HEAD, device="cuda")
    with pytest.raises(UserError, match=r"no CUDA device here.*device=.cpu."):
        go(tmp_path / "run", folder, config)
    assert list(tmp_path.iterdir()) == []
    # A run that was trained on a GPU predicts on the CPU.
    go(tmp_path / "run", folder)
    RunFolder(tmp_path / "run").write_config(config.as_dict())
    assert len(Model.open(RunFolder(tmp_path / "run")).predict([folder])) == N


def test_positives_only_have_assumed_and_estimated_metrics(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(HEAD, method="an")
    go(tmp_path / "run", folder, config, POSITIVES)
    run = RunFolder(tmp_path / "run")
    assert all("assumed_mAP" in line and "mAP" not in line for line in run.read_log())
    assert len(set(run.read_object("thresholds.json").values())) == 1
    assert run.read_calibration().assumption in (run / "model_card.md").read_text()
    assert "estimated precision" in (run / "model_card.md").read_text()


def rows_of(is_model_made: np.ndarray) -> Labels:
    """The labels of TABLE; those where `is_model_made` is true are inverted and have a model as source."""
    image, column, value = TABLE.entries()
    sources = ("person", "model:bce:runs/before")
    labels = np.where(is_model_made, -value, value)
    return Labels.build(TABLE.images, TABLE.classes, image, column, labels, is_model_made.astype(int), None, sources)


def test_model_labels_are_used_for_training_but_not_for_evaluation(tmp_path: Path, folder: Path) -> None:
    is_model_made = np.arange(TABLE.known) % 3 == 0
    lines: list[str] = []
    fitted = go(tmp_path / "run", folder, table=rows_of(is_model_made), reporter=Reporter(message=lines.append))
    messages = [line for line in lines if "model" in line]
    assert messages == [
        f"{is_model_made.sum()} of {TABLE.known} labels were made by a model: they are trained on, but only the others "
        "are used for evaluation"
    ]
    run = RunFolder(tmp_path / "run")
    assert run.read_labels() == rows_of(is_model_made).training
    held = np.flatnonzero(run.split_of(TABLE.images))
    people = TABLE.keep(~is_model_made).subset(held).dense()
    assert 0 < np.count_nonzero(people) < TABLE.subset(held).known
    counts = [(row["present"], row["absent"]) for row in fitted.per_class]
    assert counts == [(int((people[:, c] > 0).sum()), int((people[:, c] < 0).sum())) for c in range(3)]
    left_out = TABLE.subset(held).known - np.count_nonzero(people)
    assert f"{left_out} labels made by a model are not used" in run.read_object("metrics.json")["protocol"]
    # Removing the labels of the model changes no metric.
    predictor = Model.open(run)
    without_model_labels = predictor.evaluate(TABLE.keep(~is_model_made), folder)
    with_model_labels = predictor.evaluate(rows_of(is_model_made), folder)
    assert with_model_labels.overall == without_model_labels.overall
    assert (
        with_model_labels.protocol == f"{without_model_labels.protocol}; {left_out} labels made by a model are not used"
    )
    assert predictor.evaluate(rows_of(np.zeros_like(is_model_made)), folder).overall != without_model_labels.overall
    with pytest.raises(UserError, match="nothing to evaluate on"):
        predictor.evaluate(rows_of(np.ones_like(is_model_made)), folder)
    # A resumed run trains on and evaluates by the same labels.
    before = run.weights.read_bytes()
    train(run.read_rows(), folder, Config.from_dict(run.read_config()), run, resume=True)
    assert run.weights.read_bytes() == before


def test_a_run_on_model_labels_only_has_no_metrics(tmp_path: Path, folder: Path) -> None:
    fitted = go(tmp_path / "run", folder, table=rows_of(np.ones(TABLE.known, bool)))
    assert np.isnan(fitted.overall["mAP"])
    assert all(row["present"] == row["absent"] == 0 for row in fitted.per_class)
    Model.open(RunFolder(tmp_path / "run"))


def test_copies_of_an_image_are_held_out_together(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images")
    for number in range(0, N, 2):
        shutil.copy(images / f"{number:02d}.png", images / f"{number + 1:02d}.png")
    messages: list[str] = []
    go(tmp_path / "run", images, reporter=Reporter(message=messages.append))
    assert "12 images are copies of other images: they are held out together" in messages
    part = RunFolder(tmp_path / "run").split_of(TABLE.images)
    assert (part[::2] == part[1::2]).all()
    assert set(part.tolist()) == {0, 1}


def test_equal_runs_are_equal_files(tmp_path: Path, folder: Path, first_run: Path) -> None:
    for name in ("a", "b"):
        go(tmp_path / name, folder, cache=first_run.parent / "cache")
        assert weights(tmp_path / name) == weights(first_run)


def test_the_log_compares_guesses_with_the_truth(tmp_path: Path, folder: Path) -> None:
    known = Table.from_dense(np.where(np.arange(3 * N).reshape(N, 3) % 2, TABLE.dense(), 0), TABLE.images, CLASSES)
    order = np.random.default_rng(1).permutation(N)
    shuffled = TABLE.subset(order, np.array([2, 0, 1]))
    config = dataclasses.replace(HEAD, method="curriculum", options={"theta": 0.1, "relabel_at": "10,12"}, epochs=12)
    run = RunFolder(tmp_path / "run")
    TrainingJob(Labels.of(known), folder, config, run, truth=shuffled).start()
    first, second = (line for line in run.read_log() if "tp_rate" in line)
    assert first["epoch"] == 9
    assert second["label_proportion"] >= first["label_proportion"] > 0.5
    assert second["accuracy"] > 0.7  # bright or not is easy
    assert run.read_truth() == TABLE
    other, few = RunFolder(tmp_path / "other"), TABLE.subset(classes=np.array([1, 2]))
    job = TrainingJob(Labels.of(known), folder, config, other, truth=few)
    with pytest.raises(UserError, match="hidden labels have no class 'red'"):
        job.start()
    assert not (tmp_path / "other" / "config.yaml").exists()
