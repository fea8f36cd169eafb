"""The lock of a run folder against a second training, and the checksums of its model. Used by `folder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.system import distributed
from halflabel.system.files import JobLock, file_crc32, read_json, write_json

__all__ = ["training_lock", "verify_checksum", "write_checksums"]

_FILE = "checksums.json"


@contextmanager
def training_lock(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a run folder, and call `check` once it is held; a second training there is refused."""
    folder = folder.resolve()
    lock = JobLock(folder.with_name(f".{folder.name}.lock"))

    def acquire() -> None:
        if not lock.try_acquire():
            raise UserError(f"another training is writing {folder}", "choose another --out, or wait until it has ended")
        check()

    try:
        distributed.run_on_main(acquire)
        yield
    finally:
        lock.release()


def write_checksums(folder: Path, *names: str) -> None:
    """Write the CRC-32 of files of a run, beside those that are written already."""
    write_json(folder / _FILE, _read(folder) | {name: file_crc32(folder / name) for name in names})


def verify_checksum(path: Path) -> None:
    """Raise UserError if a file of a run does not match its checksum; a file of an older run has none."""
    expected = _read(path.parent).get(path.name)
    if expected is not None and path.is_file() and file_crc32(path) != expected:
        raise UserError(f"{path} is damaged: its checksum differs", "copy the run again, or train again")


def _read(folder: Path) -> dict[str, Any]:
    fix = "copy the run again, or train again"
    checksums = read_json(folder / _FILE, fix) if (folder / _FILE).exists() else {}
    if not isinstance(checksums, dict):
        raise UserError(f"{folder / _FILE} is damaged", fix)
    return checksums
