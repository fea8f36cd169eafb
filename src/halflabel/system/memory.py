"""How much memory there is, and how the C library hands it out: on a CPU, waiting for page faults or computing."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory", "physical"]

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


def physical() -> int:
    """Bytes of memory that the machine has; 16 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 34
