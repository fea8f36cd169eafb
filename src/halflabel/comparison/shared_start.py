"""A shared start: a linear model that is trained once and whose weights all other tasks start from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from halflabel.comparison.grid import Candidate, Options, Task
from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.checkpoint import save_tensors
from halflabel.fitting.loop import Fitted
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.system.files import to_json_value


class OutOfTime(Exception):
    """The time budget is spent."""


@dataclass(frozen=True)
class Start:
    """A method with a linear head that is trained first, once per label mask and seed.

    A task that differs only in its epochs is the start itself. With `labelled_only` the start is not trained on images
    without a known label, even if tasks are.
    """

    method: str
    options: Options
    lr: float
    weight_decay: float
    epochs: int
    labelled_only: bool = False

    def task(self, like: Task) -> Task:
        """Return the start for a task, with the same labels and seed."""
        candidate = Candidate(self.method, self.method, self.options, self.lr, self.weight_decay)
        return Task(candidate, like.label_mask, like.seed, self.lr, self.options)

    def is_task(self, task: Task) -> bool:
        return task.key == self.task(task).key


class StopAtDeadline(Callback):
    """Raises `OutOfTime` between two epochs once the deadline has passed; at least one epoch is trained."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.has_trained = False

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        if self.deadline is not None and self.has_trained and time.monotonic() > self.deadline:
            raise OutOfTime

    def on_epoch_end(self, log: EpochLog) -> None:
        self.has_trained = True


def start_path(folder: Path, task: Task, identity: Mapping[str, Any]) -> Path:
    """Return the file of a start; `identity` holds all values that its weights depend on."""
    digest = hashlib.sha256(json.dumps(to_json_value(dict(identity)), sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{task.candidate.method}-seed{task.seed}-{digest}.safetensors"


def write_start(fitted: Fitted, path: Path) -> None:
    """Write the weights and the log of a start to one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"best_epoch": fitted.best_epoch, "log": fitted.log})
    save_tensors(fitted.weights, path, {"start": metadata})


def read_start(path: Path) -> Fitted | None:
    """Return what `write_start` has written, or None if the file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads(file.metadata()["start"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            return Fitted(weights, int(metadata["best_epoch"]), [EpochLog(line) for line in metadata["log"]])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def copy_start(weights: Mapping[str, Tensor], model: Model, method: Method, table: Table) -> None:
    """Copy the weights of a linear model, x = W f + b, into another model for the same classes.

    The weights of the backbone are copied if it is tuned. The head follows W and b as well as it can (`load_linear`).
    """
    if model.backbone is not None:
        model.backbone.load_state_dict(
            {name.removeprefix("backbone."): value for name, value in weights.items() if name.startswith("backbone.")}
        )
    if "head.linear.weight" not in weights:
        raise UserError("the start has no linear head", "start from a method with a linear head, such as logistic")
    weight, bias = (weights[f"head.linear.{name}"].cpu() for name in ("weight", "bias"))
    method.start(table, model)  # sets label vectors, where the head has them
    model.head.load_linear(weight, bias)
