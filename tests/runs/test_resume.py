"""Runs that broke off and are resumed, and two trainings into one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from run_examples import ALL, HEAD, LINEAR_INIT, TABLE, go, weights

from halflabel.errors import UserError
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import Config
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train
from halflabel.system.reporter import Reporter


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


AVERAGED = dataclasses.replace(ALL, ema=0.9)
# Of 18 training images: 3 steps per epoch; with linear init, 2 epochs of the head come first.
BREAKS: dict[str, tuple[Config, Callable[[], Break]]] = {
    "head, between epochs": (HEAD, lambda: Break(epoch=2)),
    "head, within the first epoch": (HEAD, lambda: Break(step=2)),
    "averaged, between epochs": (AVERAGED, lambda: Break(epoch=1)),
    "all, within an epoch": (ALL, lambda: Break(step=6)),
    "linear init, between": (LINEAR_INIT, lambda: Break(epoch=2)),
    "linear init, all": (LINEAR_INIT, lambda: Break(step=9)),
}


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], bytes]:
    """The final weights of an uninterrupted training of a configuration; trained once each."""
    known: list[tuple[Config, bytes]] = []

    def find(config: Config) -> bytes:
        for stored, stored_weights in known:
            if stored == config:
                return stored_weights
        out = tmp_path_factory.mktemp("uninterrupted")
        go(out, folder, config)
        known.append((config, weights(out)))
        return known[-1][1]

    return find


@pytest.mark.parametrize(("config", "stop"), BREAKS.values(), ids=BREAKS)
def test_a_resumed_run_writes_the_file_of_an_uninterrupted_one(
    tmp_path: Path, folder: Path, uninterrupted: Callable[[Config], bytes], config: Config, stop: Callable[[], Break]
) -> None:
    expected = uninterrupted(config)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", folder, config, reporter=Reporter(callback=stop()))
    assert not (tmp_path / "broken" / "best.safetensors").exists()
    run = RunFolder.open(tmp_path / "broken")
    stored_config = Config.from_dict(run.read_config())
    callback = Break()
    train(run.read_labels(), folder, stored_config, run, resume=True, reporter=Reporter(callback=callback))
    assert weights(tmp_path / "broken") == expected
    assert [line["epoch"] for line in run.read_log()] == [1, 2, 3]
    all_steps = 3 * (config.epochs + config.linear_init)
    assert callback.steps < all_steps or stop().step == 2


def test_patience_does_not_apply_to_linear_init(tmp_path: Path, folder: Path) -> None:
    # A head that learns nothing never gets better after its first epoch.
    config = dataclasses.replace(ALL, patience=1, linear_init=5, linear_lr=0.0)
    counting = Break()
    go(tmp_path / "run", folder, config, reporter=Reporter(callback=counting))
    assert counting.epochs > 5


def test_a_run_interrupted_while_computing_features_is_resumed(tmp_path: Path, folder: Path, first_run: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "a" / "run", folder, reporter=Reporter(stop))
    run = RunFolder.open(tmp_path / "a" / "run")
    train(run.read_labels(), folder, Config.from_dict(run.read_config()), run, resume=True)
    assert weights(tmp_path / "a" / "run") == weights(first_run)


def test_a_run_is_resumed_despite_a_damaged_checkpoint(tmp_path: Path, folder: Path, first_run: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", folder, reporter=Reporter(callback=Break(epoch=2)))
    place = tmp_path / "broken" / "last" / "head"
    latest = max(place.glob("*.pt"))
    raw = bytearray(latest.read_bytes())
    raw[-3] ^= 1
    latest.write_bytes(bytes(raw))
    (place / ".0000000099.pt.tmp").write_text("{")
    callback = Break()
    with pytest.warns(UserWarning, match="its checksum does not match"):
        go(tmp_path / "broken", folder, resume=True, reporter=Reporter(callback=callback))
    assert callback.epochs == 2
    assert weights(tmp_path / "broken") == weights(first_run)


def test_a_second_training_into_the_same_folder_is_refused(tmp_path: Path, folder: Path) -> None:
    refusals = []

    class Second(Callback):
        def on_epoch_end(self, log: EpochLog) -> None:
            for same_run in (RunFolder(tmp_path / "run"), RunFolder(tmp_path / "link")):
                with pytest.raises(UserError, match="another training is writing") as refusal:
                    train(TABLE, folder, dataclasses.replace(HEAD, method="an"), same_run)
                refusals.append(refusal)

    (tmp_path / "link").symlink_to(tmp_path / "run")
    go(tmp_path / "run", folder, reporter=Reporter(callback=Second()))
    assert len(refusals) == 6
    assert RunFolder(tmp_path / "run").read_config()["method"] == "bn-bce"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "link", "run"]


def test_a_run_finished_by_another_process_is_not_replaced(tmp_path: Path, folder: Path) -> None:
    late = RunFolder.create(tmp_path / "run")
    go(tmp_path / "run", folder)
    before = weights(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        train(TABLE, folder, dataclasses.replace(HEAD, method="an"), late)
    assert weights(tmp_path / "run") == before
