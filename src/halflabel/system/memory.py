"""Main memory: how much there is, how the C library returns it, and scratch files for tables that do not fit.

torch and NumPy are imported only when a table is made, so that the command line starts quickly.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from halflabel.errors import UserError

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray
    from torch import Tensor

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # parameter numbers of glibc's mallopt
_SCRATCH_BYTES = 1 << 28  # tables of this size and larger go to a scratch file
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What the system, torch and OpenBLAS say when memory for libraries, threads or tensors is refused.
_NO_MEMORY = re.compile(
    "failed to map segment|[Cc]annot allocate memory|can't allocate memory|can't start new thread|bad_alloc"
    "|launch worker thread"
)
_FIX = (
    "free space there or set TMPDIR to a larger disk; use fewer images or classes; in training, use a method that "
    "stores nothing per image, such as em or wan"
)


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of freed large tensors: mapping them anew can take longer than the network itself."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # a C library without mallopt, such as musl
        return
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def lacks_memory(error: BaseException) -> bool:
    """Return whether there was not enough memory; libraries raise ImportError, RuntimeError and OSError for it, too."""
    return isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def physical_memory() -> int:
    """Return the bytes of memory that the machine has; 16 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 1 << 34


def scratch_zeros(
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    what: str = "this method would store",
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return a table of zeros (float32 by default) on a device; on the CPU in a scratch file from 256 MB on."""
    import torch

    if torch.device(device).type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    like = torch.empty(0, dtype=torch.float32 if dtype is None else dtype).numpy()
    return torch.from_numpy(scratch_array(shape, like.dtype, what))


def scratch_array(
    shape: Sequence[int], dtype: DTypeLike = "float32", what: str = "the scores of the images take"
) -> NDArray[Any]:
    """Return a table of zeros as `scratch_zeros`, without torch."""
    import numpy as np

    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not is_large(size):
        return np.zeros(shape, dtype)
    return np.frombuffer(_scratch_pages(size, what), dtype).reshape(shape)


def _scratch_pages(size: int, what: str) -> mmap.mmap:
    """Return so many bytes of a scratch file in TMPDIR or /var/tmp; a UserError that begins with `what` if it is full.

    The file has no name: it disappears with the tensor or with the process, however that ends. Its disk space is
    reserved at once, so that a disk that fills up later cannot kill the process.
    """
    check_scratch_space(size, what)
    with tempfile.TemporaryFile(prefix="halflabel-", buffering=0, dir=_scratch_folder()) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except (AttributeError, OSError) as error:  # systems and disks that cannot reserve
            if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise _no_space(size, what) if error.errno in _DISK_FULL else error from None
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)  # the mapping outlives the closed file


def is_large(size: float) -> bool:
    """Return whether a table of `size` bytes goes to a scratch file."""
    return size >= _SCRATCH_BYTES


def check_scratch_space(size: float, what: str) -> None:
    """Raise a UserError that begins with `what` if `size` bytes of scratch files do not fit on the disk now."""
    if size > shutil.disk_usage(_scratch_folder()).free:
        raise _no_space(size, what)


def _scratch_folder() -> str:
    """Return TMPDIR if it is a folder, else /var/tmp, as the temporary folder may be in memory."""
    stated, on_disk = os.environ.get("TMPDIR"), "/var/tmp"
    is_stated = stated is not None and os.path.isdir(stated)
    return tempfile.gettempdir() if is_stated or not os.access(on_disk, os.W_OK) else on_disk


def _no_space(size: float, what: str) -> UserError:
    folder = _scratch_folder()
    free = shutil.disk_usage(folder).free / 1e9
    return UserError(f"{what} {size / 1e9:.1f} GB in scratch files in {folder}, where {free:.1f} GB are free", _FIX)
