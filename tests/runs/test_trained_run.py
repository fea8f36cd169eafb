"""A finished run: evaluation and predictions read back from its folder, and damage to it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from run_examples import CLASSES, HEAD, TABLE, N

from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.new_run import continue_training, resume_training
from halflabel.runs.predict import list_files, stream_predictions
from halflabel.runs.train import train


def test_a_loaded_run_gives_the_metrics_of_training(tmp_path: Path, folder: Path) -> None:
    run = RunFolder(tmp_path / "run")
    evaluation = train(TABLE, folder, HEAD, run)
    assert evaluation is not None
    stored = run.read_scores()
    assert stored is not None
    held_out = [name for name, part in zip(TABLE.images, run.split_of(TABLE.images), strict=True) if part == 1]
    hidden = TABLE.subset(TABLE.images.index(held_out))
    loaded_evaluation = Model.open(RunFolder.open(run.folder)).evaluate(hidden, folder)
    # Training uses features in half precision, prediction in single precision.
    assert loaded_evaluation.overall["mAP"] == pytest.approx(evaluation.overall["mAP"], abs=1e-3)
    assert list(stored.images) == held_out
    assert stored.kind == "held-out"
    predictor = Model.open(run)
    rows = predictor.predict([folder / name for name in held_out], all_scores=True)
    for row, image, scores in zip(rows, held_out, stored.probabilities(run.read_calibration()), strict=True):
        assert Path(row.image).name == image
        by_class = {label["class"]: label["probability"] for label in row.labels}
        assert [by_class[name] for name in CLASSES] == pytest.approx(scores, abs=0.01)


def test_labels_are_matched_to_the_run_by_class_name(folder: Path, first_run: Path) -> None:
    predictor = Model.open(RunFolder(first_run))
    plain = predictor.evaluate(TABLE, folder)
    order = [2, 0, 1]
    labels = np.hstack([TABLE.dense()[:, order], np.ones((N, 1), np.int8)])
    permuted = Table.from_dense(labels, TABLE.images, [*(CLASSES[c] for c in order), "x"])
    assert predictor.evaluate(permuted, folder).per_class == plain.per_class
    fewer = predictor.evaluate(TABLE.subset(classes=[0, 1]), folder).per_class
    assert fewer[:2] == plain.per_class[:2]
    assert (fewer[2]["class"], fewer[2]["present"], fewer[2]["absent"]) == ("blue", 0, 0)
    assert np.isnan(fewer[2]["AP"])
    none = Table.from_dense(TABLE.dense(), TABLE.images, ["x", "y", "z"])
    with pytest.raises(UserError, match=r"other\.csv has none of the model's 3 classes: it has 'x', 'y', 'z'"):
        predictor.evaluate(none, folder, labels_name="other.csv")


def test_damaged_labels_prevent_only_what_needs_them(copied: Path, folder: Path) -> None:
    run = RunFolder(copied)
    before = Model.open(run).predict([folder / "03.png"])
    run.labels.write_bytes(b"damaged")
    predictor = Model.open(RunFolder.open(copied))
    assert predictor.predict([folder / "03.png"]) == before
    predictor.evaluate(TABLE, folder)
    with pytest.raises(UserError, match=r"labels\.parquet is damaged"):
        RunFolder(copied).read_labels()


@pytest.mark.parametrize(("top", "every"), [(0, False), (2, False), (10**30, False), (0, True)])
def test_labels_from_scores_equal_a_loop(first_run: Path, top: int, every: bool) -> None:
    predictor = Model.open(RunFolder(first_run))
    predictor.thresholds = torch.tensor([0.5, 0.25, 0.75])
    for values in ([0.25, 0.25, 0.5], [0.5, 0.125, 0.75], [0.0, 0.0, 0.0]):
        order = sorted(range(3), key=lambda c: -values[c])
        expected = []
        for rank, c in enumerate(order):
            present = values[c] >= float(predictor.thresholds[c])
            if every or present or rank < top:
                expected.append({"class": CLASSES[c], "probability": values[c], "present": present})
        assert predictor.labels(torch.tensor(values), top=top, every=every) == expected


def test_predictions_of_files_folders_and_names_from_a_pipe(tmp_path: Path, folder: Path, first_run: Path) -> None:
    predictor = Model.open(RunFolder(first_run))
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    arguments = [folder / "03.png", Path("-"), tmp_path / "broken.png", folder / "03.png", tmp_path / "missing.png"]
    files = list_files(arguments, [str(folder / "01.png"), "", str(folder / "02.png")])
    predictions = list(stream_predictions(predictor, files, top=1))
    assert [Path(row.image).name for row in predictions] == [
        "03.png", "01.png", "02.png", "broken.png", "03.png", "missing.png",
    ]  # fmt: skip
    assert [bool(row.error) for row in predictions] == [False, False, False, True, False, True]
    assert predictions[5].error == "no such file"
    assert predictions[0].labels == predictions[4].labels
    for row in predictions:
        assert row.error or len(row.labels) >= 1
        chances = [label["probability"] for label in row.labels]
        assert chances == sorted(chances, reverse=True)
        for label in row.labels:
            cut = float(predictor.thresholds[CLASSES.index(label["class"])])
            assert label["present"] == (label["probability"] >= cut)
    assert len(predictor.predict([folder])) == N
    every = predictor.predict([folder / "03.png"], all_scores=True)
    assert len(every[0].labels) == 3
    alone = predictor.predict([tmp_path / "broken.png"])
    assert alone[0].error
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no images"):
        predictor.predict([tmp_path / "empty"])


def other_model(run: RunFolder) -> None:
    config = run.read_config()
    run.write_config({**config, "backbone": "efficientnet-lite0"})


DAMAGE: dict[str, tuple[Callable[[RunFolder], Any], str]] = {
    "unfinished": (lambda run: run.weights.unlink(), "has no weights yet.*train --resume"),
    "cut off": (lambda run: run.weights.write_bytes(run.weights.read_bytes()[:100]), "is damaged"),
    "a flipped bit": (lambda run: flip(run.weights), "checksum"),
    "other thresholds": (lambda run: run.write_text("thresholds.json", '{"red": 1}'), "checksum"),
    "another calibration": (lambda run: run.write_text("calibration.json", '{"slope": 2}'), "checksum"),
    "no classes": (lambda run: save_plain(run.weights), "does not name its classes"),
    "another model": (other_model, "another model"),
    "config of another version": (lambda run: run.write_config({"colour": "red"}), "does not fit this version"),
    "config with too much": (lambda run: run.write_config({**run.read_config(), "x": 1}), "does not fit this version"),
    "calibration": (lambda run: run.write_text("thresholds.json", "{"), "damaged"),
}


def save_plain(path: Path) -> None:
    from safetensors.torch import save_file

    save_file(build_backbone("tiny").state_dict(), path)
    path.with_name("checksums.json").unlink()


def test_a_run_needs_no_optimizer_to_predict(copied: Path, folder: Path) -> None:
    """Only training needs the file that registers an optimizer of one's own."""
    run = RunFolder(copied)
    config = run.read_config()
    run.write_config({**config, "optimizer": "mine"})
    assert Model.open(RunFolder.open(copied)).predict([folder / "03.png"])[0].labels
    for train_again in (lambda: resume_training(run), lambda: continue_training(run, RunFolder(copied / "next"))):
        with pytest.raises(UserError, match="HALFLABEL_PLUGINS"):
            train_again()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize(("harm", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_to_a_run_is_explained(copied: Path, harm: Callable[[RunFolder], Any], message: str) -> None:
    harm(RunFolder(copied))
    with pytest.raises(UserError, match=message):
        Model.open(RunFolder.open(copied))


def test_own_images_are_evaluated_by_models_that_had_not_seen_them_or_left_out(tmp_path: Path, folder: Path) -> None:
    """Evaluating on the labels that trained a run gives its own numbers, not those of a model that knows them."""
    linear = dataclasses.replace(HEAD, method="bce", fit="linear")
    trained = train(TABLE, folder, linear, RunFolder(tmp_path / "linear"))
    assert trained is not None
    model = Model.open(RunFolder(tmp_path / "linear"))
    shutil.copytree(folder, tmp_path / "renamed")
    for path in list((tmp_path / "renamed").iterdir()):
        path.rename(path.with_name(f"copy-{path.name}"))
    renamed = Table.from_dense(TABLE.dense(), [f"copy-{name}" for name in TABLE.images], CLASSES)
    for table, place in ((TABLE, folder), (renamed, tmp_path / "renamed")):
        own = model.evaluate(table, place)
        assert own.per_class == trained.per_class
        assert own.images.startswith(f"0 new images, {N} that the run was trained on: {N} by scores of models")
    for number, path in enumerate(sorted((tmp_path / "renamed").iterdir())):
        Image.effect_noise((40, 36), number).convert("RGB").save(path)
    new = model.evaluate(renamed, tmp_path / "renamed")
    assert new.images == f"{N} new images, 0 that the run was trained on"

    batches = RunFolder(tmp_path / "batches")
    train(TABLE, folder, HEAD, batches)
    held_out = Model.open(batches).evaluate(TABLE, folder)
    assert held_out.overall["images"] == N / 4
    everything = RunFolder(tmp_path / "all")
    train(TABLE, folder, dataclasses.replace(HEAD, held_out=0.0), everything)
    with pytest.raises(UserError, match="trained on all of these images") as error:
        Model.open(everything).evaluate(TABLE, folder)
    assert "halflabel report" in error.value.fix
