"""The lock of a run folder against a second training, and the checksums of its files. Used by `folder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.system import distributed
from halflabel.system.files import JobLock, file_crc32, read_json, write_json

_FILE = "checksums.json"
_FIX = f"copy the run again, or train again; if you changed the file on purpose, remove its line from {_FILE}"


@contextmanager
def training_lock(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a run folder, and call `check` once it is held; a second training there is refused."""
    folder = folder.resolve()
    lock = JobLock(folder.with_name(f".{folder.name}.lock"))

    def acquire() -> None:
        if not lock.try_acquire():
            raise UserError(f"another training is writing {folder}", "choose another ‹out›, or wait until it has ended")
        check()

    try:
        distributed.run_on_main(acquire)
        yield
    finally:
        lock.release()


def write_checksums(folder: Path, *names: str) -> None:
    """Write the CRC-32 of files of a run, beside those that are written already."""
    write_json(folder / _FILE, _read(folder) | {name: file_crc32(folder / name) for name in names})


@contextmanager
def with_checksum(path: Path) -> Iterator[None]:
    """Write a file of a run in this block; its checksum is removed before, so that a kill between leaves none."""
    others = {name: value for name, value in _read(path.parent).items() if name != path.name}
    if others or (path.parent / _FILE).exists():
        write_json(path.parent / _FILE, others)
    yield
    write_checksums(path.parent, path.name)


def verify_checksum(path: Path) -> None:
    """Raise UserError if a file of a run does not match its checksum; a file that was just written may have none."""
    expected = _read(path.parent).get(path.name)
    if expected is not None and path.is_file() and file_crc32(path) != expected:
        raise UserError(f"{path} is damaged: its checksum differs", _FIX)


def _read(folder: Path) -> dict[str, Any]:
    checksums = read_json(folder / _FILE, _FIX) if (folder / _FILE).exists() else {}
    if not isinstance(checksums, dict):
        raise UserError(f"{folder / _FILE} is damaged", _FIX)
    return checksums
