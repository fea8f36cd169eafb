"""Files that are whole or not there: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from halflabel.errors import UserError

__all__ = ["plain", "replacing", "write_json"]


def write_json(path: str | Path, content: Any) -> None:
    """Write content as JSON, whole or not at all; NaN and infinities become null."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """What JSON can hold: NumPy numbers and paths as plain values, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy and torch, numbers and arrays alike
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; when the block ends well it becomes `path`, else it is removed.

    A crash at any moment leaves either the old file or the new one, never a part of one.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder", "name a file to write")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "choose a folder you may write to") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes the file private; a result is as readable as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
