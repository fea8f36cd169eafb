"""The names that `halflabel` exports for training in one call: train, continue_training, next_questions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import halflabel
from halflabel.errors import UserError
from halflabel.labels.answers import Answer, AnswerStore

CLASSES = ["red", "green", "blue"]
TINY = {"backbone": "tiny", "size": 32, "device": "cpu"}


@pytest.fixture(scope="module")
def table() -> halflabel.Table:
    labels = np.random.default_rng(0).choice([-1, 0, 1], size=(30, 3))
    labels[:3] = 2 * np.eye(3, dtype=int) - 1
    return halflabel.Table.from_dense(labels, [f"{number:02d}.png" for number in range(30)], CLASSES)


@pytest.fixture(scope="module")
def pictures(table: halflabel.Table) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, 40, (30, 3, 34, 32))
    return np.clip(128 + 80.0 * table.dense()[:, :, None, None] + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(pictures: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number, picture in enumerate(pictures):
        Image.fromarray(picture.transpose(1, 2, 0)).save(folder / f"{number:02d}.png")
    return folder


def test_train_from_a_file_then_ask_and_continue(table: halflabel.Table, folder: Path, tmp_path: Path) -> None:
    halflabel.write_labels(table, tmp_path / "labels.csv")
    how: Any = {"fit": "batches", "epochs": 3, "lr": 0.01}
    run = halflabel.train(tmp_path / "labels.csv", str(folder), tmp_path / "first", **TINY, **how)
    assert run.folder == tmp_path / "first"
    assert list(run.model.classes) == CLASSES
    assert run.model.config.epochs == 3
    assert run.model.config.fit == "batches"
    assert run.metrics["images"] > 0
    assert halflabel.evaluate(run.folder, table, folder).overall["images"] == run.metrics["images"]

    asked = halflabel.next_questions(run.folder, str(folder), 4)
    assert len(asked.questions) == 4
    answers = halflabel.read_labels(_answer_file(tmp_path, "00.png", "red", -1)).rows
    second = halflabel.continue_training(run.folder, tmp_path / "second", answers=answers)
    assert second.model.config.begin_from == str(run.folder)
    with closing(AnswerStore(run.folder / "answers.sqlite")) as store:
        store.add([Answer("k1", "01.png", "red", -1)], "somebody")
    third = halflabel.read_labels(halflabel.continue_training(run.folder, tmp_path / "third").folder / "labels.parquet")
    assert third.table().rows([list(third.rows.images).index("01.png")])[0, 0] == -1
    row = list(table.images).index("00.png")
    labels = halflabel.read_labels(second.folder / "labels.parquet").table()
    assert labels.rows([list(labels.images).index("00.png")])[0, list(labels.classes).index("red")] == -1
    assert table.rows([row])[0, 0] == 1


def _answer_file(folder: Path, image: str, name: str, value: int) -> Path:
    path = folder / "answers.csv"
    path.write_text(f"image,class,value,source,score\n{image},{name},{value},person,\n")
    return path


def test_train_on_arrays_by_the_solver(table: halflabel.Table, pictures: np.ndarray, tmp_path: Path) -> None:
    run = halflabel.train(table, torch.from_numpy(pictures), tmp_path / "run", "bn-bce", **TINY)
    assert run.model.config.method == "bn-bce"
    assert run.model.config.fit == "auto"
    assert run.metrics["images"] == 30  # out-of-fold scores of every image
    with pytest.raises(UserError, match="already holds a run"):
        halflabel.train(table, torch.from_numpy(pictures), tmp_path / "run", "bn-bce", **TINY)


def test_options_of_the_method_are_passed_on_and_unknown_ones_refused(
    table: halflabel.Table, folder: Path, tmp_path: Path
) -> None:
    run = halflabel.train(table, folder, tmp_path / "run", "em", **TINY, alpha=0.1, fit="batches", epochs=1)
    assert run.model.config.options == {"alpha": 0.1}
    with pytest.raises(UserError, match="option 'alhpa'") as error:
        halflabel.train(table, folder, tmp_path / "other", "em", **TINY, alhpa=0.1)
    assert "alpha" in error.value.fix
    with pytest.raises(UserError, match="no method is called"):
        halflabel.train(table, folder, tmp_path / "other", "emm")
    assert not (tmp_path / "other").exists()


def test_a_run_does_what_the_commands_do(
    table: halflabel.Table, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths as texts or lists of them, results that print in a few lines, and no word of the shell."""
    monkeypatch.chdir(tmp_path)
    frame = table.dense()
    lines = [f"{name},2024-01-01,{','.join(map(str, row))}" for name, row in zip(table.images, frame, strict=True)]
    Path("labels.csv").write_text("\n".join(["image,date,red,green,blue", *lines]))
    values: Any = {"ignore": "date", "zero": "unknown", "minus_one": "absent"}
    job = halflabel.train("labels.csv", str(folder), method="bn-bce", **TINY, **values)
    assert job.folder == Path("runs/bn-bce")
    again = halflabel.Run("runs/bn-bce")
    for each in (job, again, job.model):
        assert len(repr(each)) < 400
    assert "mAP" in repr(again)
    assert "<table>" in again._repr_html_()

    one, several = job.predict(str(folder / "01.png")), job.predict([folder / "01.png", folder])
    assert [label["class"] for label in one[0].labels] == [label["class"] for label in several[0].labels]
    assert len(several) == 31
    assert "0." in repr(one)
    own = job.evaluate("labels.csv", folder, **values)
    assert own.overall["mAP"] == pytest.approx(job.metrics["mAP"])
    assert halflabel.evaluate(job, "labels.csv", folder, **values).per_class == own.per_class
    assert repr(own).count("mAP") == 1

    asked = again.questions(5, "questions.csv")
    assert len(asked) == len(Path("questions.csv").read_text().splitlines()) - 1 == 5
    assert {"image", "class", "probability"} <= asked[0].keys()
    assert (again.folder / "asked.csv").exists()
    filled = again.fill(precision=0.6, assume_random=True)
    assert filled.file.exists()
    assert filled.present + filled.absent + filled.unknown == int((frame == 0).sum())
    assert again.report().read_text().startswith("<!DOCTYPE html>")


def test_errors_of_the_api_speak_python(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tags.csv").write_text("image,tags\n00.png,red\n01.png,green\n")
    with pytest.raises(UserError) as error:
        halflabel.train(str(tmp_path / "tags.csv"), str(folder))
    assert "--" not in str(error.value)
    with pytest.raises(UserError) as error:
        halflabel.Run(tmp_path)
    assert "--" not in str(error.value)


def test_review_opens_the_page_of_the_run(
    table: halflabel.Table, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    run = halflabel.train(table, folder, tmp_path / "run", "bn-bce", **TINY)
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))
    run.review()
    assert commands[0][2:] == ["halflabel", "review", str(run.folder), str(folder)]
