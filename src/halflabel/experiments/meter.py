"""What a block of code takes: seconds and memory."""

from __future__ import annotations

import time
from pathlib import Path

import torch

__all__ = ["Meter"]


class Meter:
    """Seconds and peak memory of a block: what was allocated on the GPU, or by how much resident memory grew.

    On Linux the system's high-water mark is set back first, and memory that was freed earlier handed back, so that one
    task's peak does not hide in another's. Worker processes are not counted. Elsewhere there is no figure.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds, self.memory, self.kind = 0.0, None if device == "cpu" else 0, ""

    def __enter__(self) -> Meter:
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:
            _hand_back()
            self._before = _resident("VmRSS") if _reset_peak() else None
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.memory, self.kind = int(torch.cuda.max_memory_allocated()), "peak allocated on the GPU"
        elif self._before is not None and (peak := _resident("VmHWM")) is not None:
            self.memory, self.kind = max(peak - self._before, 0), "growth of resident memory"
        self.seconds = time.perf_counter() - self._started


def _hand_back() -> None:
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident(name: str) -> int | None:
    """A line of /proc/self/status in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
