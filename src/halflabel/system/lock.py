"""A lock that jobs share through a file, and that the system gives back with the process, however it ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

__all__ = ["Lock"]

_files: set[IO[bytes]] = set()  # of the locks that this process holds


class Lock:
    """Held by one at a time: flock on a file, which is there while someone holds it or was killed doing so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def take(self) -> bool:
        """Whether one need not wait: the lock is `held` now, or it cannot be (the system or its disk has no locks)."""
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = open(self.path, "ab+")  # noqa: SIM115  (open for as long as it is held)
            except OSError:
                return True
            try:
                if fcntl is None:
                    raise OSError
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            except OSError:
                file.close()
                with contextlib.suppress(OSError):
                    self.path.unlink()
                return True
            if self._is_there(file):
                self._file = file
                _files.add(file)
                return True
            file.close()  # whoever held it has just removed it

    def release(self) -> None:
        if self._file is None or fcntl is None:
            return
        file, self._file = self._file, None
        _files.discard(file)
        with contextlib.suppress(OSError):
            if self._is_there(file):
                self.path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)
        file.close()

    def _is_there(self, file: IO[bytes]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except OSError:
            return False


def _drop() -> None:
    """Close what a worker inherits: it would hold the locks of a process that was killed until it ends itself."""
    for file in _files:
        file.close()
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop)
