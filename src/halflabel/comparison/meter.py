"""Meter: seconds and peak memory of a block of code."""

from __future__ import annotations

import resource
import sys
import time

import torch


class Meter:
    """Seconds and peak memory of a block: memory allocated on the GPU, or on a CPU the peak of the whole process."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds, self.memory, self.kind = 0.0, 0, ""

    def __enter__(self) -> Meter:
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.memory, self.kind = int(torch.cuda.max_memory_allocated()), "peak allocated on the GPU"
        else:
            unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, Linux KiB
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self.memory, self.kind = peak * unit, "peak resident memory of the process so far"
        self.seconds = time.perf_counter() - self._started
