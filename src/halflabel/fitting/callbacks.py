"""Callbacks: objects that are called while training runs, such as progress bars and log writers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any

from halflabel.errors import UserError, error_summary, missing_package


class EpochLog(dict[str, Any]):
    """One line of the training log: epoch, loss, lr, images_per_s, and the numbers of validation and relabelling."""


class Callback:
    """Base class of all callbacks. Each method does nothing; a subclass overrides the ones it needs.

    Training calls the epoch and step methods. A comparison of many trainings calls the task methods too.
    """

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        """Epoch number `epoch` of `epochs` (counted from 1) starts; it has `images` images."""

    def on_step_end(self, images: int, loss: float | None) -> None:
        """A batch of `images` images is done. `loss` is the epoch's mean so far, or None if it was not read."""

    def on_epoch_end(self, log: EpochLog) -> None:
        """An epoch is finished, and its checkpoint is written."""

    def on_training_end(self, metrics: Mapping[str, Any]) -> None:
        """A training is finished and evaluated; without held-out labels `metrics` is empty."""

    def on_task_start(self, task: Any, number: int, total: int, seconds_left: float | None) -> None:
        """Task `number` of `total` (counted from 1) of a comparison starts; `seconds_left` is None if unknown."""

    def on_task_end(self, task: Any, outcome: Any, number: int, total: int) -> None:
        """A task of a comparison is finished or has failed."""


class CallbackList(Callback):
    """Calls several callbacks in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def _call_each(self, name: str, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(*values)


for _name in [name for name in vars(Callback) if name.startswith("on_")]:
    setattr(CallbackList, _name, partialmethod(CallbackList._call_each, _name))


class TensorBoard(Callback):
    """Writes the numbers of each epoch, and of the evaluation, to event files; needs the package `tensorboard`."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def on_epoch_end(self, log: EpochLog) -> None:
        for name, value in _numbers(log).items():
            self.writer.add_scalar(name, value, log["epoch"])
        self.writer.flush()

    def on_training_end(self, metrics: Mapping[str, Any]) -> None:
        for name, value in _numbers(metrics).items():
            self.writer.add_scalar(f"evaluation/{name}", value)
        self.writer.close()


class MLflow(Callback):
    """Logs a training as an MLflow run: settings, the numbers of each epoch, the evaluation; needs `mlflow`.

    Where it goes is set by MLflow's own variables, such as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. The run
    folder keeps the number of the MLflow run in mlflow.txt, so that a resumed training goes on in it.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, *, resume: bool) -> None:
        import mlflow

        self.mlflow, place = mlflow, folder / "mlflow.txt"
        before = place.read_text(encoding="utf-8").strip() if resume and place.is_file() else None
        try:
            run = mlflow.start_run(run_id=before, run_name=None if before else name)
            if before is None:
                mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
        except mlflow.exceptions.MlflowException as error:
            fix = "name a store that it can write: export MLFLOW_TRACKING_URI=sqlite:///mlflow.db"
            raise UserError(f"MLflow cannot log this training: {error_summary(error)}", fix) from None
        place.write_text(run.info.run_id, encoding="utf-8")

    def on_epoch_end(self, log: EpochLog) -> None:
        self.mlflow.log_metrics(_numbers(log), step=log["epoch"])

    def on_training_end(self, metrics: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics({f"evaluation/{name}": value for name, value in _numbers(metrics).items()})
        self.mlflow.end_run()


class WeightsAndBiases(Callback):
    """Logs a training as a Weights & Biases run: settings, the numbers of each epoch, the evaluation; needs `wandb`.

    Where it goes is set by its own variables, such as WANDB_PROJECT and WANDB_MODE=offline. The run folder keeps the
    number of the run in wandb.txt, so that a resumed training goes on in it.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, *, resume: bool) -> None:
        import wandb

        place = folder / "wandb.txt"
        before = place.read_text(encoding="utf-8").strip() if resume and place.is_file() else None
        how: dict[str, Any] = {} if before is None else {"id": before, "resume": "allow"}
        self.run = wandb.init(name=name, config=dict(settings), dir=str(folder), **how)
        place.write_text(str(self.run.id), encoding="utf-8")

    def on_epoch_end(self, log: EpochLog) -> None:
        self.run.log(_numbers(log), step=log["epoch"])

    def on_training_end(self, metrics: Mapping[str, Any]) -> None:
        self.run.summary.update({f"evaluation/{name}": value for name, value in _numbers(metrics).items()})
        self.run.finish()


def make_loggers(
    names: Iterable[str], run: str, settings: Mapping[str, Any], folder: Path, *, resume: bool = False
) -> list[Callback]:
    """Make the named loggers; `resume` goes on in the run that a logger had begun."""
    makers: dict[str, Callable[[], Callback]] = {
        "tensorboard": lambda: TensorBoard(folder / "tensorboard"),
        "mlflow": lambda: MLflow(run, settings, folder, resume=resume),
        "wandb": lambda: WeightsAndBiases(run, settings, folder, resume=resume),
    }
    loggers = []
    for name in names:
        try:
            loggers.append(makers[name]())
        except ImportError as error:
            raise missing_package(error, name) from None
    return loggers


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers, without the epoch itself."""
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float) and key != "epoch"}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}
