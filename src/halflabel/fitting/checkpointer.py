"""Saves a training to checkpoints and restores it, so that a resumed run ends with the same weights bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halflabel.errors import UserError, error_summary
from halflabel.fitting import checkpoint
from halflabel.fitting.callbacks import EpochLog
from halflabel.fitting.step import OptimizerStep
from halflabel.system import distributed


@dataclass
class TrainingState:
    """What changes from step to step besides weights and optimizer: how far a training is, its best epoch, its log."""

    loss_sum: Tensor  # () summed over the batches of this epoch, on the training device
    epoch: int = 1  # the current epoch, counted from 1
    batches_done: int = 0  # batches of the current epoch that are trained
    steps: int = 0  # optimizer steps so far
    lr_factor: float = 1.0  # factor of the learning rate, lowered by the schedule "plateau"
    best: float = -math.inf  # the best value of the validation metric
    best_epoch: int = 0
    epochs_since_best: int = 0
    previous: float = -math.inf  # the validation metric of the previous epoch
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    log: list[EpochLog] = field(default_factory=list)

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and its batches that are trained."""
        return self.epoch, self.batches_done

    def start_next_epoch(self) -> None:
        self.epoch, self.batches_done = self.epoch + 1, 0
        self.loss_sum.zero_()

    def record_validation(self, value: float, weights: dict[str, Tensor] | None) -> None:
        """Record the metric of the current epoch; `weights` are those to keep if it is the best so far."""
        if weights is not None:
            self.best, self.best_epoch, self.epochs_since_best = float(value), self.epoch, 0
            self.best_weights = weights
        else:
            self.epochs_since_best += 1
        self.previous = float(value)

    def to_dict(self) -> dict[str, Any]:
        """The state for a checkpoint; the log is text, as NumPy's numbers may be in it."""
        return {**vars(self), "log": json.dumps(self.log)}

    def load_dict(self, content: Mapping[str, Any], device: torch.device) -> None:
        vars(self).update(content)
        self.loss_sum = self.loss_sum.to(device)
        self.best_weights = {name: value.to(device) for name, value in self.best_weights.items()}
        self.log = [EpochLog(line) for line in json.loads(content["log"])]


class Checkpointer:
    """Writes and reads the checkpoints of one training. Without a folder it does nothing.

    `batches_per_epoch` numbers the checkpoints: a later one has a higher number.
    """

    def __init__(self, folder: Path | None, state: TrainingState, step: OptimizerStep, batches_per_epoch: int) -> None:
        self.folder, self.state, self.step, self.batches_per_epoch = folder, state, step, batches_per_epoch
        self.method, self.model = step.method, step.model
        self.method_shapes = _shapes(self.method.state_dict())
        self.saved = (1, 0)  # position of the newest checkpoint; the beginning needs none

    @property
    def is_current(self) -> bool:
        """Whether the newest checkpoint holds the present state."""
        return self.saved == self.state.position

    def start(self, resume: bool) -> None:
        """Load the newest checkpoint, or remove the checkpoints of an earlier training."""
        if self.folder is None:
            return
        if not resume:
            if distributed.is_main():
                checkpoint.clear(self.folder)
            return
        if (content := checkpoint.load_newest(self.folder)) is not None:
            self._load(content)
        if len(set(distributed.all_gather((*self.state.position, self.state.steps)))) > 1:
            raise UserError(
                f"the processes find different checkpoints in {self.folder}",
                "put the run into a folder that all machines share",
            )

    def save(self) -> None:
        if self.folder is None or not distributed.is_main():
            return
        self._check_method_state()
        content = {
            "model": self.model.state_dict(),
            "method": self.method.state_dict(),
            "average": {} if self.step.ema is None else self.step.ema.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "state": self.state.to_dict(),
            "images_at_once": self.step.micro_batches.limit,
        }
        number = (self.state.epoch - 1) * (self.batches_per_epoch + 1) + self.state.batches_done
        checkpoint.save(self.folder, number, content)
        self.saved = self.state.position

    def _check_method_state(self) -> None:
        """Raise if a new method could not load the state of this one."""
        shapes, late = _shapes(self.method.state_dict()), checkpoint.late_buffers(self.method)
        for name in (name for name in {**self.method_shapes, **shapes} if name not in late):
            if shapes.get(name) is None or shapes[name] != self.method_shapes.get(name):
                raise UserError(
                    f"{name} of the method's state is not a tensor that has the same shape from the start on, so the "
                    "training could not be resumed",
                    f"register {name.split('.')[-1]!r} as a buffer of its final shape in `start`",
                )

    def _load_method(self, state: Mapping[str, Tensor]) -> None:
        try:
            checkpoint.load_state(self.method, state)
        except RuntimeError as error:
            raise UserError(
                f"the checkpoint does not fit the method: {error}",
                "the method or its options have changed: resume with those of the run, or train again",
            ) from None

    def _load(self, content: Mapping[str, Any]) -> None:
        step = self.step
        try:
            checkpoint.load_state(self.model, content["model"])
            self._load_method(content["method"])
            if step.ema is not None:
                checkpoint.load_state(step.ema, content["average"])
            for saved, present in zip(content["optimizer"]["param_groups"], step.optimizer.param_groups, strict=True):
                if "fused" in present:  # whether steps are fused depends on the present device
                    saved["fused"] = present["fused"]
            step.optimizer.load_state_dict(content["optimizer"])
            self.state.load_dict(content["state"], step.device)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UserError(
                f"the checkpoint belongs to another model ({error_summary(error)})", "resume with the same options"
            ) from None
        step.micro_batches.limit = content["images_at_once"]
        if content["scaler"]:  # empty without fp16
            step.scaler.load_state_dict(content["scaler"])
        self.saved = self.state.position


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    return {name: tuple(value.shape) if isinstance(value, Tensor) else None for name, value in state.items()}
