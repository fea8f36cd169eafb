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


class Logger(Callback):
    """Sends the finite numbers of each epoch, and at the end those of the evaluation, to another program."""

    def __init__(self, log: Callable[[dict[str, float], int], object], end: Callable[[dict[str, float]], None]) -> None:
        self.log, self.end = log, end

    def on_epoch_end(self, log: EpochLog) -> None:
        self.log(_numbers({name: value for name, value in log.items() if name != "epoch"}), log["epoch"])

    def on_training_end(self, metrics: Mapping[str, Any]) -> None:
        self.end({f"evaluation/{name}": value for name, value in _numbers(metrics).items()})


def make_loggers(
    names: Iterable[str], run: str, settings: Mapping[str, Any], folder: Path, *, resume: bool = False
) -> list[Callback]:
    """Make the named loggers: "tensorboard", "mlflow" or "wandb", each a package that must be installed.

    Where MLflow and Weights & Biases log to is set by their own variables, such as MLFLOW_TRACKING_URI or
    WANDB_MODE=offline. The run folder keeps their number of the run, in which `resume` goes on.
    """
    makers = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
    loggers: list[Callback] = []
    for name in names:
        place = folder / f"{name}.txt"
        before = place.read_text(encoding="utf-8").strip() if resume and place.is_file() else None
        try:
            logger, number = makers[name](run, settings, folder, before)
        except ImportError as error:
            raise missing_package(error, name) from None
        if number:
            place.write_text(number, encoding="utf-8")
        loggers.append(logger)
    return loggers


def _tensorboard(run: str, settings: Mapping[str, Any], folder: Path, before: str | None) -> tuple[Logger, str]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def log(numbers: dict[str, float], epoch: int | None = None) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return Logger(log, log), ""


def _mlflow(run: str, settings: Mapping[str, Any], folder: Path, before: str | None) -> tuple[Logger, str]:
    import mlflow

    try:
        started = mlflow.start_run(run_id=before, run_name=None if before else run)
        if before is None:
            mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
    except mlflow.exceptions.MlflowException as error:
        fix = "name a store that it can write: export MLFLOW_TRACKING_URI=sqlite:///mlflow.db"
        raise UserError(f"MLflow cannot log this training: {error_summary(error)}", fix) from None

    def end(numbers: dict[str, float]) -> None:
        mlflow.log_metrics(numbers)
        mlflow.end_run()

    return Logger(lambda numbers, epoch: mlflow.log_metrics(numbers, step=epoch), end), started.info.run_id


def _wandb(run: str, settings: Mapping[str, Any], folder: Path, before: str | None) -> tuple[Logger, str]:
    import wandb

    how: dict[str, Any] = {} if before is None else {"id": before, "resume": "allow"}
    started = wandb.init(name=run, config=dict(settings), dir=str(folder), **how)

    def end(numbers: dict[str, float]) -> None:
        started.summary.update(numbers)
        started.finish()

    return Logger(lambda numbers, epoch: started.log(numbers, step=epoch), end), str(started.id)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}
