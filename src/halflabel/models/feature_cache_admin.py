"""List and remove feature caches, for the command `halflabel cache`.

A cache is recognised by its name, which ends in a digest of `made_of` in its note (cache.json, or building.json while
it is built).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.system.files import JobLock

__all__ = ["ABANDONED", "CacheInfo", "digest_of", "find_caches", "mark_used", "remove_cache", "select_caches"]

ABANDONED = 86400.0  # seconds after which a partly built file that nobody wrote to counts as left behind
_CACHE_NAME = re.compile(r"(?P<stem>.+-(?P<size>\d+)px-(?P<kind>maps|pooled)-[0-9a-f]{12})-(?P<digest>[0-9a-f]{8})")
_FILE_NAME = re.compile(r"strong-.*|\.?(cache|building|values)\..*")  # what a cache writes into its folder


@dataclass(frozen=True)
class CacheInfo:
    """One feature cache."""

    folder: Path
    stem: str  # of the name: backbone, size and images; the rest of the name is the digest of `made_of`
    size: int  # pixels
    kind: str  # maps or pooled
    backbone: str
    made_of: dict[str, str]
    images: int | None
    bytes: int
    last_used: float  # seconds since 1970
    is_complete: bool

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def strong_views(self) -> int:
        return len(list(self.folder.glob("strong-*")))

    def is_being_built(self) -> bool:
        """Whether another job holds a lock or, on a disk without locks, has written to its own file."""
        for path in self.folder.rglob("building.lock"):
            lock = JobLock(path)
            if not lock.try_acquire():
                return True
            lock.release()
        return any(_age(path) <= ABANDONED for path in self.folder.rglob("values.????????.partial.npy"))


def digest_of(made_of: dict[str, str]) -> str:
    """The end of a cache's name.

    >>> digest_of({"weights": "a", "view": "b", "images": "c"})
    '070fb8e0'
    """
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:8]


def mark_used(folder: Path) -> None:
    """Store the time of use, as the time stamp of cache.json; on a read-only disk it is not stored."""
    with contextlib.suppress(OSError):
        os.utime(folder / "cache.json")


def find_caches(place: Path) -> list[CacheInfo]:
    """The caches in a folder, in its subfolder "cache" or, for a run, in "cache" beside the run; last used first."""
    if not place.is_dir():
        raise UserError(f"{place} is not a folder", "name the folder with the runs, a run, or the cache itself")
    parents = [place, place / "cache"]
    if (place / "config.yaml").exists():
        parents.append(place.resolve().parent / "cache")
    folders = {folder.resolve(): folder for parent in parents if parent.is_dir() for folder in parent.iterdir()}
    caches = [cache for folder in folders.values() if (cache := _read(folder)) is not None]
    return sorted(caches, key=lambda cache: -cache.last_used)


def select_caches(caches: Sequence[CacheInfo], which: str) -> list[CacheInfo]:
    """The caches to remove: "all", "older" (others of the same images were used later), or one by part of its name."""
    if which == "all":
        return list(caches)
    if which == "older":
        latest = {cache.stem: cache for cache in reversed(caches)}
        return [cache for cache in caches if cache is not latest[cache.stem]]
    named = [cache for cache in caches if which and which in cache.name]
    if not named:
        raise UserError(f"no cache is called {which!r}", "use all, older, or a name from the list without --remove")
    if len(named) > 1:
        raise UserError(f"{len(named)} caches have {which!r} in their names", "give the whole name")
    return named


def remove_cache(cache: CacheInfo) -> None:
    """Remove a cache; an error if a job is building it or if it holds other files. Open caches stay readable.

    The network that was exported to compute it goes too; it is exported again in a second.
    """
    if cache.is_being_built():
        raise UserError(f"{cache.name} is being built", "wait until that job has ended, or end it")
    if others := [path.name for path in cache.folder.rglob("*") if not _FILE_NAME.fullmatch(path.name)]:
        names = ", ".join(others[:3])
        raise UserError(f"{cache.name} holds other files too ({names})", "look into it, and remove it by hand")
    shutil.rmtree(cache.folder)
    network = f"{cache.backbone.replace('/', '_')}-{cache.size}px-{cache.made_of.get('weights')}.onnx"
    (cache.folder.parent / network).unlink(missing_ok=True)


def _read(folder: Path) -> CacheInfo | None:
    """The cache in a folder; None if its name and its note are not those of a cache."""
    name, note = _CACHE_NAME.fullmatch(folder.name), _read_note(folder)
    if name is None or folder.is_symlink() or digest_of(note.get("made_of", {})) != name["digest"]:
        return None
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    is_complete = (folder / "cache.json").exists() and (folder / "values.npy").exists()
    return CacheInfo(
        folder=folder,
        stem=name["stem"],
        size=int(name["size"]),
        kind=name["kind"],
        backbone=str(note.get("backbone", "")),
        made_of=note["made_of"],
        images=_image_count(folder),
        bytes=sum(stat.st_size for stat in stats),
        last_used=(folder / "cache.json").stat().st_mtime if is_complete else max(stat.st_mtime for stat in stats),
        is_complete=is_complete,
    )


def _read_note(folder: Path) -> dict[str, Any]:
    """The note of a cache, or of its build; empty if there is none."""
    for name in ("cache.json", "building.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            note = json.loads((folder / name).read_text(encoding="utf-8"))
            if isinstance(note, dict) and isinstance(note.get("made_of"), dict):
                return note
    return {}


def _image_count(folder: Path) -> int | None:
    for name in ("values.npy", "values.partial.npy"):
        with contextlib.suppress(OSError, ValueError):
            return int(np.load(folder / name, mmap_mode="r", allow_pickle=False).shape[0])
    return None


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
