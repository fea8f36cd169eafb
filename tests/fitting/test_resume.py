"""An interrupted training ends with the same weights as an uninterrupted one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_examples import PLAIN, C, Counting, D, N, Scripted, assert_same, bce, data, linear
from torch import Tensor

from halflabel.errors import UserError
from halflabel.features.heads import Linear, Model
from halflabel.fitting import loop as training
from halflabel.fitting.callbacks import EpochLog
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Relabeler
from halflabel.types import Batch, Targets


class Remembering(Relabeler):
    """Averages the scores of each image over the epochs: state that a resumed run must restore."""

    def start(self, table: Table) -> None:
        self.register_buffer("average", torch.zeros(table.shape))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        assert isinstance(self.average, Tensor)
        self.average[batch.index] = 0.5 * self.average[batch.index] + 0.5 * logits.sigmoid()
        soft = self.average[batch.index]
        unknown = batch.labels == 0
        return Targets((batch.labels > 0).float() + unknown * soft, (batch.labels < 0).float() + unknown * (1 - soft))


def saved(stop: Counting, settings: Config) -> int:
    """Batches of the second epoch in the last checkpoint: the callback stops training before its step is saved."""
    per_epoch = math.ceil(N / settings.batch_size)
    return stop.stop_at - per_epoch - 1


RESUMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "sgd, momentum": {"optimizer": "sgd"},
    "sgd without": {"optimizer": "sgd", "momentum": 0.0},
    "rmsprop": {"optimizer": "rmsprop"},
    "ema": {"ema": 0.8},
    "clipped": {"batch_size": 4, "clip": 0.1},
    "cosine, warm-up": {"schedule": "cosine", "warmup": 1.5},
    "plateau": {"schedule": "plateau"},
    "bf16": {"precision": "bf16"},
    "fp16, with a scaler": {"precision": "fp16"},
}


@pytest.mark.filterwarnings("ignore:fp16 needs a GPU")
@pytest.mark.parametrize("change", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("where", ["between epochs", "within an epoch"])
def test_a_resumed_run_equals_an_uninterrupted_one_exactly(tmp_path: Path, change: dict[str, Any], where: str) -> None:
    source, table = data()
    between = where == "between epochs"
    settings = replace(PLAIN, epochs=4, save_every=0 if between else 1, **change)

    def go(folder: Path, callback: Counting, resume: bool = False) -> tuple[training.Fitted, Method]:
        method = Method(BCE(), Remembering())
        verdicts = [0.2, 0.5, 0.3, 0.4]
        # A resumed run is judged from the epoch on in which it broke off.
        judge = Scripted(verdicts[(2 if between else 1) if resume else 0 :])
        fitted = fit(
            linear(dropout=0.5), method, source, table, settings,
            validation=source, judge=judge, callback=callback, folder=folder, resume=resume,
        )  # fmt: skip
        return fitted, method

    callback = Counting()
    unbroken, method = go(tmp_path / "unbroken", callback)
    per_epoch = callback.steps // 4
    # Within an epoch: after the checkpoint of its second step.
    stop = Counting(stop_after_epoch=2) if between else Counting(stop_at=per_epoch + 3)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", stop)
    after = Counting()
    resumed, resumed_method = go(tmp_path / "broken", after, resume=True)
    # Where the checkpoint was, not where the epoch began; the step that broke off is made again.
    assert after.steps == (2 * per_epoch if between else callback.steps - per_epoch - saved(stop, settings))
    assert_same(resumed.weights, unbroken.weights)
    assert_same(dict(resumed_method.state_dict()), dict(method.state_dict()))
    assert resumed.best_epoch == unbroken.best_epoch == 2

    def timeless(log: list[EpochLog]) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_s")} for line in log]

    assert timeless(resumed.log) == timeless(unbroken.log)


def test_resuming_a_finished_run_returns_its_result(tmp_path: Path) -> None:
    source, table = data()
    first = fit(linear(), bce(), source, table, PLAIN, folder=tmp_path)
    callback = Counting()
    resumed = fit(linear(), bce(), source, table, PLAIN, folder=tmp_path, resume=True, callback=callback)
    assert callback.steps == 0
    assert_same(resumed.weights, first.weights)


def test_resume_without_a_checkpoint_starts_at_the_beginning(tmp_path: Path) -> None:
    source, table = data()
    fitted = fit(linear(), bce(), source, table, PLAIN, folder=tmp_path / "new", resume=True)
    assert_same(fitted.weights, fit(linear(), bce(), source, table, PLAIN).weights)


def test_a_new_run_in_an_old_folder_is_resumed_from_its_own_checkpoints(tmp_path: Path) -> None:
    source, table = data()
    fit(linear(), bce(), source, table, replace(PLAIN, epochs=6), folder=tmp_path)
    new_settings = replace(PLAIN, seed=9, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        fit(linear(), bce(), source, table, new_settings, folder=tmp_path, callback=Counting(stop_after_epoch=2))
    fitted = fit(linear(), bce(), source, table, new_settings, folder=tmp_path, resume=True)
    assert [line["epoch"] for line in fitted.log] == [1, 2, 3]
    assert_same(fitted.weights, fit(linear(), bce(), source, table, new_settings).weights)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    source, table = data()
    fit(linear(), bce(), source, table, PLAIN, folder=tmp_path)
    with pytest.raises(UserError, match="another model"):
        fit(Model(None, Linear(D, C + 1)), bce(), source, table, PLAIN, folder=tmp_path, resume=True)
    with pytest.raises(UserError, match="another model"):
        fit(linear(), bce(), source, table, replace(PLAIN, ema=0.9), folder=tmp_path, resume=True)
