"""How many threads matrix products may use: on a busy machine several threads wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def free_cores() -> int:
    """Return how many cores of this process other processes leave free, by the load of the last minute; at least 1."""
    machine = os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, min(cores, round(machine - load + 1)))  # this process is part of the load


@contextmanager
def use_free_cores() -> Iterator[None]:
    """Let torch use as many threads as there are free cores: on a busy machine two can be 40 times slower than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, free_cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)
