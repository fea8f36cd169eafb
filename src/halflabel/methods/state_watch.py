"""Finds state that a method keeps in plain attributes, where no checkpoint contains it."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MAX_OBSERVATIONS = 6  # after so many comparisons without a change, no more are made
_ITEMS = 1000  # compared at most, of a list or an array
_DEPTH = 4  # of lists in lists and objects in objects
_OF_MODULES = {*vars(nn.Module()), "training"}  # what torch itself keeps in a module


class StateWatch:
    """Compares the plain attributes of a method and its parts between steps.

    Buffers and parameters are in the state and are not compared. A module may name attributes that it recomputes from
    its state in the class attribute `recomputed`. Tensors are compared by address and version, so that a
    comparison never waits for a GPU.
    """

    def __init__(self, method: nn.Module) -> None:
        self.method = method
        self.before: dict[tuple[str, str], Any] | None = None  # (module, Class.attribute) -> fingerprint
        self.observations = 0
        self.reported: set[str] = set()

    def newly_changed(self) -> list[str]:
        """Return the attributes that have changed since the last call, as Class.attribute, each only once."""
        if self.observations > _MAX_OBSERVATIONS:
            return []
        self.observations += 1
        now = {
            (path, f"{type(module).__name__}.{name}"): _fingerprint(value, _DEPTH)
            for path, module in self.method.named_modules()
            for name, value in vars(module).items()
            if name not in _OF_MODULES and name not in getattr(module, "recomputed", ())
        }
        before, self.before = self.before, now
        if before is None:
            return []
        changed = {key[1] for key in {*before, *now} if before.get(key) != now.get(key)} - self.reported
        self.reported |= changed
        return sorted(changed)


def _fingerprint(value: Any, depth: int) -> Any:
    """Return something that is equal for equal values; a change in a large value may be missed."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)  # NaN is equal to NaN
    if isinstance(value, Tensor):
        return tuple(value.shape), value.data_ptr(), value._version
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        return value.shape, zlib.crc32(np.ascontiguousarray(flat[:: max(len(flat) // _ITEMS, 1)]).tobytes())
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if depth == 0 or isinstance(value, type | nn.Module) or callable(value):
        return id(value)
    if isinstance(value, Mapping):
        return len(value), [(_key(key), _fingerprint(item, depth - 1)) for key, item in _first(value.items())]
    if isinstance(value, list | tuple | deque):
        return len(value), [_fingerprint(item, depth - 1) for item in _first(value)]
    if isinstance(value, set | frozenset):
        return len(value), sorted(map(_key, value))[:_ITEMS]
    if hasattr(value, "__dict__"):
        return id(value), [(name, _fingerprint(item, depth - 1)) for name, item in _first(vars(value).items())]
    return repr(value)[:_ITEMS]


def _key(value: Any) -> str:
    return repr(value)[:100]


def _first(items: Any) -> list[Any]:
    return [item for _, item in zip(range(_ITEMS), items, strict=False)]
