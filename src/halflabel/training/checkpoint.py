"""Checkpoints: tensors as safetensors, numbers as JSON, written whole, checksummed, the last two kept. Never pickle."""

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
from torch import Tensor

from halflabel.errors import UserError
from halflabel.system.files import atomic_write

__all__ = [
    "Checkpoint",
    "clear",
    "flatten",
    "newest",
    "pack_optimizer",
    "restore",
    "save",
    "save_tensors",
    "unpack_optimizer",
]

KEPT = 2


class Checkpoint(NamedTuple):
    """What a checkpoint holds: tensors by name, and whatever JSON can say."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors to one safetensors file, whole or not at all; return its sha256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors refuses tensors that share memory, such as tied weights or an EMA that has not moved yet.
    seen: set[int] = set()
    for name, tensor in plain.items():
        if tensor.numel() and tensor.untyped_storage().data_ptr() in seen:
            plain[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    with atomic_write(path) as temporary:
        try:
            save_file(plain, temporary, dict(metadata or {}))
        except SafetensorError as error:  # it wraps what the system says
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error from None
        return _sha256(temporary)


def save(folder: Path, step: int, checkpoint: Checkpoint) -> None:
    """Write checkpoint number `step` into the folder, then remove all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".*.tmp"):  # of a run that was killed while it wrote
        stale.unlink(missing_ok=True)
    stem = f"{step:010d}"
    digest = save_tensors(checkpoint.tensors, folder / f"{stem}.safetensors")
    with atomic_write(folder / f"{stem}.json") as temporary:  # the JSON comes last: without it there is no checkpoint
        temporary.write_text(json.dumps({"sha256": digest, **checkpoint.meta}))
    for old in sorted(folder.glob("*.json"))[:-KEPT]:
        old.unlink()
    kept = {path.stem for path in folder.glob("*.json")}
    for path in folder.glob("*.safetensors"):
        if path.stem not in kept:
            path.unlink()


def clear(folder: Path) -> None:
    """Remove all checkpoints of the folder: a run that starts anew counts from 0, and must not find later ones."""
    for pattern in ("*.json", "*.safetensors"):  # the JSON first: without it there is no checkpoint
        for path in folder.glob(pattern):
            path.unlink()


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose checksum holds; a damaged one is passed over with a warning. None: there is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found = sorted(folder.glob("*.json"), reverse=True)
    for path in found:
        try:
            tensors_path = path.with_suffix(".safetensors")
            if not (path.is_file() and tensors_path.is_file()):  # a pipe would be waited for
                raise ValueError("a file of it is missing")
            meta = json.loads(path.read_text())
            if _sha256(tensors_path) != meta.pop("sha256"):
                raise ValueError("its checksum does not hold")
            return Checkpoint(load_file(tensors_path), meta)
        # A header that does not fit its tensors makes safetensors raise its own kind of error.
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            warnings.warn(f"checkpoint {path.stem} is passed over: {error}", stacklevel=2)
    if found:
        raise UserError(f"no checkpoint in {folder} is whole", "start again without --resume")
    return None


def flatten(prefix: str, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state dict under `prefix.`."""
    return {f"{prefix}.{name}": value for name, value in state.items() if isinstance(value, Tensor)}


def restore(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a checkpoint that `flatten` stored under `prefix.`."""
    start = prefix + "."
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """An optimizer's state as tensors by "number/name" and its groups as plain values."""
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
    """Put back what `pack_optimizer` took."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in restore("optimizer", tensors).items():
        number, name = key.split("/", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # A file knows no memory layout; in another one (channels last) sums may round otherwise than in the unbroken run.
    for parameter, own in optimizer.state.items():
        for name, value in own.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                own[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
