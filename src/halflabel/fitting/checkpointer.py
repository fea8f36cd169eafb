"""Saves a training to checkpoints and restores it, so that a resumed run ends with the same weights bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from halflabel.errors import UserError, error_summary
from halflabel.fitting import checkpoint as checkpoints
from halflabel.fitting.checkpoint import Checkpoint
from halflabel.fitting.state import TrainingState
from halflabel.fitting.step import OptimizerStep
from halflabel.system import distributed


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    return {name: tuple(value.shape) if isinstance(value, Tensor) else None for name, value in state.items()}


class Checkpointer:
    """Writes and reads the checkpoints of one training. Without a folder it does nothing.

    `batches_per_epoch` numbers the checkpoints: a later one has a higher number.
    """

    def __init__(self, folder: Path | None, state: TrainingState, step: OptimizerStep, batches_per_epoch: int) -> None:
        self.folder, self.state, self.step, self.batches_per_epoch = folder, state, step, batches_per_epoch
        self.method, self.distribution = step.method, step.distribution
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
                checkpoints.clear(self.folder)
            return
        if (checkpoint := checkpoints.load_newest(self.folder)) is not None:
            self._load(checkpoint)
        if len(set(distributed.all_gather((*self.state.position, self.state.steps)))) > 1:
            raise UserError(
                f"the processes find different checkpoints in {self.folder}",
                "put the run into a folder that all machines share",
            )

    def save(self) -> None:
        if self.folder is None or not distributed.is_main():
            return
        tensors = checkpoints.flatten("model", self.distribution.plain.state_dict())
        tensors |= checkpoints.flatten("method", self._method_state())
        tensors |= checkpoints.flatten("best", self.state.best_weights)
        if self.step.ema is not None:
            tensors |= checkpoints.flatten("average", self.step.ema.state_dict())
        optimizer_tensors, groups = checkpoints.pack_optimizer(self.step.optimizer)
        tensors |= optimizer_tensors
        meta = {
            **self.state.to_json(),
            "images_at_once": self.step.micro_batches.limit,
            "groups": groups,
            "scaler": self.step.scaler.state_dict(),
        }
        number = (self.state.epoch - 1) * (self.batches_per_epoch + 1) + self.state.batches_done
        checkpoints.save(self.folder, number, Checkpoint(tensors, meta))
        self.saved = self.state.position

    def _method_state(self) -> dict[str, Any]:
        """The state of the method; an error if a new method could not load it."""
        state = self.method.state_dict()
        shapes = _shapes(state)
        late = checkpoints.late_buffers(self.method)
        for name in (name for name in {**self.method_shapes, **shapes} if name not in late):
            if shapes.get(name) is None or shapes[name] != self.method_shapes.get(name):
                raise UserError(
                    f"{name} of the method's state is not a tensor that has the same shape from the start on, so the "
                    "training could not be resumed",
                    f"register {name.split('.')[-1]!r} as a buffer of its final shape in `start`",
                )
        return state

    def _load_method(self, state: Mapping[str, Tensor]) -> None:
        try:
            checkpoints.load_state(self.method, state)
        except RuntimeError as error:
            raise UserError(
                f"the checkpoint does not fit the method: {error}",
                "the method or its options have changed: resume with those of the run, or train again",
            ) from None

    def _load(self, checkpoint: Checkpoint) -> None:
        tensors, meta = checkpoint
        optimizer = self.step.optimizer
        try:
            checkpoints.load_state(self.distribution.plain, checkpoints.restore("model", tensors))
            self._load_method(checkpoints.restore("method", tensors))
            if self.step.ema is not None:
                checkpoints.load_state(self.step.ema, checkpoints.restore("average", tensors))
            # Whether steps are fused depends on the present device, not on that of the checkpoint.
            fused = [{name: group[name] for name in ("fused",) if name in group} for group in optimizer.param_groups]
            groups = [saved | present for saved, present in zip(meta["groups"], fused, strict=True)]
            checkpoints.unpack_optimizer(optimizer, tensors, groups)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UserError(
                f"the checkpoint belongs to another model ({error_summary(error)})", "resume with the same options"
            ) from None
        device = self.step.device
        best_weights = checkpoints.restore("best", tensors)
        self.state.best_weights = {name: value.to(device) for name, value in best_weights.items()}
        self.state.load_json(meta)
        self.step.micro_batches.limit = meta.get("images_at_once", 0)
        if meta["scaler"]:  # empty without fp16
            self.step.scaler.load_state_dict(meta["scaler"])
        self.saved = self.state.position
