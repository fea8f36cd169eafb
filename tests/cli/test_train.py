"""The command train: new runs, --resume and --continue."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import BATCHES, TINY, CommandProcess, done, flat, refused, run
from digit_scenes import write_folder

from halflabel.runs.folder import RunFolder


def test_method_option_with_the_name_of_a_train_option_is_refused(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halflabel.methods import base as registry
    from halflabel.methods.parts.losses import BCE

    def own(size: int = 3) -> registry.Method:
        return registry.Method(BCE())

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry.recipes()))
    registry.method(serves=["full", "partial"], paper="none")(own)
    words = ["train", data / "train.csv", data / "images", "--method", "own", "--out", tmp_path / "out"]
    assert "size is an option of training" in refused(*words)
    assert not (tmp_path / "out").exists()


def test_unsuitable_labels_are_refused_before_a_run_is_written(tmp_path: Path, data: Path) -> None:
    done("drop", data / "train.csv", tmp_path / "single.csv", "single-positive")
    error = refused(
        "train", tmp_path / "single.csv", data / "images", "--method", "bce", "--out", tmp_path / "run", *TINY
    )
    assert "cannot learn from single-positive labels" in error
    assert "use one of: an" in error
    assert not (tmp_path / "run").exists()


def test_train_shows_epochs_and_writes_a_run(data: Path, tmp_path: Path) -> None:
    text = done(
        "train", "--set=alpha=0.1", "--method", "em", data / "train.csv", data / "images", "--out", tmp_path / "run",
        *BATCHES, "2", *TINY,
    )  # fmt: skip
    assert "epoch   1/2" in text
    assert "epoch   2/2" in text
    assert "images/s" in text
    assert "halflabel report" in text
    written = RunFolder.open(tmp_path / "run")
    for line in written.read_log():  # 0 … 1 in files, points of 100 on the screen
        assert f"epoch {line['epoch']:>3}/2  loss {line['loss']:.4f}  mAP {100 * line['mAP']:.1f}  " in text
    overall = written.read_object("metrics.json")
    assert overall["positives"] < 30  # of ten held-out images
    assert "too few to say" in text
    assert f"halflabel next {tmp_path / 'run'} {data / 'images'} --count 30 --control 1" in text
    assert f"| {100 * overall['mAP']:.1f}" not in (written / "model_card.md").read_text()
    config = written.read_config()
    assert config["options"] == {"alpha": 0.1}
    assert config["method"] == "em"
    assert (tmp_path / "run" / "best.safetensors").exists()


@pytest.mark.parametrize("tune", ["head", "all"])
def test_train_with_nothing_held_out(data: Path, tmp_path: Path, tune: str) -> None:
    text = done(
        "train", data / "train.csv", data / "images", "--out", tmp_path / "run", *BATCHES, "1", "--set", "held_out=0",
        "--tune", tune, *TINY,
    )  # fmt: skip
    assert "mAP" not in text
    assert "probability" in done("predict", tmp_path / "run", data / "images", "--format", "json")


def test_a_second_run_in_the_same_folder_needs_force(data: Path, tmp_path: Path) -> None:
    words = ["train", data / "train.csv", data / "images", "--out", tmp_path / "run", *BATCHES, "1", *TINY]
    done(*words)
    before = (tmp_path / "run" / "best.safetensors").read_bytes()
    assert "already holds a run" in refused(*words)
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == before
    done(*words, "--force", "--seed", "1")
    assert (tmp_path / "run" / "best.safetensors").read_bytes() != before
    # A fault found before training starts leaves the old run as it is.
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    refused(*words, "--force", "--weights", "nowhere.pth")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == after


def test_a_resumed_run_keeps_its_settings(trained: Path, data: Path) -> None:
    before = (trained / "best.safetensors").read_bytes()
    done("train", "--resume", trained)
    assert (trained / "best.safetensors").read_bytes() == before
    assert "--epochs cannot be used with --resume" in refused("train", "--resume", trained, "--epochs", "5")
    assert "--set cannot be used with --resume" in refused("train", "--resume", trained, "--set", "alpha=5")


def test_resuming_with_changed_labels_is_refused(data: Path, tmp_path: Path) -> None:
    from halflabel.labels import formats

    done("train", data / "train.csv", data / "images", "--out", tmp_path / "run", *BATCHES, "1", *TINY)
    other = formats.read(data / "train.csv").table().subset(range(40))
    formats.write(other, tmp_path / "run" / "labels.parquet")
    assert "labels.parquet is damaged" in refused("train", "--resume", tmp_path / "run")


def test_images_without_a_file_are_counted_before_a_run_begins(data: Path, tmp_path: Path) -> None:
    words = ["train", tmp_path / "labels.csv", data / "images", "--out", tmp_path / "run", *BATCHES, "1", *TINY]
    words += ["--method", "bn-bce"]
    more = "".join(f"gone-{number},{'01'[number % 2]},1,,\n" for number in range(20))
    done("import", data / "train.csv", tmp_path / "labels.csv")
    with open(tmp_path / "labels.csv", "a") as file:
        file.write(more)
    error = refused(*words)
    assert "20 of 68 images (29.4 %) have no file in" in error
    assert "'gone-0', 'gone-1', 'gone-2' …" in error
    assert f"see {tmp_path / 'run' / 'bad_images.csv'}" in error
    listed = (tmp_path / "run" / "bad_images.csv").read_text()
    assert listed.count("no such file") == 20
    assert "20 of 68 images could not be read: see" in flat(done(*words, "--max-bad", "0.5"))
    weights = (tmp_path / "run" / "best.safetensors").read_bytes()
    (tmp_path / "run" / "bad_images.csv").write_text("of the run that is there\n")
    assert "20 of 68 images" in refused(*words, "--force", "--seed", "1")  # and that run stays as it is
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == weights
    assert (tmp_path / "run" / "bad_images.csv").read_text() == "of the run that is there\n"


@pytest.mark.parametrize("tune", ["head", "all"])
def test_too_many_broken_images_leave_a_folder_that_can_be_started_again(data: Path, tmp_path: Path, tune: str) -> None:
    write_folder(tmp_path, 48)
    for number in range(10):
        (tmp_path / "images" / f"train-{number:06}.png").write_bytes(b"no picture")
    words = ["train", tmp_path / "train.csv", tmp_path / "images", "--out", tmp_path / "run", *BATCHES, "1"]
    words += ["--tune", tune, *TINY]
    error = refused(*words)
    assert f"see {tmp_path / 'run' / 'bad_images.csv'}, or raise --max-bad" in error
    assert "is not a run" in refused("train", "--resume", tmp_path / "run")
    assert "10 of 48 images could not be read" in flat(done(*words, "--max-bad", "0.5"))


def test_one_image_holds_nothing_out_and_prints_a_note(data: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("image,a,b\ntrain-000000.png,1,0\n")
    words = [tmp_path / "one.csv", data / "images", *BATCHES, "1", *TINY]
    messages = "too few images to hold any out: nothing is measured"
    assert messages in done("train", *words, "--out", tmp_path / "run")
    assert messages not in done("train", *words, "--out", tmp_path / "asked", "--set", "held_out=0")


@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted_training_prints_how_to_resume(
    data: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: signal.Signals,
    code: int,
) -> None:
    from halflabel.cli.progress import TrainingBar

    out = tmp_path / "the run"
    words = ["train", data / "train.csv", data / "images", *BATCHES, "2", *TINY]  # as those of `trained`
    before = signal.getsignal(signal.SIGTERM)
    ends = TrainingBar.on_epoch_end

    def stop(self: TrainingBar, line: Any) -> None:
        ends(self, line)
        os.kill(os.getpid(), kind)
        time.sleep(5)  # the signal comes at once

    # A shell that runs the tests in the background has them ignore Ctrl-C.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingBar, "on_epoch_end", stop)
        result = run(*words, "--out", out)
    signal.signal(signal.SIGINT, interrupt)
    assert result.exit_code == code
    assert result.stderr.strip() == f"Stopped; resume with:  halflabel train --resume '{out}'"
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (out / "best.safetensors").exists()
    assert not list(tmp_path.rglob("*.tmp"))
    done("train", "--resume", out)
    assert (out / "best.safetensors").read_bytes() == (trained / "best.safetensors").read_bytes()


def test_a_training_stopped_before_it_began_wrote_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halflabel.fitting.assembly.build_backbone", stop)
    result = run("train", data / "train.csv", data / "images", "--out", tmp_path / "run", *TINY)
    assert result.exit_code == 130
    assert result.stderr.strip() == "Stopped; nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_in_the_middle_of_an_epoch_ends_with_the_same_weights(data: Path, tmp_path: Path) -> None:
    words = [
        "train", str(data / "train.csv"), str(data / "images"), "--method", "bce", "--tune", "all", "--epochs", "2",
        "--batch-size", "2", "--save-every", "1", "--set", "ema=0.9", *TINY,
    ]  # fmt: skip
    done(*words, "--out", tmp_path / "unbroken")
    out = tmp_path / "killed"
    process = CommandProcess(*words, "--out", out, output=tmp_path / "output.txt")
    # Of 38 training images: 19 steps per epoch, so 20 places; early in the second epoch is far from any end.
    wanted = set(range(20 + 3, 20 + 12))
    limit = time.monotonic() + 90
    while not wanted & {int(path.stem) for path in (out / "last" / "all").glob("*.pt")}:
        assert process.process.is_alive(), "training ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.002)
    assert process.stop(signal.SIGKILL) == -signal.SIGKILL
    newest = max((out / "last" / "all").glob("*.pt"))
    assert int(newest.stem) % 20  # in the middle of an epoch
    assert not (out / "best.safetensors").exists()
    done("train", "--resume", out)
    assert (out / "best.safetensors").read_bytes() == (tmp_path / "unbroken" / "best.safetensors").read_bytes()


def test_auto_prints_its_choice_and_the_run_records_it(tmp_path: Path, data: Path) -> None:
    output = run("train", data / "train.csv", data / "images", "--out", tmp_path / "run", *TINY).stdout
    assert "Full labels: every class is known" in output
    assert "bce smoothing=0.1 and bce are measured" in flat(output)
    config = RunFolder.open(tmp_path / "run").read_config()
    assert config["method"] == "bce"
    asked = ["--tune", "all", "--epochs", "2"]
    run("train", data / "train.csv", data / "images", "--out", tmp_path / "all", *asked, *TINY)
    whole = RunFolder.open(tmp_path / "all").read_config()
    assert whole["ema"] == 0.998
    assert whole["targets"] == "soft"
    assert config["epochs"] == 80
    assert whole["epochs"] == 2  # what is asked for goes before the rule


def test_continue_adds_answers_to_the_labels_of_the_run(tmp_path: Path, data: Path) -> None:
    first = tmp_path / "first"
    begun = ["--method", "bn-bce", *BATCHES, "2", "--out", first, *TINY]
    assert run("train", data / "train.csv", data / "images", *begun).exit_code == 0
    labels = RunFolder.open(first).read_labels()
    image, name = labels.images[0], labels.classes[1]
    new = -int(labels.rows(np.array([0]))[0, 1]) or 1
    (tmp_path / "answers.csv").write_text(f"image,class,value,source,score\n{image},{name},{new},person,\n")
    result = run("train", "--continue", first, "--answers", tmp_path / "answers.csv")
    assert result.exit_code == 0, result.output
    counts = f"{int(new > 0)} present, {int(new < 0)} absent"
    assert f"Added 1 answer from {tmp_path / 'answers.csv'}: {counts}" in result.output.replace("\n", "")
    after = RunFolder.open(tmp_path / "first-2")
    assert after.read_labels().rows(np.array([0]))[0, 1] == new
    assert after.read_config()["begin_from"] == str(first)
    images = after.read_labels().images
    assert after.split_of(images).tolist() == RunFolder.open(first).split_of(images).tolist()
    # The first epoch starts where the first run ended.
    assert after.read_log()[0]["loss"] < 1.1 * RunFolder.open(first).read_log()[-1]["loss"]
    assert "cannot be used with --continue" in refused("train", "--continue", first, "--lr", "0.1")
    assert "needs --continue" in refused("train", "--answers", tmp_path / "answers.csv")
    # Answers of another make, and photos that have moved.
    (tmp_path / "moved").symlink_to(data / "images")
    (tmp_path / "theirs.csv").write_text(f"id,tag,value\n{image},{name},-1\n")
    more = ["--answers", tmp_path / "theirs.csv", "--out", tmp_path / "third"]
    refusal = flat(refused("train", "--continue", first, *more))
    assert all(f"--minus-one {meaning}" in refusal for meaning in ("absent", "unknown", "uncertain"))
    done("train", "--continue", first, tmp_path / "moved", *more, "--minus-one", "absent")
    third = RunFolder.open(tmp_path / "third")
    assert third.read_labels().rows(np.array([0]))[0, 1] == -1
    assert third.read_config()["images"] == str(tmp_path / "moved")


def test_class_names_alone_start_a_run(tmp_path: Path, data: Path) -> None:
    images = data / "images"
    assert "takes only IMAGES" in refused("train", data / "train.csv", images, "--classes", "dog,cat")
    assert "takes only IMAGES" in refused("train", images, "--classes", "dog,cat", "--method", "bce")
    error = refused("train", images, "--classes", "dog,cat", "--out", tmp_path / "run", *TINY)
    assert "tiny gives no probabilities of ImageNet classes" in error
    assert "no label is known" in refused(
        "train", images, "--classes", "1,2", "--names", "off", "--out", tmp_path, *TINY
    )
