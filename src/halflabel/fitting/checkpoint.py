"""Checkpoint files: tensors as safetensors, the rest as JSON, with a checksum; never pickle. The last two are kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.system.files import atomic_write

KEPT = 2  # checkpoints in a folder


class Checkpoint(NamedTuple):
    """The content of a checkpoint: tensors by name, and everything else as JSON values."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors to one safetensors file, atomically; returns its sha256."""
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
        return _sha256(temporary)


def save(folder: Path, number: int, checkpoint: Checkpoint) -> None:
    """Write checkpoint number `number` into the folder, then remove all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.tmp"):  # of a run that was killed while writing
        leftover.unlink(missing_ok=True)
    stem = f"{number:010d}"
    digest = save_tensors(checkpoint.tensors, folder / f"{stem}.safetensors")
    with atomic_write(folder / f"{stem}.json") as temporary:  # the JSON last: without it the checkpoint does not count
        temporary.write_text(json.dumps({"sha256": digest, **checkpoint.meta}))
    for old in sorted(folder.glob("*.json"))[:-KEPT]:
        old.unlink()
    numbers = {path.stem for path in folder.glob("*.json")}
    for path in folder.glob("*.safetensors"):
        if path.stem not in numbers:
            path.unlink()


def clear(folder: Path) -> None:
    """Remove all checkpoints of the folder: a new run counts from 0, and must not resume from an old, later one."""
    for pattern in ("*.json", "*.safetensors"):  # the JSON first: without it the checkpoint does not count
        for path in folder.glob(pattern):
            path.unlink()


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint with a valid checksum, None without any; damaged ones are skipped with a warning."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    json_paths = sorted(folder.glob("*.json"), reverse=True)
    for path in json_paths:
        try:
            tensors_path = path.with_suffix(".safetensors")
            if not (path.is_file() and tensors_path.is_file()):  # reading a pipe would wait for ever
                raise ValueError("one of its files is missing")
            meta = json.loads(path.read_text())
            if _sha256(tensors_path) != meta.pop("sha256"):
                raise ValueError("its checksum does not match")
            return Checkpoint(load_file(tensors_path), meta)
        # safetensors raises its own type of error for a header that does not fit the tensors.
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            warnings.warn(f"checkpoint {path.stem} is skipped: {error}", stacklevel=2)
    if json_paths:
        raise UserError(f"all checkpoints in {folder} are damaged", "start again without --resume")
    return None


def flatten(prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state dict under `prefix.`."""
    return {f"{prefix}.{name}": value for name, value in state.items() if isinstance(value, Tensor)}


def restore(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict that `flatten` stored under `prefix.`."""
    start = prefix + "."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def late_buffers(module: nn.Module) -> set[str]:
    """The state entries that parts of the module declare in the class attribute `late_buffers`.

    Such a part registers them as None, creates them in training, and takes their shapes from the state it loads.
    """
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in getattr(type(part), "late_buffers", ())
    }


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state dict; a RuntimeError names the first entry that does not fit, on one line."""
    expected, late = module.state_dict(), late_buffers(module)
    for name in [*expected, *state]:
        if name in late:
            continue
        if name not in state:
            raise RuntimeError(f"{name} is missing")
        if name not in expected:
            raise RuntimeError(f"{name} does not belong there")
        if expected[name].shape != state[name].shape:
            shape, expected_shape = tuple(state[name].shape), tuple(expected[name].shape)
            raise RuntimeError(f"{name} has the shape {shape} instead of {expected_shape}")
    module.load_state_dict(state)


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The state of an optimizer as tensors "optimizer.NUMBER/NAME", and its parameter groups as JSON values."""
    state = optimizer.state_dict()
    tensors = {
        f"optimizer.{number}/{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, slots in state["state"].items()
        for name, value in slots.items()
    }
    return tensors, state["param_groups"]


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """Restore the state that `pack_optimizer` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in restore("optimizer", tensors).items():
        number, name = key.split("/", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # Files store no memory layout. In another layout than channels last, sums may round differently than in the
    # uninterrupted run.
    for parameter, slots in optimizer.state.items():
        for name, value in slots.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                slots[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
