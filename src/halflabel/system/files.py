"""Files that are whole or not there: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from halflabel.errors import UserError

__all__ = ["FULL", "check_fields", "no_space", "plain", "read_json", "read_text", "replacing", "write_json"]

FULL = (errno.ENOSPC, errno.EDQUOT)
_LARGEST = 1 << 28  # bytes of a text file that is read whole


def write_json(path: str | Path, content: Any) -> None:
    """Write content as JSON, whole or not at all; NaN and infinities become null."""
    text = json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as temporary:
        # A path may hold bytes that are no UTF-8: what Python makes of them goes out as \udcff, which JSON reads back.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_text(path: str | Path, fix: str, *, most: int = _LARGEST) -> str:
    """The text of a file of at most `most` bytes in UTF-8; what keeps it from being read is an error with that fix."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, a device never ends
            raise UserError(f"{path} is not a file", fix)
        if found.st_size > most:
            raise UserError(f"{path} has {found.st_size} bytes, and {most} is the most there should be", fix)
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing", fix) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", fix) from None
    except ValueError:
        raise UserError(f"{path} cannot be read: it is no UTF-8 text", fix) from None


def read_json(path: str | Path, fix: str) -> Any:
    """The content of a JSON file; what keeps it from being read is an error with that fix."""
    text = read_text(path, fix)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also numbers of thousands of digits, and brackets as deep
        raise UserError(f"{path} cannot be read: it is no JSON", fix) from None


def check_fields(kind: type, found: Mapping[str, Any]) -> None:
    """Raise TypeError unless every value is of the type that the field of a dataclass or named tuple has."""
    hints = get_type_hints(kind)
    for name, value in found.items():
        if name not in hints:
            raise TypeError(f"there is no setting {name!r:.40}")
        if not _is_a(value, hints[name]):
            raise TypeError(f"{name} is {value!r:.40}")


def _is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_is_a(value, each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind) if isinstance(value, str) else False
    if kind is float:
        return (type(value) is float and math.isfinite(value)) or _is_a(value, int)
    if kind is int:
        return type(value) is int and abs(value) < 1 << 63
    kind = get_origin(kind) or kind
    return value is None if kind is NoneType else isinstance(value, kind)


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


def no_space(path: str | Path, error: OSError) -> UserError:
    """The error for a disk that is full."""
    return UserError(
        f"cannot write {path}: {error.strerror}",
        "make room and do the same again; a training goes on with `halflabel train --resume RUN`",
    )


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
        if error.errno in FULL:
            raise no_space(path, error) from None
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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL:
            raise no_space(path, error) from None
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
