"""Tables beyond main memory: tensors in memory when small, and else the pages of a scratch file without a name."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
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
    """A table of zeros on the CPU: in memory below 256 MB, and else in a scratch file.

    It lies in TMPDIR where that is set, else in the temporary folder, or in /var/tmp if that folder is memory itself
    (tmpfs). It has no name: it goes when the tensor does, or the process, however it ends. Its room is taken at once,
    so that a disk which fills up later cannot kill the process; a disk without that room is refused, in words that
    begin with `what`. The system keeps as many of its pages in memory as it likes and writes the others out.

    >>> zeros((2, 3), torch.uint8).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    size = math.prod(shape) * dtype.itemsize
    if not is_large(size):
        return torch.zeros(*shape, dtype=dtype)
    check(size, what)
    with tempfile.TemporaryFile(prefix="halflabel-", buffering=0, dir=_folder()) as file:
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
    """Refuse so many bytes of scratch files if there is no room for them now."""
    if size > _free(_folder()):
        raise _refusal(size, what)


def _folder() -> str:
    """Where scratch files go."""
    usual = tempfile.gettempdir()
    asked = os.environ.get("TMPDIR")  # where that folder is not there, Python passes it over
    if (asked and os.path.realpath(asked) == os.path.realpath(usual)) or not _is_memory(usual):
        return usual
    roomy = "/var/tmp"
    return roomy if os.access(roomy, os.W_OK) and not _is_memory(roomy) else usual


def _free(folder: str) -> float:
    """Bytes that files there may take; of a folder that is memory, no more than memory has."""
    free = shutil.disk_usage(folder).free
    return min(free, _available()) if _is_memory(folder) else free


def _is_memory(folder: str) -> bool:
    """Whether files in a folder are held in main memory (tmpfs), as far as the system tells."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    mounts = {fields[1]: fields[2] for fields in (line.split(" ") for line in lines) if len(fields) > 2}
    place = Path(os.path.realpath(folder))
    nearest = next((str(part) for part in (place, *place.parents) if str(part) in mounts), "")
    return mounts.get(nearest) in ("tmpfs", "ramfs")


def _available() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), math.inf)


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
    folder = _folder()
    free = _free(folder) / 1e9
    return UserError(f"{what} {size / 1e9:.1f} GB in scratch files in {folder}, where {free:.1f} GB are free", _ADVICE)
