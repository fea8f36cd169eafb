"""Atomic writes, JSON, YAML and text with clear errors, and a lock between processes."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import math
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from halflabel.errors import UserError, error_summary

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # error numbers
_REMOTE = ("s3", "gs", "hf", "https", "http")
_MAX_YAML_BYTES = 1 << 20
_MAX_TEXT_BYTES = 1 << 28
_CHECKSUM_BLOCK = 1 << 22  # bytes read at a time


def read_yaml(path: Path, fix: str) -> dict[str, Any]:
    """Return the settings in a file; any failure is a UserError with the given fix."""
    text = read_text(path, fix, max_bytes=_MAX_YAML_BYTES)
    try:
        has_aliases = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        config = None if has_aliases else yaml.safe_load(text)  # ten lines with aliases can stand for billions
    except Exception as error:  # YAML's errors, and Python's for invalid dates and numbers
        raise UserError(f"{path} cannot be read ({error_summary(error)})", fix) from None
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold settings", fix)
    return config


def remote_url(path: str | Path) -> str | None:
    """Return the address if a path is one, such as s3://bucket/folder, else None; `Path` turns `//` into `/`."""
    scheme, colon, rest = os.fspath(path).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if colon and scheme in _REMOTE else None


def cache_folder(runs: Path) -> Path:
    """Return the folder in which the runs of a folder share their features."""
    return runs / "cache"


def absolute_path(path: str | Path) -> str:
    """Return a path that is valid from any folder; an address stays as it is."""
    return remote_url(path) or str(Path(path).absolute())


def refuse_remote(path: str | Path) -> None:
    """Raise UserError if a path to write to is an address."""
    if (url := remote_url(path)) is not None:
        raise UserError(f"{url} is not a local folder", "write to a local folder, then copy it (aws s3 sync)")


def write_json(path: str | Path, content: Any) -> None:
    """Write content as JSON, atomically; NaN and infinities become null."""
    text = json.dumps(to_json_value(content), indent=1, ensure_ascii=False) + "\n"
    with atomic_write(path) as temporary:
        # A path may hold bytes that are not UTF-8: Python's surrogates are written as \udcff, which JSON reads back.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, atomically; NaN, infinities and None become empty cells."""
    with (
        atomic_write(path) as temporary,
        # A file name may hold bytes that are not UTF-8; surrogateescape writes them back unchanged.
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([to_json_value(cell) for cell in row] for row in rows)


def file_crc32(path: Path, first: int = 0, length: int = sys.maxsize) -> int:
    """Return the CRC-32 of a file, or of `length` bytes from the byte `first` on."""
    crc = 0
    with open(path, "rb") as file:
        file.seek(first)
        while block := file.read(min(length, _CHECKSUM_BLOCK)):
            crc = zlib.crc32(block, crc)
            length -= len(block)
    return crc


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8: file names may hold other bytes, and JSON half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(path: str | Path, fix: str, *, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    """Read a UTF-8 file of at most `max_bytes`; any failure is a UserError with the given fix."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block, reading a device would not end
            raise UserError(f"{path} is not a file", fix)
        if status.st_size > max_bytes:
            raise UserError(f"{path} has {status.st_size} bytes, over the limit of {max_bytes}", fix)
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing", fix) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", fix) from None
    except ValueError:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text", fix) from None


def read_json(path: str | Path, fix: str) -> Any:
    """Read a JSON file; any failure is a UserError with the given fix."""
    text = read_text(path, fix)
    try:
        return parse_json(text)
    except DuplicateKey as error:
        raise UserError(f"{path}: the key {error.key!r} occurs twice", fix) from None
    except (ValueError, RecursionError):  # also numbers of thousands of digits, and deep nesting
        raise UserError(f"{path} cannot be read: it is not JSON", fix) from None


class DuplicateKey(ValueError):
    """A key that occurs twice in one JSON object."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r} occurs twice in one object")
        self.key = key


def parse_json(text: str, without: Collection[str] = (), **options: Any) -> Any:
    """Parse JSON, without the keys `without`; raise DuplicateKey where Python would keep the last value only."""

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            seen: set[str] = set()
            raise DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
        for key in without:
            content.pop(key, None)
        return content

    return json.loads(text, object_pairs_hook=make_object, **options)


def to_json_value(value: Any) -> Any:
    """Convert to what JSON can hold: NumPy numbers and paths to built-in types, NaN and infinities to None."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy and torch, numbers and arrays alike
        return to_json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def disk_full_error(path: str | Path, error: OSError) -> UserError:
    """Return the error for a disk that is full."""
    return UserError(
        f"cannot write {path}: {error.strerror}",
        "free disk space and run the same command again; to continue a training: `halflabel train --resume RUN`",
    )


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes `path` if the block succeeds; a crash never leaves a part of a file."""
    refuse_remote(path)
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # a link stays a link
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder", "name a file to write")
        if path.exists() and not path.is_file():  # a name for a device or a pipe would be replaced by a file
            raise UserError(f"{path} is a pipe or a device", "name a file to write")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise disk_full_error(path, error) from None
        raise UserError(f"cannot write {path}: {error.strerror}", "choose a folder you may write to") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes the file private; a result gets the permissions of any other new file.
        os.umask(mask := os.umask(0))
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise disk_full_error(path, error) from None
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class JobLock:
    """A lock between processes on a file, released if its process dies. Without locks `try_acquire` succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path, thread_local=False, fallback_to_soft=False)

    @property
    def is_held(self) -> bool:
        return self._lock.is_locked

    def try_acquire(self) -> bool:
        """Try to acquire the lock; False if another process holds it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError:  # no locks here
            with contextlib.suppress(OSError):
                self.path.unlink()
        return True

    def release(self) -> None:
        """Release the lock and remove its file; without a lock, do nothing."""
        if self.is_held:
            with contextlib.suppress(OSError):
                self.path.unlink()  # first: a process that opens the file after the release must find it gone
            self._lock.release()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that is written in this block; a second process is refused."""
    folder = folder.resolve()
    lock = JobLock(folder.with_name(f".{folder.name}.lock"))
    if not lock.try_acquire():
        raise UserError(f"another process is writing {folder}", "choose another folder, or wait until it has ended")
    try:
        yield
    finally:
        lock.release()
