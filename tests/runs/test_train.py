"""Training a run from labels and image files, and predictions from the run."""

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

from halflabel.errors import UserError
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable
from halflabel.models.backbones import build_backbone
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor, predict_files
from halflabel.runs.train import train
from halflabel.system.reporter import Reporter
from halflabel.training.callbacks import Callback, EpochLog
from halflabel.training.config import Config, Settings

N = 24
CLASSES = ["red", "green", "blue"]
SETTINGS = Settings(epochs=3, batch_size=8, lr=0.05, device="cpu")
HEAD = Config(method="bn-bce", backbone="tiny", size=32, held_out=0.25, settings=SETTINGS)
ALL = dataclasses.replace(HEAD, tune="all", settings=dataclasses.replace(SETTINGS, lr=0.01, save_every=1))


def paint(n: int = N) -> tuple[torch.Tensor, LabelTable]:
    """Pictures whose red, green and blue are bright or not: labels that a network of any kind can learn."""
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(n, 3))
    labels[:3] = 2 * np.eye(3, dtype=int) - 1
    pictures = np.clip(128 + 80 * labels[:, :, None, None] + rng.normal(0, 40, (n, 3, 36, 40)), 0, 255).astype(np.uint8)
    table = LabelTable.from_dense(labels, [f"{i:02d}.png" for i in range(n)], CLASSES)
    return torch.from_numpy(pictures), table


