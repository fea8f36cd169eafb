"""How the C library hands out memory: the difference between waiting for page faults and computing, on a CPU."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # glibc's numbers for mallopt


def keep_freed_memory() -> None:
    """Let glibc keep what large tensors free, for the next ones, instead of returning it to the system each time.

    A convolutional network on a CPU allocates and frees tensors of many megabytes in every layer; by default each one
    is mapped anew and its pages are cleared by the kernel, which can take longer than the network itself. Does nothing
    on other systems. Memory in use does not shrink again until the process ends.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # a C library without it, such as musl
        return
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
