"""Finds state that a method keeps in plain attributes, where no checkpoint contains it."""

from __future__ import annotations

import pickle
from contextlib import suppress
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from halflabel.fitting.callbacks import Callback, EpochLog

_OF_MODULES = {*vars(nn.Module()), "training"}  # what torch itself keeps in a module


class StateWatch(Callback):
    """Compares the plain attributes of a method and its parts between steps; `changed` names those that change.

    Buffers and parameters are in the state and are not compared. A module may name attributes that it recomputes from
    its state in the class attribute `recomputed`.
    """

    def __init__(self, method: nn.Module) -> None:
        self.method = method
        self.before: dict[tuple[str, str], bytes] | None = None  # (module, Class.attribute) -> fingerprint
        self.changed: set[str] = set()

    def on_step_end(self, images: int, loss: float | None) -> None:
        self.compare()

    def on_epoch_end(self, log: EpochLog) -> None:
        self.compare()

    def compare(self) -> None:
        now = {
            (path, f"{type(module).__name__}.{name}"): _fingerprint(value)
            for path, module in self.method.named_modules()
            for name, value in vars(module).items()
            if name not in _OF_MODULES and name not in getattr(module, "recomputed", ())
        }
        if self.before is not None:
            self.changed |= {key[1] for key in {*self.before, *now} if self.before.get(key) != now.get(key)}
        self.before = now


def _fingerprint(value: Any) -> bytes:
    """Bytes that are equal for equal values."""
    buffer = BytesIO()
    with suppress(pickle.PicklingError, AttributeError, TypeError):  # then what comes before tells
        _Fingerprint(buffer).dump(value)
    return buffer.getvalue()


class _Fingerprint(pickle.Pickler):
    """Modules and functions are compared by identity, tensors by address and version."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return tuple(value.shape), value.data_ptr(), value._version
        if isinstance(value, torch.Generator):
            return value.get_state().tolist()
        return id(value) if callable(value) else None
