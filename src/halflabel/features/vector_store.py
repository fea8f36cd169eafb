"""Numbers per image on the disk: computed once for a key, continued after a kill, checked when they are used again.

A store is the folder NAME-DIGEST with a digest of its key, which is everything that the values depend on.

    about.json    the key and the state of the image files; its modification time is the time of last use
    values.npy    (N, …), of full size from the beginning, memory-mapped
    blocks.jsonl  a line per block of rows on the disk: first row, end, CRC-32, and why images could not be read

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
from halflabel.images.file_identity import FileState
from halflabel.system import distributed
from halflabel.system.files import DISK_FULL, JobLock, cache_folder, disk_full_error, to_json_value, write_json

_ABOUT, _VALUES, _BLOCKS, _LOCK = "about.json", "values.npy", "blocks.jsonl", "building.lock"
_OWN_FILES = re.compile(r"\.?(about|blocks|building|values)\..*")
_NOTE_ROWS = 512  # rows between two lines of blocks.jsonl
_NOTE_SECONDS = 30.0  # the longest time between two lines
_POLL_SECONDS = 0.5  # between two checks whether another job has ended
_PASSES = 2  # the second one is for rows that another job without a lock has overwritten

Reasons = dict[int, list[str]]  # number of an image that could not be read -> image, path, reason


class Block(NamedTuple):
    """The rows planned, the rows read, their values (B, …), and why the others could not be read."""

    planned: NDArray[np.int64]
    images: NDArray[np.int64]
    values: NDArray[Any] | None
    bad: Reasons


Compute = Callable[[NDArray[np.int64]], Iterator[Block]]  # yields the blocks of these rows, in order


class _Line(NamedTuple):
    """A line of blocks.jsonl: the rows from `first` to `end`, their checksum, and which of them could not be read."""

    first: int
    end: int
    crc: int
    bad: Reasons

    @classmethod
    def parse(cls, text: str) -> _Line | None:
        """Return a line; None if it is not one."""
        try:
            first, end, crc, bad = json.loads(text)
            return cls(int(first), int(end), int(crc), {int(row): list(reason) for row, reason in bad.items()})
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None

    def __str__(self) -> str:
        return json.dumps(self) + "\n"


@dataclass
class VectorStore:
    """The values of N images for one key.

    `fault()` is None for a complete store; else `build()` computes what is missing. Stores of one name and other keys
    stand side by side. Several processes of a job call the methods together, and the first one writes.
    """

    parent: Path
    name: str
    key: Mapping[str, Any]
    rows: int
    title: str = "features"  # of the values, in messages
    about: Mapping[str, Any] = field(default_factory=dict)  # recorded beside the key, for listings
    files: FileState = field(default_factory=lambda: FileState(()))  # that the values are made of

    @classmethod
    def at(cls, folder: Path) -> VectorStore | None:
        """Return the store in a folder; None if there is none, or if the folder was renamed."""
        note = _read_note(folder / _ABOUT)
        try:
            about = note["about"]
            store = cls(folder.parent, str(note["name"]), dict(note["key"]), int(note["rows"]), about=dict(about))
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

    def unreadable(self) -> Reasons:
        """Return the images that could not be read, by number, with the reason."""
        return {row: reason for block in self._blocks() for row, reason in block.bad.items()}

    def fault(self) -> str | None:
        """Return why values must be computed; None if all are valid, "" if they were not computed yet."""
        if not self._is_noted():
            return ""
        if not self._fits_files():
            return "an image was replaced by another of the same size and time"
        if self.noted_rows < self.rows:
            return ""
        return "bytes do not match their checksum" if len(self._missing(self._valid_blocks())) else None

    def difference(self) -> str:
        """Return how the key differs from that of the most similar store of this name; "" if in nothing."""
        keys = [store.key for store in stores_in(self.parent) if store.name == self.name]
        changed = [" and the ".join(name for name in self.key if key.get(name) != self.key[name]) for key in keys]
        nearest = min(changed, key=len, default="")
        return f"the {nearest} changed" if nearest else ""

    def build(
        self,
        compute: Compute,
        *,
        batch_size: int = 1,
        progress: Callable[[int], None] = lambda done: None,
        message: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Compute the rows that are missing, in whole batches, and write them.

        One job builds and the others wait, and then find the store complete. On a disk without locks they compute the
        same values at once.
        """
        with self._exclusive(progress, message):
            fault = distributed.run_on_main(self.fault)
            if fault is None:
                progress(self.rows)
                return
            if fault:
                message(f"the cached {self.title} are stale ({fault}): computing them again")
            elif changed := distributed.run_on_main(self.difference):
                message(f"the cached {self.title} do not fit ({changed}): computing others beside them")
            for _ in range(_PASSES):
                _Writer(self).write(compute, batch_size, progress)
                if distributed.run_on_main(self.fault) is None:
                    return
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
        return min(self.rows, sum(block.end - block.first for block in self._blocks()))

    def inside(self) -> list[VectorStore]:
        """Return the stores in the folder of this one."""
        return stores_in(self.folder)

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
        others = [path for path in self.folder.rglob("*") if not (_OWN_FILES.fullmatch(path.name) or _is_store(path))]
        if others:
            names = ", ".join(path.name for path in others[:3])
            raise UserError(f"{name} holds other files too ({names})", "look into it, and remove it by hand")
        shutil.rmtree(self.folder)
        if network := self.about.get("network"):  # an exported file beside the store
            (self.parent / Path(str(network)).name).unlink(missing_ok=True)

    def _is_noted(self) -> bool:
        note = _read_note(self.folder / _ABOUT)
        return bool(note.get("key") == to_json_value(self.key) and note.get("rows") == self.rows)

    def _fits_files(self) -> bool:
        return self.files.fits(_read_note(self.folder / _ABOUT))

    def _blocks(self) -> list[_Line]:
        """Return the lines of blocks.jsonl that are not broken off or damaged."""
        try:
            texts = (self.folder / _BLOCKS).read_text().splitlines()
        except (OSError, ValueError):
            return []
        lines = (line for text in texts if (line := _Line.parse(text)) is not None)
        return [line for line in lines if 0 <= line.first < line.end <= self.rows]

    def _valid_blocks(self) -> list[_Line]:
        """Return the lines whose checksum matches the values."""
        values = _map(self.folder / _VALUES, "r")
        if values is None or len(values) != self.rows:
            return []
        return [line for line in self._blocks() if line.crc == _checksum(values[line.first : line.end], line.bad)]

    def _missing(self, valid: list[_Line]) -> NDArray[np.int64]:
        """Return the rows that are in none of the valid blocks."""
        is_missing = np.ones(self.rows, np.bool_)
        for line in valid:
            is_missing[line.first : line.end] = False
        return np.flatnonzero(is_missing)

    @contextmanager
    def _exclusive(self, progress: Callable[[int], None], message: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other job builds the store, then lock it, where locks work."""
        lock = JobLock(self.folder / _LOCK)
        try:
            while not distributed.run_on_main(lock.try_acquire):
                message(f"another job is computing these {self.title}: waiting")
                progress(self.noted_rows)
                time.sleep(_POLL_SECONDS)
            if lock.is_held:  # otherwise another job may be writing them
                for leftover in self.folder.glob(".*.tmp"):  # of a build that was killed
                    leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()


class _Writer:
    """Writes the missing rows of a store, and notes from time to time which ones are on the disk."""

    def __init__(self, store: VectorStore) -> None:
        self.store = store
        self.values: Any = None  # memory-mapped, in the first process
        self.bad: Reasons = {}
        self.waiting: list[NDArray[np.int64]] = []  # rows that are not noted
        self.noted_at = time.monotonic()

    def write(self, compute: Compute, batch_size: int, progress: Callable[[int], None]) -> None:
        try:
            missing = distributed.run_on_main(partial(self._begin, batch_size))
            done = self.store.rows - len(missing)
            try:
                for block in compute(missing):
                    self._add(block)
                    done += len(block.planned)
                    progress(done)
            except BaseException as error:
                if not isinstance(error, OSError):
                    self._note()  # stopped, or out of time: the next job continues from here
                raise
            distributed.run_on_main(self._finish)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_full_error(self.store.folder, error) from None
            raise

    def _begin(self, batch_size: int) -> NDArray[np.int64]:
        """Keep the whole batches that are valid; return the other rows."""
        store, folder = self.store, self.store.folder
        if not (store._is_noted() and store._fits_files()):
            for name in (_VALUES, _BLOCKS):
                (folder / name).unlink(missing_ok=True)
            note = {"name": store.name, "key": store.key, "rows": store.rows, "about": store.about}
            write_json(folder / _ABOUT, note | store.files.note())  # the state before the images are read
        valid = store._valid_blocks()
        batches = np.arange(store.rows) // batch_size
        is_missing = np.isin(batches, batches[store._missing(valid)])
        self.bad = {row: reason for line in valid for row, reason in line.bad.items() if not is_missing[row]}
        self.values = _map(folder / _VALUES, "r+")
        (folder / _BLOCKS).unlink(missing_ok=True)
        self.waiting = [np.flatnonzero(~is_missing)]
        self._note()
        return np.flatnonzero(is_missing)

    def _add(self, block: Block) -> None:
        self.bad |= block.bad
        if block.values is not None:
            shape = self.store.rows, *block.values.shape[1:]
            if self.values is None or (self.values.shape, self.values.dtype) != (shape, block.values.dtype):
                self.values = _allocate(self.store.folder / _VALUES, shape, block.values.dtype)
            self.values[np.setdiff1d(block.planned, block.images)] = 0
            self.values[block.images] = block.values
        self.waiting.append(block.planned)
        is_due = sum(map(len, self.waiting)) >= _NOTE_ROWS or time.monotonic() - self.noted_at >= _NOTE_SECONDS
        if is_due:
            self._note()

    def _note(self) -> None:
        """Write to the disk what is computed, and a line about each run of consecutive rows."""
        rows = np.concatenate([np.arange(0), *self.waiting])
        if self.values is None or not len(rows):
            return
        self.values.flush()
        with open(self.store.folder / _BLOCKS, "a") as file:
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                first, end = int(run[0]), int(run[-1]) + 1
                bad = {row: self.bad[row] for row in run.tolist() if row in self.bad}
                file.write(str(_Line(first, end, _checksum(self.values[first:end], bad), bad)))
        self.store.mark_used()
        self.waiting, self.noted_at = [], time.monotonic()

    def _finish(self) -> None:
        if self.values is None:
            raise NoReadableImage("not one image could be read", "check the image folder")
        self._note()


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
    raise UserError(f"no cache is called {which!r}", "use all, older, or a name from the list without --remove")


def _is_store(folder: Path) -> bool:
    return VectorStore.at(folder) is not None


def _read_note(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it is missing or damaged, which both mean that there is no store."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _checksum(values: NDArray[Any], bad: Reasons) -> int:
    return zlib.crc32(json.dumps(bad).encode(), zlib.crc32(values.data))


def _map(path: Path, mode: Any) -> Any:
    """Return a memory-mapped array; None if the file is missing or damaged."""
    try:
        np.load(path, mmap_mode="r", allow_pickle=False)  # first: "r+" would lengthen a short file
        return np.load(path, mmap_mode=mode, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def _allocate(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a memory-mapped file with its disk space reserved: else a full disk would kill the process at a write."""
    path.unlink(missing_ok=True)  # not truncated: another job may have it open
    values = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on every system
        try:
            with open(path, "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError:
            path.unlink()
            raise
    return values
