"""TensorBoard, MLflow and Weights & Biases get the settings, the numbers of each epoch and the evaluation; offline."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halflabel.errors import UserError
from halflabel.fitting.callbacks import CallbackList, EpochLog, make_loggers

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages

SETTINGS = {"method": "bce", "epochs": 2, "options": {"alpha": 0.2}}


def log_two_epochs(name: str, folder: Path) -> None:
    callback = CallbackList(*make_loggers([name], "first", SETTINGS, folder))
    for epoch in (1, 2):
        callback.on_epoch_end(EpochLog(epoch=epoch, loss=1.0 / epoch, lr=math.nan, note="text"))
    callback.on_training_end({"mAP": 0.75, "protocol": "words", "AP of nothing": math.nan})


def read_events(folder: Path) -> dict[str, list[float]]:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    log_two_epochs("tensorboard", tmp_path)
    assert read_events(tmp_path / "tensorboard") == {"loss": [1.0, 0.5], "evaluation/mAP": [0.75]}


class FakeMlflow:
    """What the logger uses of MLflow: runs by number, each with a name, parameters and the steps of its numbers."""

    def __init__(self, *, can_write: bool = True) -> None:
        self.exceptions = SimpleNamespace(MlflowException=OSError)
        self.can_write, self.runs = can_write, list[dict[str, Any]]()

    def start_run(self, run_id: str | None = None, run_name: str | None = None) -> Any:
        if not self.can_write:
            raise OSError("the filesystem tracking backend is in maintenance mode")
        if run_id is None:
            self.runs.append({"name": run_name, "steps": []})
        self.active = self.runs[int(run_id or len(self.runs) - 1)]
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or str(len(self.runs) - 1)))

    def log_params(self, parameters: dict[str, str]) -> None:
        self.active["parameters"] = parameters

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.active["steps"].append(step)


def test_a_resumed_training_goes_on_in_its_mlflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for epoch, resume in ((1, False), (2, True), (3, True)):
        make_loggers(["mlflow"], "first", SETTINGS, tmp_path, resume=resume)[0].on_epoch_end(EpochLog(epoch=epoch))
    assert [run["steps"] for run in mlflow.runs] == [[1, 2, 3]]
    make_loggers(["mlflow"], "again", SETTINGS, tmp_path)
    assert [run["name"] for run in mlflow.runs] == ["first", "again"]


def test_a_store_that_mlflow_cannot_write_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow(can_write=False))
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"):
        make_loggers(["mlflow"], "first", SETTINGS, tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_reported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (name, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'halflabel\[{name}\]'"):
        make_loggers([name], "first", {}, tmp_path)
