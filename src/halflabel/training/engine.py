"""The engine of training, Accelerate: this file alone imports it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from halflabel.errors import UserError
from halflabel.system import distributed as processes
from halflabel.training.settings import Settings

__all__ = ["repeatable", "start_engine"]


@contextmanager
def repeatable() -> Iterator[None]:
    """Let torch take the ways that give the same each time, and warn where it has none."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or products of matrices may differ
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def start_engine(settings: Settings) -> Any:
    """Device, autocast and loss scaling for these settings; combinations that cannot be are refused."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import AutocastKwargs

    if processes.several() and settings.compile != "no":
        raise UserError(f"--compile {settings.compile} is for one process", "leave --compile out")
    if settings.shard and (settings.ema or settings.precision == "fp16"):
        raise UserError("--shard goes neither with --ema nor with --precision fp16", "use --ema 0 and --precision bf16")
    processes.start()
    # One process may train several times, with another precision or on another device.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    try:
        # A recorded graph would go on with the cast weights that autocast kept from its recording: keep none.
        casts = AutocastKwargs(cache_enabled=settings.compile not in ("graph", "full"))
        return Accelerator(mixed_precision=settings.precision, cpu=settings.device == "cpu", kwargs_handlers=[casts])
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"precision {settings.precision} is not to be had here: {error}", "use --precision no"
        ) from None
