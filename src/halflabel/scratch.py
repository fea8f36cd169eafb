"""Tables beyond main memory: tensors in memory when small, and else the pages of a scratch file without a name."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import IO

import torch
from torch import Tensor

from halflabel.errors import UserError

__all__ = ["check", "is_large", "zeros"]

_LARGE = 1 << 28  # bytes from which on a table is a file's pages instead of memory
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADVICE = (
    "make room there or set TMPDIR to a roomier disk; take fewer images or classes; in training, use a method that "
    "remembers nothing per image, such as em or wan"
)


def zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32, what: str = "this method would remember") -> Tensor:
    """A table of zeros on the CPU: in memory below 256 MB, and else in the temporary folder (TMPDIR).

    The file has no name: it goes when the tensor does, or the process, however it ends. Its room is taken at once, so
    that a disk which fills up later cannot kill the process; a disk without that room is refused, in words that begin
    with `what`. The system keeps as many of its pages in memory as it likes and writes the others out.

    >>> zeros((2, 3), torch.uint8).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    size = math.prod(shape) * dtype.itemsize
    if not is_large(size):
        return torch.zeros(*shape, dtype=dtype)
    check(size, what)
    with tempfile.TemporaryFile(prefix="halflabel-", buffering=0) as file:
        try:
            _take(file, size)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise _refusal(size, what) from None
        pages = mmap.mmap(file.fileno(), size)  # they stay when the file is closed
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def is_large(size: float) -> bool:
    """Whether a table of so many bytes is a file's pages instead of memory."""
    return size >= _LARGE


def check(size: float, what: str) -> None:
    """Refuse so many bytes of scratch files if the temporary folder has no room for them now."""
    if size > shutil.disk_usage(tempfile.gettempdir()).free:
        raise _refusal(size, what)


def _take(file: IO[bytes], size: int) -> None:
    """Make the file so long, and have the disk keep room for all of it where it can."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    file.truncate(size)


def _refusal(size: float, what: str) -> UserError:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    return UserError(
        f"{what} {size / 1e9:.1f} GB in scratch files in {folder}, where {free / 1e9:.1f} GB are free", _ADVICE
    )
