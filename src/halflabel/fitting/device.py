"""The device that trains and scores, its mixed precision, and deterministic algorithms."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, cast

import torch

from halflabel.errors import UserError
from halflabel.system import distributed


def choose_device(name: str, *, fall_back: bool = False) -> Literal["cpu", "cuda", "mps"]:
    """The torch device for a name: "auto" is a CUDA GPU if there is one, else the CPU.

    With `fall_back`, "cuda" on a machine without a GPU means the CPU: a run trained on a GPU can score anywhere.
    """
    if name not in ("auto", "cpu", "cuda", "mps"):
        raise UserError(f"{name!r} is not a device", "use auto, cpu, cuda or mps")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu and not fall_back:
        raise UserError("there is no CUDA device here", "use ‹device=cpu›")
    if name in ("auto", "cuda"):
        return "cuda" if has_gpu else "cpu"
    return cast(Literal["cpu", "mps"], name)


def training_device(name: str) -> torch.device:
    distributed.initialize()
    kind = choose_device(name)
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def mixed_precision(
    precision: str, device: torch.device
) -> tuple[Callable[[], AbstractContextManager[Any]], torch.amp.GradScaler]:
    """The context of forward passes, and the scaler of the loss, which changes nothing but with "fp16"."""
    if precision == "fp16" and device.type == "cpu":
        warnings.warn("fp16 needs a GPU: this training computes in float32", stacklevel=2)
        precision = "no"
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    if precision == "no":
        return nullcontext, scaler
    autocast = partial(torch.autocast, device.type, torch.float16 if precision == "fp16" else torch.bfloat16)
    try:
        autocast()
    except RuntimeError as error:
        raise UserError(f"precision {precision} is not available here: {error}", "use ‹precision=no›") from None
    return autocast, scaler


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Let torch use deterministic algorithms, and warn where it has none."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, matrix products may differ
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
