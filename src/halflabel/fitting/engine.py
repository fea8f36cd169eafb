"""Device, mixed precision and loss scaling, by Accelerate; no other file imports it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from halflabel.errors import UserError
from halflabel.fitting.config import Settings
from halflabel.fitting.device import choose_device
from halflabel.system import distributed


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


def make_accelerator(settings: Settings) -> Any:
    """The Accelerator for the settings; an error for combinations that are not supported."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    if distributed.is_distributed() and settings.compile != "no":
        raise UserError(f"--compile {settings.compile} works in one process only", "leave --compile out")
    precision = settings.precision
    if precision == "fp16" and choose_device(settings.device) == "cpu":
        warnings.warn("fp16 needs a GPU: this training computes in float32", stacklevel=2)
        precision = "no"
    distributed.initialize()
    # One process may train several times, with another precision or on another device.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    try:
        return Accelerator(mixed_precision=precision, cpu=settings.device == "cpu")
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"precision {settings.precision} is not available here: {error}", "use --precision no"
        ) from None
