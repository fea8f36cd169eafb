"""The files of a feature cache: values.npy, its partial file, and the notes cache.json and building.json."""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.models.feature_cache_admin import ABANDONED
from halflabel.system.files import DISK_FULL, disk_full_error, file_crc32


def allocate_values(path: Path, shape: tuple[int, ...]) -> Any:
    """A memory-mapped file with its disk space reserved: otherwise a full disk would kill the process at a write."""
    path.unlink(missing_ok=True)  # not truncated: another job may have it open
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on every system
        try:
            with open(path, "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            path.unlink()
            if error.errno in DISK_FULL:
                raise disk_full_error(path, error) from None
            raise
    return values


def remove_leftovers(folder: Path, is_locked: bool) -> None:
    """Remove the files of builds that were killed."""
    abandoned = [path for path in folder.glob("values.*.partial.npy") if _age(path) > ABANDONED]
    for path in [*abandoned, *(folder.glob(".*.tmp") if is_locked else ())]:
        path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Seconds since the file was written."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def is_valid_partial(partial: Path, note: dict[str, Any]) -> bool:
    """Whether a partial file matches the note about it."""
    try:
        values = np.lib.format.open_memmap(partial, mode="r")
        return zlib.crc32(values[: note["done"]].tobytes()) == note["crc32"] and isinstance(note["bad"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def values_checksum(path: Path) -> int:
    """The CRC-32 of a file; -1 if it cannot be read."""
    try:
        return file_crc32(path)
    except OSError:
        return -1


def open_values(path: Path) -> NDArray[Any]:
    """The values of a complete cache, memory-mapped."""
    values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return values


def read_note(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or damaged, which both mean that there is no cache."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
