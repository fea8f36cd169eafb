"""The state of a training that changes from step to step, besides weights and optimizer; a checkpoint holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from halflabel.fitting.callbacks import EpochLog

# Names in checkpoint files -> fields of the state.
_SAVED = {
    "epoch": "epoch",
    "done": "batches_done",
    "steps": "steps",
    "factor": "lr_factor",
    "best": "best",
    "best_epoch": "best_epoch",
    "stale": "epochs_since_best",
    "previous": "previous",
}


@dataclass
class TrainingState:
    """How far a training is, its best epoch so far, and its log."""

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
            self.best, self.best_epoch, self.epochs_since_best = value, self.epoch, 0
            self.best_weights = weights
        else:
            self.epochs_since_best += 1
        self.previous = value

    def to_json(self) -> dict[str, Any]:
        """All but the best weights, which are tensors of the checkpoint."""
        counters = {name: getattr(self, field_name) for name, field_name in _SAVED.items()}
        return {**counters, "summed": float(self.loss_sum), "log": self.log}

    def load_json(self, content: dict[str, Any]) -> None:
        for name, field_name in _SAVED.items():
            setattr(self, field_name, content[name])
        self.loss_sum = torch.full_like(self.loss_sum, content["summed"])
        self.log = [EpochLog(line) for line in content["log"]]
