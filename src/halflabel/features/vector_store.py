"""Numbers per image on the disk: computed once for a key, continued after a kill, checked when they are used again.

A store is the folder NAME-DIGEST with a digest of its key, which is everything that the values depend on.

    about.json    the key; its modification time is the time of last use
    values.npy    (N, …), of full size from the beginning, memory-mapped
    digests.npy   (N,) content digests of the images that the values were computed from, 0 where there is none
    blocks.jsonl  a line per block of computed rows: first row, end, CRC-32, and why images could not be read

Rows without a line, or whose bytes do not match it, are computed again, and only these. Importing this module does not
import torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import NoReadableImage, UserError
from halflabel.system import distributed
from halflabel.system.files import (
    DISK_FULL,
    JobLock,
    atomic_write,
    cache_folder,
    disk_full_error,
    to_json_value,
    write_json,
)

_ABOUT, _VALUES, _DIGESTS, _BLOCKS, _LOCK = "about.json", "values.npy", "digests.npy", "blocks.jsonl", "building.lock"
_OWN_FILES = re.compile(r"\.?(about|blocks|building|digests|values)\..*")
_POLL_SECONDS = 0.5  # between two checks whether another job has ended
_PASSES = 2  # the second one is for rows that another job without a lock has overwritten

Reasons = dict[int, Sequence[str]]  # number of an image that could not be read -> image, path, reason


class Block(NamedTuple):
    """The numbers of some images, the values (B, …) of the readable ones, why the others are not, and digests (B,)."""

    images: NDArray[np.int64]
    values: NDArray[Any] | None
    bad: Reasons
    digests: NDArray[np.uint64] | None = None


@dataclass
class VectorStore:
    """The values of N images for one key; stores of one name and other keys stand side by side.

    `fault()` is None for a complete store; else `build()` computes what is missing. Several processes of a job call the
    methods together, and the first one writes.
    """

    parent: Path
    name: str
    key: Mapping[str, Any]
    rows: int
    title: str = "features"  # of the values, in messages
    about: Mapping[str, Any] = field(default_factory=dict)  # recorded beside the key, for listings

    @classmethod
    def at(cls, folder: Path) -> VectorStore | None:
        """Return the store in a folder; None if there is none, or if the folder was renamed."""
        note = _read_note(folder / _ABOUT)
        try:
            store = cls(folder.parent, note["name"], dict(note["key"]), int(note["rows"]), about=dict(note["about"]))
        except (KeyError, TypeError, ValueError):
            return None
        return store if store.folder == folder and not folder.is_symlink() else None

    @property
    def folder(self) -> Path:
        key = json.dumps(to_json_value(self.key), sort_keys=True)
        return self.parent / f"{self.name}-{sha256(key.encode()).hexdigest()[:8]}"

    def values(self) -> NDArray[Any]:
        """Return the values (N, …), memory-mapped; changes to them are not written."""
        values: NDArray[Any] = np.load(self.folder / _VALUES, mmap_mode="c", allow_pickle=False)
        return values

    def digests(self) -> NDArray[np.uint64]:
        """Return the content digests (N,) of the images; 0 where none was given."""
        digests: NDArray[np.uint64] | None = _map(self.folder / _DIGESTS)
        return np.zeros(self.rows, np.uint64) if digests is None else digests

    def unreadable(self) -> Reasons:
        """Return the images that could not be read, by number, with the reason."""
        return {row: reason for _, _, _, bad in self._blocks() for row, reason in bad.items()}

    def fault(self) -> str | None:
        """Return why values must be computed; None if all are valid, "" if they were not computed yet."""
        if not self._is_noted() or self.noted_rows < self.rows:
            return ""
        return "bytes do not match their checksum" if self._check()[0].any() else None

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Remove the notes of the blocks that hold any of these rows, which are then computed again."""
        blocks = self._blocks()
        kept = [block for block in blocks if not ((block[0] <= rows) & (rows < block[1])).any()]
        if len(kept) < len(blocks):
            with atomic_write(self.folder / _BLOCKS) as temporary:
                temporary.write_text("".join(json.dumps(block) + "\n" for block in kept))

    def build(
        self,
        compute: Callable[[NDArray[np.int64]], Iterator[Block]],
        *,
        batch_size: int = 1,
        progress: Callable[[int], None] = lambda done: None,
        message: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Write the blocks that `compute` yields for the images that are missing, in whole batches; other jobs wait."""
        with self._exclusive(progress, message):
            fault = distributed.run_on_main(self.fault)
            if fault is None:
                progress(self.rows)
                return
            if fault:
                message(f"the cached {self.title} are stale ({fault}): computing them again")
            for _ in range(_PASSES):
                missing = distributed.run_on_main(partial(self._begin, batch_size))
                self._write(compute(missing), self.rows - len(missing), progress)
                if distributed.run_on_main(self.fault) is None:
                    return
                if not distributed.run_on_main(self._blocks):
                    raise NoReadableImage("not one image could be read", "check the image folder")
        raise UserError(f"{self.folder} does not keep what is written to it", "check the disk, or use another folder")

    def mark_used(self) -> None:
        """Set the time of last use; on a read-only disk it stays."""
        with suppress(OSError):
            os.utime(self.folder / _ABOUT)

    @property
    def last_used(self) -> float:
        """Seconds since 1970."""
        return (self.folder / _ABOUT).stat().st_mtime

    @property
    def disk_bytes(self) -> int:
        """The size on the disk, with the stores inside."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def noted_rows(self) -> int:
        """The number of rows that were computed; their checksums are not checked."""
        return min(self.rows, sum(end - first for first, end, _, _ in self._blocks()))

    def is_being_built(self) -> bool:
        """Return whether another job holds the lock of this store or of one inside."""
        for path in self.folder.rglob(_LOCK):
            lock = JobLock(path)
            if not lock.try_acquire():
                return True
            lock.release()
        return False

    def remove(self) -> None:
        """Remove the store and the network that computed it; an error if a job builds it or it holds other files."""
        name = self.folder.name
        if self.is_being_built():
            raise UserError(f"{name} is being built", "wait until that job has ended, or end it")
        paths = self.folder.rglob("*")
        if others := [path.name for path in paths if not (_OWN_FILES.fullmatch(path.name) or VectorStore.at(path))]:
            names = ", ".join(others[:3])
            raise UserError(f"{name} holds other files too ({names})", "look into it, and remove it by hand")
        shutil.rmtree(self.folder)
        if network := self.about.get("network"):  # an exported file beside the store
            (self.parent / Path(str(network)).name).unlink(missing_ok=True)

    def _is_noted(self) -> bool:
        note = _read_note(self.folder / _ABOUT)
        return bool(note.get("key") == to_json_value(self.key) and note.get("rows") == self.rows)

    def _blocks(self) -> list[tuple[int, int, int, Reasons]]:
        """Return first row, end, checksum and unreadable images of each block, up to the first damaged line."""
        blocks: list[tuple[int, int, int, Reasons]] = []
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            for line in (self.folder / _BLOCKS).read_text().splitlines():
                first, end, crc, bad = json.loads(line)
                if 0 <= first < end <= self.rows:
                    blocks.append((first, end, crc, {int(row): list(reason) for row, reason in bad.items()}))
        return blocks

    def _check(self) -> tuple[NDArray[np.bool_], Reasons]:
        """Return which rows are in no block that matches its checksum, and the unreadable images of the others."""
        is_missing, unreadable = np.ones(self.rows, np.bool_), Reasons()
        values, digests = _map(self.folder / _VALUES), self.digests()
        if values is not None and len(values) == len(digests) == self.rows:
            for first, end, crc, bad in self._blocks():
                if _checksum(values[first:end], digests[first:end], bad) == crc:
                    is_missing[first:end] = False
                    unreadable |= bad
        return is_missing, unreadable

    @contextmanager
    def _exclusive(self, progress: Callable[[int], None], message: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other job builds the store, then lock it, where locks work."""
        lock, waits = JobLock(self.folder / _LOCK), False
        try:
            while not distributed.run_on_main(lock.try_acquire):
                if not waits:
                    message(f"another job is computing these {self.title}: waiting")
                waits = True
                progress(self.noted_rows)
                time.sleep(_POLL_SECONDS)
            if lock.is_held:  # otherwise another job may be writing them
                for leftover in self.folder.glob(".*.tmp"):  # of a build that was killed
                    leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def _begin(self, batch_size: int) -> NDArray[np.int64]:
        """Keep the whole batches that are valid; return the other rows."""
        if not self._is_noted():
            for name in (_VALUES, _DIGESTS, _BLOCKS):
                (self.folder / name).unlink(missing_ok=True)
            note = {"name": self.name, "key": self.key, "rows": self.rows, "about": self.about}
            write_json(self.folder / _ABOUT, note)
        is_missing, bad = self._check()
        batches = np.arange(self.rows) // batch_size
        is_missing = np.isin(batches, batches[is_missing])
        (self.folder / _BLOCKS).unlink(missing_ok=True)
        if not is_missing.all():
            self._note(_map(self.folder / _VALUES), np.flatnonzero(~is_missing), bad)
        return np.flatnonzero(is_missing)

    def _write(self, blocks: Iterator[Block], done: int, progress: Callable[[int], None]) -> None:
        values, stored_digests = _map(self.folder / _VALUES), None
        try:
            for images, computed, bad, digests in blocks:
                if computed is not None:
                    if values is None or not values.flags.writeable:
                        values = self._open(_VALUES, computed)
                    values[np.setdiff1d(images, list(bad))] = computed
                if digests is not None:
                    if stored_digests is None:
                        stored_digests = self._open(_DIGESTS, digests)
                    stored_digests[images] = digests
                if values is not None:  # images before the first readable one are left to the next pass
                    self._note(values, images, bad)
                done += len(images)
                progress(done)
            for array in (values, stored_digests):
                if array is not None and array.flags.writeable:
                    array.flush()
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_full_error(self.folder, error) from None
            raise

    def _open(self, name: str, computed: NDArray[Any]) -> Any:
        """Return a memory-mapped file; disk space of a new one is reserved, as a full disk would kill writers."""
        path, shape = self.folder / name, (self.rows, *computed.shape[1:])
        stored = _map(path)
        if stored is not None and (stored.shape, stored.dtype) == (shape, computed.dtype):
            return np.load(path, mmap_mode="r+", allow_pickle=False)
        path.unlink(missing_ok=True)  # not truncated: another job may have it open
        values = np.lib.format.open_memmap(path, mode="w+", dtype=computed.dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on every system
            try:
                with open(path, "rb+") as file:
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
            except OSError:
                path.unlink()
                raise
        return values

    def _note(self, values: NDArray[Any], rows: NDArray[np.int64], bad: Reasons) -> None:
        """Append a line for each run of consecutive rows."""
        digests = self.digests()
        with open(self.folder / _BLOCKS, "a") as file:
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                first, end = int(run[0]), int(run[-1]) + 1
                within = {row: reason for row, reason in bad.items() if first <= row < end}
                checksum = _checksum(values[first:end], digests[first:end], within)
                file.write(json.dumps([first, end, checksum, within]) + "\n")


def stores_in(parent: Path) -> list[VectorStore]:
    """Return the stores in a folder."""
    folders = sorted(parent.iterdir()) if parent.is_dir() else []
    return [store for folder in folders if (store := VectorStore.at(folder)) is not None]


def find_stores(place: Path) -> list[VectorStore]:
    """Return the stores in a folder, in the cache in it or, for a run, in the cache beside the run; last used first."""
    if not place.is_dir():
        raise UserError(f"{place} is not a folder", "name the folder with the runs, a run, or the cache itself")
    parents = [place, cache_folder(place)]
    if (place / "config.yaml").exists():
        parents.append(cache_folder(place.resolve().parent))
    stores = {store.folder.resolve(): store for parent in parents for store in stores_in(parent)}
    return sorted(stores.values(), key=lambda store: -store.last_used)


def select_stores(stores: Sequence[VectorStore], which: str) -> list[VectorStore]:
    """Return "all" stores, the "older" ones (others of the same images were used later), or one by part of its name."""
    if which == "all":
        return list(stores)
    if which == "older":
        latest = {store.name: store for store in reversed(stores)}
        return [store for store in stores if store is not latest[store.name]]
    named = [store for store in stores if which and which in store.folder.name]
    if len(named) == 1:
        return named
    if named:
        raise UserError(f"{len(named)} caches have {which!r} in their names", "give the whole name")
    raise UserError(f"no cache is called {which!r}", "use all, older, or a name from the list without ‹remove›")


def _read_note(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it is missing or damaged, which both mean that there is no store."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _map(path: Path) -> Any:
    """Return a memory-mapped array; None if the file is missing or damaged."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def _checksum(values: NDArray[Any], digests: NDArray[np.uint64], bad: Reasons) -> int:
    return zlib.crc32(json.dumps(bad).encode(), zlib.crc32(digests.data, zlib.crc32(values.data)))
