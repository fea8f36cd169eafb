"""Checkpoints, from which a resumed training ends with the same weights bit for bit, and files of weights.

Nothing in a file can run code: checkpoints are loaded with `weights_only`, weights are safetensors.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halflabel.errors import UserError, error_summary
from halflabel.fitting.callbacks import EpochLog
from halflabel.fitting.step import OptimizerStep
from halflabel.system.files import atomic_write, file_crc32

KEPT = 2  # checkpoints in a folder
_CHECKSUM_BYTES = 4  # at the end of a checkpoint: the CRC-32 of the bytes before


def save(folder: Path, number: int, content: Mapping[str, Any]) -> None:
    """Write checkpoint number `number` into the folder, then remove all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.tmp"):  # of a run that was killed while writing
        leftover.unlink(missing_ok=True)
    with atomic_write(folder / f"{number:010d}.pt") as temporary:
        with open(temporary, "wb") as file:  # into a path, torch would not tell that the disk is full
            torch.save(dict(content), file)
        checksum = file_crc32(temporary)
        with open(temporary, "ab") as file:
            file.write(checksum.to_bytes(_CHECKSUM_BYTES))
    for old in sorted(folder.glob("*.pt"))[:-KEPT]:
        old.unlink()


def clear(folder: Path) -> None:
    """Remove all checkpoints of the folder: a new run counts from 0, and must not resume from an old, later one."""
    for path in folder.glob("*.pt"):
        path.unlink()


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU; any error means that it is damaged."""
    if not path.is_file():  # reading a pipe would wait for ever
        raise ValueError("it is not a file")
    length = max(path.stat().st_size - _CHECKSUM_BYTES, 0)
    with open(path, "rb") as file:
        file.seek(length)
        checksum = file.read()
    if checksum != file_crc32(path, 0, length).to_bytes(_CHECKSUM_BYTES):
        raise ValueError("its checksum does not match")
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def load_newest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint with a valid checksum, None without any; damaged ones are skipped with a warning."""
    paths = sorted(folder.glob("*.pt"), reverse=True)
    for path in paths:
        try:
            return load(path)
        except Exception as error:  # whatever torch raises for a file that it cannot read
            warnings.warn(f"checkpoint {path.stem} is skipped: {error_summary(error)}", stacklevel=2)
    if paths:
        raise UserError(f"all checkpoints in {folder} are damaged", "start again without ‹resume›")
    return None


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors refuses tensors that share memory, such as tied weights.
    storages: set[int] = set()
    for name, tensor in on_cpu.items():
        if tensor.numel() and tensor.untyped_storage().data_ptr() in storages:
            on_cpu[name] = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
    with atomic_write(path) as temporary:
        try:
            save_file(on_cpu, temporary, dict(metadata or {}))
        except SafetensorError as error:  # it wraps the error of the system
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) if code else error from None


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state dict; a RuntimeError says on one line what does not fit."""
    try:
        module.load_state_dict(state)
    except RuntimeError as error:  # torch lists all that does not fit
        raise RuntimeError(str(error).partition(":\n")[2].strip().partition("\n")[0] or str(error)) from None


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

    def to_dict(self) -> dict[str, Any]:
        """The state for a checkpoint; the log is text, as NumPy's numbers may be in it."""
        return {**vars(self), "log": json.dumps(self.log)}

    def load_dict(self, content: Mapping[str, Any], device: torch.device) -> None:
        vars(self).update(content)
        self.loss_sum = self.loss_sum.to(device)
        self.best_weights = {name: value.to(device) for name, value in self.best_weights.items()}
        self.log = [EpochLog(line) for line in json.loads(content["log"])]


def capture(state: TrainingState, step: OptimizerStep) -> dict[str, Any]:
    """Return all that a training needs to go on from here."""
    return {
        "model": step.model.state_dict(),
        "method": step.method.state_dict(),
        "average": {} if step.ema is None else step.ema.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "scaler": step.scaler.state_dict(),
        "state": state.to_dict(),
        "images_at_once": step.micro_batches.limit,
    }


def restore(content: Mapping[str, Any], state: TrainingState, step: OptimizerStep) -> None:
    """Load what `capture` returned; a UserError if it is of another training."""
    try:
        load_state(step.model, content["model"])
        try:
            load_state(step.method, content["method"])
        except RuntimeError as error:
            raise UserError(
                f"the checkpoint does not fit the method: {error}",
                "the method or its options have changed: resume with those of the run, or train again",
            ) from None
        if step.ema is not None:
            load_state(step.ema, content["average"])
        for saved, present in zip(content["optimizer"]["param_groups"], step.optimizer.param_groups, strict=True):
            if "fused" in present:  # whether steps are fused depends on the present device
                saved["fused"] = present["fused"]
        step.optimizer.load_state_dict(content["optimizer"])
        state.load_dict(content["state"], step.device)
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"the checkpoint belongs to another model ({error_summary(error)})", "resume with the same options"
        ) from None
    step.micro_batches.limit = content["images_at_once"]
    if content["scaler"]:  # empty without fp16
        step.scaler.load_state_dict(content["scaler"])