def write_folder(folder: Path, bad: tuple[int, ...] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(paint()[0]):
        path = folder / f"{number:02d}.png"
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
        if number in bad:
            path.write_bytes(path.read_bytes()[:300])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"))


TABLE = paint()[1]


@pytest.fixture(scope="module")
def first_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that tests may read, or copy and spoil."""
    out = tmp_path_factory.mktemp("runs") / "run"
    go(out, folder)
    return out


@pytest.fixture
def copied(first_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first_run, tmp_path / "run"))


def go(out: Path, images: Path | torch.Tensor, config: Config = HEAD, table: LabelTable = TABLE, **more: Any) -> Any:
    return train(table, images, config, RunFolder(out), **more)


def weights(out: Path) -> bytes:
    return (out / "best.safetensors").read_bytes()


def test_a_run_leaves_everything_behind(tmp_path: Path, folder: Path) -> None:
    run = RunFolder(tmp_path / "run")
    evaluation = train(TABLE, folder, HEAD, run)
    assert evaluation is not None
    assert {path.name for path in run.folder.iterdir()} == {
        "bad_images.csv", "best.safetensors", "calibration.json", "checksums.json", "config.yaml", "data.hash",
        "env.json", "labels.parquet", "last", "log.csv", "log.jsonl", "made.json", "metrics.json", "model_card.md",
        "per_label.csv", "predictions.parquet", "repro.sh", "split.parquet", "thresholds.json",
    }  # fmt: skip
    assert [line["epoch"] for line in run.read_log()] == [1, 2, 3]
    assert run.read_json("metrics.json")["mAP"] == pytest.approx(evaluation.overall["mAP"])
    assert evaluation.overall["mAP"] > 0.9  # bright or not is easy
    assert evaluation.overall["images"] == 6
    assert run.read_labels() == TABLE
    assert Config.from_dict(run.read_config()) == HEAD
    assert run.read_json("thresholds.json").keys() == set(CLASSES)
    assert (run / "bad_images.csv").read_text() == "image,path,reason\n"
    assert not list(run.folder.rglob("*.tmp"))


def test_the_run_read_back_says_what_training_said(tmp_path: Path, folder: Path) -> None:
    run = RunFolder(tmp_path / "run")
    evaluation = train(TABLE, folder, HEAD, run)
    assert evaluation is not None
    import pyarrow.parquet as pq

    held_out = [image for image, part in zip(*pq.read_table(run / "split.parquet").to_pydict().values(), strict=True)
                if part == "validation"]  # fmt: skip
    hidden = TABLE.subset(TABLE.images.index(held_out))
    again = Predictor.from_run(RunFolder.open(run.folder)).evaluate(hidden, folder)
    # Training saw features in half precision, prediction whole ones.
    assert again.overall["mAP"] == pytest.approx(evaluation.overall["mAP"], abs=1e-3)
    kept = pq.read_table(run / "predictions.parquet").to_pydict()
    assert kept["image"] == held_out
    predictor = Predictor.from_run(run)
    rows = predict_files(predictor, [folder / name for name in held_out], [], all_scores=True)
    for row, image, scores in zip(rows, held_out, kept["scores"], strict=True):
        assert Path(row.image).name == image
        by_class = {label["class"]: label["probability"] for label in row.labels}
        assert [by_class[name] for name in CLASSES] == pytest.approx(scores, abs=0.01)


@pytest.mark.parametrize("config", [HEAD, ALL], ids=["head", "all"])
@pytest.mark.parametrize("kind", ["files", "tensor"])
def test_without_held_out_images_the_last_weights_are_kept(
    tmp_path: Path, folder: Path, config: Config, kind: str
) -> None:
    images = folder if kind == "files" else paint()[0]
    config = dataclasses.replace(config, held_out=0.0)
    assert go(tmp_path / "run", images, config) is None
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert (tmp_path / "run" / "split.parquet").exists()
    (row,) = predict_files(Predictor.from_run(RunFolder.open(tmp_path / "run")), [folder / "00.png"], [], top=3)
    assert len(row.labels) == 3


def test_a_table_too_small_to_hold_anything_out(tmp_path: Path, folder: Path) -> None:
    fitted = go(tmp_path / "run", folder, table=TABLE.subset([0, 1]))
    assert fitted is None or fitted.overall["images"] == 1
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_files_and_tensors_of_the_same_images_train_alike(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(ALL, settings=dataclasses.replace(ALL.settings, epochs=1))
    go(tmp_path / "files", folder, config)
    go(tmp_path / "tensor", paint()[0], config)
    assert weights(tmp_path / "files") == weights(tmp_path / "tensor")


def test_the_number_of_workers_does_not_change_the_weights(tmp_path: Path, folder: Path) -> None:
    for workers in (0, 2):
        go(tmp_path / str(workers), folder, dataclasses.replace(ALL, workers=workers))
    assert weights(tmp_path / "0") == weights(tmp_path / "2")


def test_the_cache_serves_every_run_beside_it(tmp_path: Path, folder: Path) -> None:
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


class Break(Callback):
    """A callback that breaks training off, at a step counted over all epochs and stages, or after an epoch."""

    def __init__(self, step: int = -1, epoch: int = -1) -> None:
        self.step, self.epoch, self.steps, self.epochs = step, epoch, 0, 0

    def on_step_end(self, images: int, loss: float | None) -> None:
        self.steps += 1
        if self.steps == self.step:
            raise KeyboardInterrupt

    def on_epoch_end(self, log: EpochLog) -> None:
        self.epochs += 1
        if self.epochs == self.epoch:
            raise KeyboardInterrupt


LINEAR_INIT = dataclasses.replace(ALL, linear_init=2)
CHANNELS_FIRST = dataclasses.replace(ALL, settings=dataclasses.replace(ALL.settings, channels_last=False, ema=0.9))
# Of 18 training images: 3 steps per epoch; with linear init, 2 epochs of the head come first.
BREAKS: dict[str, tuple[Config, Callable[[], Break]]] = {
    "head, between epochs": (HEAD, lambda: Break(epoch=2)),
    "head, within the first epoch": (HEAD, lambda: Break(step=2)),
    "all, between epochs": (ALL, lambda: Break(epoch=1)),
    "all, within an epoch": (ALL, lambda: Break(step=6)),
    "channels first, within an epoch": (CHANNELS_FIRST, lambda: Break(step=6)),
    "linear init, head": (LINEAR_INIT, lambda: Break(step=5)),
    "linear init, between": (LINEAR_INIT, lambda: Break(epoch=2)),
    "linear init, all": (LINEAR_INIT, lambda: Break(step=9)),
}


@pytest.fixture(scope="module")
def unbroken(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], bytes]:
    """The weights that a configuration ends with when nothing happens; trained once each."""
    known: list[tuple[Config, bytes]] = []

    def find(config: Config) -> bytes:
        for other, actual in known:
            if other == config:
                return actual
        out = tmp_path_factory.mktemp("unbroken")
        go(out, folder, config)
        known.append((config, weights(out)))
        return known[-1][1]

    return find


@pytest.mark.parametrize(("config", "stop"), BREAKS.values(), ids=BREAKS)
def test_a_broken_off_run_ends_with_the_same_file_as_an_unbroken_one(
    tmp_path: Path, folder: Path, unbroken: Callable[[Config], bytes], config: Config, stop: Callable[[], Break]
) -> None:
    expected = unbroken(config)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", folder, config, reporter=Reporter(callback=stop()))
    assert not (tmp_path / "broken" / "best.safetensors").exists()
    run = RunFolder.open(tmp_path / "broken")
    again = Config.from_dict(run.read_config())
    callback = Break()
    train(run.read_labels(), folder, again, run, resume=True, reporter=Reporter(callback=callback))
    assert weights(tmp_path / "broken") == expected
    assert [line["epoch"] for line in run.read_log()] == [1, 2, 3]
    whole = 3 * (config.settings.epochs + config.linear_init)
    assert callback.steps < whole or stop().step == 2


def test_patience_does_not_cut_the_head_short_that_comes_first(tmp_path: Path, folder: Path) -> None:
    # A head that learns nothing never gets better after its first epoch.
    settings = dataclasses.replace(ALL.settings, patience=1)
    config = dataclasses.replace(ALL, settings=settings, linear_init=5, linear_lr=0.0)
    head = Break()
    go(tmp_path / "run", folder, config, init_callback=head)
    assert head.epochs == 5


def test_a_run_that_broke_off_while_features_were_computed(tmp_path: Path, folder: Path, first_run: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "a" / "run", folder, reporter=Reporter(stop))
    run = RunFolder.open(tmp_path / "a" / "run")
    train(run.read_labels(), folder, Config.from_dict(run.read_config()), run, resume=True)
    assert weights(tmp_path / "a" / "run") == weights(first_run)


def test_a_damaged_newest_checkpoint_costs_an_epoch_not_the_result(
    tmp_path: Path, folder: Path, first_run: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", folder, reporter=Reporter(callback=Break(epoch=2)))
    place = tmp_path / "broken" / "last" / "head"
    latest = sorted(place.glob("*.safetensors"))[-1]
    raw = bytearray(latest.read_bytes())
    raw[-3] ^= 1
    latest.write_bytes(bytes(raw))
    (place / ".0000000099.json.tmp").write_text("{")
    callback = Break()
    with pytest.warns(UserWarning, match="its checksum does not match"):
        go(tmp_path / "broken", folder, resume=True, reporter=Reporter(callback=callback))
    assert callback.epochs == 2
    assert weights(tmp_path / "broken") == weights(first_run)


def test_a_finished_run_resumed_stays_as_it_is(folder: Path, first_run: Path, copied: Path) -> None:
    measured = (copied / "metrics.json").read_text()
    go(copied, folder, resume=True, reporter=Reporter(callback=Break(step=1)), cache=first_run.parent / "cache")
    assert weights(copied) == weights(first_run)
    assert (copied / "metrics.json").read_text() == measured


def test_a_new_start_in_an_old_folder_is_not_calibrated_by_the_old_run(folder: Path, copied: Path) -> None:
    assert Predictor.from_run(RunFolder(copied)).platt.known > 0
    go(copied, folder, dataclasses.replace(HEAD, held_out=0.0))
    assert Predictor.from_run(RunFolder(copied)).platt.known == 0


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


def test_an_image_without_a_file_is_unreadable(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images")
    (folder / "09.png").unlink()
    go(tmp_path / "run", folder, dataclasses.replace(HEAD, max_bad=0.1))
    assert "09.png" in (tmp_path / "run" / "bad_images.csv").read_text()


def test_image_names_may_lack_their_ending(tmp_path: Path, folder: Path) -> None:
    table = LabelTable.from_dense(TABLE.dense(), [name.removesuffix(".png") for name in TABLE.images], CLASSES)
    assert go(tmp_path / "run", folder, table=table).overall["mAP"] > 0.9


POSITIVES = LabelTable.from_dense(np.where(TABLE.dense() > 0, 1, 0), TABLE.images, CLASSES)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "bec"}, "no method is called 'bec'"),
    "option": ({"options": {"alpha": 1}}, "has no option 'alpha'"),
    "backbone": ({"backbone": "resnet5000"}, "no backbone called"),
    "weights": ({"weights": "nowhere.pth"}, "no weights file"),
    "size": ({"size": 8}, "too small"),
    "regime": ({"table": POSITIVES}, "cannot learn from positives-only labels"),
    "no folder": ({"images": Path("nowhere")}, "is not a folder"),
    "other images": ({"table": LabelTable.from_dense([[1, -1]], ["x.png"], ["a", "b"])}, "none of the 1 images"),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_before_anything_is_written(
    tmp_path: Path, folder: Path, change: dict[str, Any], says: str
) -> None:
    change = dict(change)
    table, images = change.pop("table", TABLE), change.pop("images", folder)
    with pytest.raises(UserError, match=says):
        go(tmp_path / "run", images, dataclasses.replace(HEAD, **change), table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(HEAD, settings=dataclasses.replace(SETTINGS, device="cuda"))
    with pytest.raises(UserError, match=r"no CUDA device here.*device=.cpu."):
        go(tmp_path / "run", folder, config)
    assert list(tmp_path.iterdir()) == []
    # A run that was trained on one serves here all the same.
    go(tmp_path / "run", folder)
    RunFolder(tmp_path / "run").write_config(config.as_dict())
    assert len(predict_files(Predictor.from_run(RunFolder(tmp_path / "run")), [folder], [])) == N


def test_positives_alone_are_judged_as_such(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(HEAD, method="an")
    go(tmp_path / "run", folder, config, POSITIVES)
    run = RunFolder(tmp_path / "run")
    assert all("assumed_mAP" in line and "mAP" not in line for line in run.read_log())
    assert len(set(run.read_json("thresholds.json").values())) == 1
    assert run.read_calibration().assumption in (run / "model_card.md").read_text()
    assert "estimated precision" in (run / "model_card.md").read_text()


def test_labels_are_matched_to_the_run_by_class_name(folder: Path, first_run: Path) -> None:
    predictor = Predictor.from_run(RunFolder(first_run))
    plain = predictor.evaluate(TABLE, folder)
    order = [2, 0, 1]
    labels = np.hstack([TABLE.dense()[:, order], np.ones((N, 1), np.int8)])
    turned = LabelTable.from_dense(labels, TABLE.images, [*(CLASSES[c] for c in order), "x"])
    assert predictor.evaluate(turned, folder).per_class == plain.per_class
    fewer = predictor.evaluate(TABLE.subset(classes=[0, 1]), folder).per_class
    assert fewer[:2] == plain.per_class[:2]
    assert (fewer[2]["class"], fewer[2]["present"], fewer[2]["absent"]) == ("blue", 0, 0)
    assert np.isnan(fewer[2]["AP"])
    none = LabelTable.from_dense(TABLE.dense(), TABLE.images, ["x", "y", "z"])
    with pytest.raises(UserError, match=r"other\.csv has none of the model's 3 classes: it has 'x', 'y', 'z'"):
        predictor.evaluate(none, folder, labels_name="other.csv")


def rows_of(made: np.ndarray) -> Rows:
    """The labels of TABLE, those where `made` is true by a model that is always wrong."""
    image, column, value = TABLE.entries()
    sources = ("person", "model:bce:runs/before")
    messages = np.where(made, -value, value)
    return Rows.build(TABLE.images, TABLE.classes, image, column, messages, made.astype(int), None, sources)


def test_model_labels_are_used_for_training_but_not_for_evaluation(tmp_path: Path, folder: Path) -> None:
    actual = np.arange(TABLE.known) % 3 == 0
    lines: list[str] = []
    fitted = go(tmp_path / "run", folder, table=rows_of(actual), reporter=Reporter(message=lines.append))
    messages = [line for line in lines if "model" in line]
    assert messages == [
        f"{actual.sum()} of {TABLE.known} labels were made by a model: they are trained on, but only the others are "
        "used for evaluation"
    ]
    run = RunFolder(tmp_path / "run")
    assert run.read_labels() == rows_of(actual).resolve()
    held = np.flatnonzero(run.split_of(TABLE.images))
    people = TABLE.keep(~actual).subset(held).dense()
    assert 0 < np.count_nonzero(people) < TABLE.subset(held).known
    counts = [(row["present"], row["absent"]) for row in fitted.per_class]
    assert counts == [(int((people[:, c] > 0).sum()), int((people[:, c] < 0).sum())) for c in range(3)]
    left_out = TABLE.subset(held).known - np.count_nonzero(people)
    assert f"{left_out} labels made by a model are not used" in run.read_metrics()["protocol"]
    # Where labels of a model are unknown, all that is measured is the same; so it is by `evaluate`.
    predictor = Predictor.from_run(run)
    alone = predictor.evaluate(TABLE.keep(~actual), folder)
    both = predictor.evaluate(rows_of(actual), folder)
    assert both.overall == alone.overall
    assert both.protocol == f"{alone.protocol}; {actual.sum()} labels made by a model are not used"
    assert predictor.evaluate(rows_of(np.zeros_like(actual)), folder).overall != alone.overall
    with pytest.raises(UserError, match="nothing to evaluate on"):
        predictor.evaluate(rows_of(np.ones_like(actual)), folder)
    # A run that goes on trains on, and judges by, the same.
    before = run.weights.read_bytes()
    train(run.read_rows(), folder, Config.from_dict(run.read_config()), run, resume=True)
    assert run.weights.read_bytes() == before


def test_a_run_on_labels_of_a_model_alone_ends_well(tmp_path: Path, folder: Path) -> None:
    fitted = go(tmp_path / "run", folder, table=rows_of(np.ones(TABLE.known, bool)))
    assert np.isnan(fitted.overall["mAP"])
    assert all(row["present"] == row["absent"] == 0 for row in fitted.per_class)
    Predictor.from_run(RunFolder(tmp_path / "run"))


def test_damaged_labels_stop_evaluation_alone(copied: Path, folder: Path) -> None:
    run = RunFolder(copied)
    before = predict_files(Predictor.from_run(run), [folder / "03.png"], [])
    run.labels.write_bytes(b"damaged")
    predictor = Predictor.from_run(RunFolder.open(copied))
    assert predict_files(predictor, [folder / "03.png"], []) == before
    with pytest.raises(UserError, match="start a new run"):
        predictor.evaluate(TABLE, folder)


@pytest.mark.parametrize(("top", "every"), [(0, False), (2, False), (10**30, False), (0, True)])
def test_labels_of_scores_are_those_of_a_loop(first_run: Path, top: int, every: bool) -> None:
    predictor = Predictor.from_run(RunFolder(first_run))
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
    predictor = Predictor.from_run(RunFolder(first_run))
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    given = [folder / "03.png", Path("-"), tmp_path / "broken.png", folder / "03.png", tmp_path / "missing.png"]
    predictions = predict_files(predictor, given, [str(folder / "01.png"), "", str(folder / "02.png")], top=1)
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
    assert len(predict_files(predictor, [folder], [])) == N
    every = predict_files(predictor, [folder / "03.png"], [], all_scores=True)
    assert len(every[0].labels) == 3
    alone = predict_files(predictor, [tmp_path / "broken.png"], [])
    assert alone[0].error
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no images"):
        predict_files(predictor, [tmp_path / "empty"], [])


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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize(("harm", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_says_what_is_wrong(copied: Path, harm: Callable[[RunFolder], Any], says: str) -> None:
    harm(RunFolder(copied))
    with pytest.raises(UserError, match=says):
        Predictor.from_run(RunFolder.open(copied))


def test_a_second_training_into_the_same_folder_is_refused(tmp_path: Path, folder: Path) -> None:
    refusals = []

    class Second(Callback):
        def on_epoch_end(self, log: EpochLog) -> None:
            for other in (RunFolder(tmp_path / "run"), RunFolder(tmp_path / "link")):
                with pytest.raises(UserError, match="another training is writing") as refusal:
                    train(TABLE, folder, dataclasses.replace(HEAD, method="an"), other)
                refusals.append(refusal)

    (tmp_path / "link").symlink_to(tmp_path / "run")
    go(tmp_path / "run", folder, reporter=Reporter(callback=Second()))
    assert len(refusals) == 6
    assert RunFolder(tmp_path / "run").read_config()["method"] == "bn-bce"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "link", "run"]


def test_a_run_that_another_finished_meanwhile_is_not_replaced(tmp_path: Path, folder: Path) -> None:
    late = RunFolder.create(tmp_path / "run")
    go(tmp_path / "run", folder)
    before = weights(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        train(TABLE, folder, dataclasses.replace(HEAD, method="an"), late)
    assert weights(tmp_path / "run") == before


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


def test_the_settings_survive_the_file(tmp_path: Path) -> None:
    config = dataclasses.replace(ALL, options={"alpha": 0.5, "flag": True}, weights="w.pth", linear_init=3)
    run = RunFolder(tmp_path)
    run.write_config(config.as_dict())
    assert Config.from_dict(run.read_config()) == config


def test_equal_runs_are_equal_files(tmp_path: Path, folder: Path, first_run: Path) -> None:
    for name in ("a", "b"):
        go(tmp_path / name, folder, cache=first_run.parent / "cache")
        assert weights(tmp_path / name) == weights(first_run)


def test_guesses_are_compared_with_hidden_labels_in_the_log(tmp_path: Path, folder: Path) -> None:
    known = LabelTable.from_dense(np.where(np.arange(3 * N).reshape(N, 3) % 2, TABLE.dense(), 0), TABLE.images, CLASSES)
    order = np.random.default_rng(1).permutation(N)
    shuffled = TABLE.subset(order, np.array([2, 0, 1]))
    longer = dataclasses.replace(SETTINGS, epochs=12)
    config = dataclasses.replace(
        HEAD, method="curriculum", options={"theta": 0.1, "relabel_at": "10,12"}, settings=longer
    )
    run = RunFolder(tmp_path / "run")
    train(known, folder, config, run, truth=shuffled)
    first, second = (line for line in run.read_log() if "tp_rate" in line)
    assert first["epoch"] == 9
    assert second["label_proportion"] >= first["label_proportion"] > 0.5
    assert second["accuracy"] > 0.7  # bright or not is easy
    assert run.read_truth() == TABLE
    with pytest.raises(UserError, match="hidden labels have no class 'red'"):
        train(known, folder, config, RunFolder(tmp_path / "other"), truth=TABLE.subset(classes=np.array([1, 2])))
    assert not (tmp_path / "other" / "config.yaml").exists()


def test_images_held_on_the_device_train_as_those_in_files(tmp_path: Path, folder: Path) -> None:
    for hold in ("files", "device"):
        fitted = go(tmp_path / hold, folder, dataclasses.replace(ALL, hold=hold))
        assert fitted.overall["mAP"] > 0.9
    assert weights(tmp_path / "files") != weights(tmp_path / "device")  # crops are resampled otherwise


def test_a_method_of_two_views_trains_on_cached_ones(tmp_path: Path, folder: Path) -> None:
    for copies in (1, 3):
        config = dataclasses.replace(HEAD, method="srcr", copies=copies)
        assert go(tmp_path / f"{copies}", folder, config) is not None
    assert weights(tmp_path / "1") != weights(tmp_path / "3")


def test_a_training_that_diverges_stops_with_advice(tmp_path: Path, folder: Path) -> None:
    config = dataclasses.replace(HEAD, settings=dataclasses.replace(SETTINGS, lr=1e9, epochs=4))
    with pytest.raises(UserError, match="diverges") as stop:
        go(tmp_path / "run", folder, config)
    assert "lower --lr" in stop.value.fix


def test_fp16_on_a_cpu_says_that_it_is_float32(tmp_path: Path, folder: Path, first_run: Path) -> None:
    config = dataclasses.replace(HEAD, settings=dataclasses.replace(SETTINGS, precision="fp16"))
    with pytest.warns(UserWarning, match="float32"):
        go(tmp_path / "run", folder, config)
    before, after = (Predictor.from_run(RunFolder(path)).model.state_dict() for path in (first_run, tmp_path / "run"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_images_that_were_not_packed_are_listed(tmp_path: Path, first_run: Path) -> None:
    from halflabel.data.pack.read import PackSettings
    from halflabel.data.pack.write import pack_images

    images = write_folder(tmp_path / "images", bad=(3,))
    pack_images(images, tmp_path / "pack", PackSettings(size=32), max_bad=1.0)
    predictions = predict_files(Predictor.from_run(RunFolder(first_run)), [tmp_path / "pack"])
    assert len(predictions) == N
    assert [item.image for item in predictions if item.error] == [str(images / "03.png")]
    assert "not packed" in predictions[-1].error
