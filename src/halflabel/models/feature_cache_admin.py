"""List and remove feature caches, for the command `halflabel cache`.

A cache is recognised by its name, which ends in a digest of `made_of` in its note (cache.json, or building.json while
it is built). Only files that a cache writes are ever removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.system.files import JobLock

__all__ = ["ABANDONED", "CacheInfo", "digest_of", "find_caches", "mark_used", "remove_cache", "select_caches"]

ABANDONED = 86400.0  # seconds after which a partly built file that nobody wrote to counts as left behind
_CACHE_NAME = re.compile(
    r"(?P<stem>(?P<backbone>.+)-(?P<size>\d+)px-(?P<kind>maps|pooled)-[0-9a-f]{12})-(?P<digest>[0-9a-f]{8})"
)
_STRONG_NAME = re.compile(r"strong-\d+-(?P<digest>[0-9a-f]{8})")
_FILE_NAME = re.compile(
    r"(cache|building)\.json|building\.lock|values\.npy|values\.([0-9a-f]{8}\.)?partial\.npy"
    r"|\.((cache|building)\.json|values\.npy)\.\w+\.tmp"
)


@dataclass(frozen=True)
class CacheInfo:
    """One feature cache. `folders` are its own folder and those of its strong views."""

    folder: Path
    stem: str  # of the name: backbone, size and images; the rest of the name is the digest of `made_of`
    backbone: str
    size: int  # pixels
    kind: str  # maps or pooled
    made_of: dict[str, str]  # empty if a build stopped before it wrote a note
    images: int | None
    bytes: int
    last_used: float  # seconds since 1970
    is_complete: bool
    folders: tuple[Path, ...]
    other_files: tuple[str, ...]  # files in it that no cache writes
    is_latest: bool = True  # the one of its stem that was used last

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def strong_views(self) -> int:
        return len(self.folders) - 1

    def is_being_built(self) -> bool:
        return any(_is_locked(folder) for folder in self.folders)


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
    if any((place / name).exists() for name in ("config.yaml", "config.json")):
        parents.append(place.resolve().parent / "cache")
    folders = {folder.resolve(): folder for parent in parents if parent.is_dir() for folder in sorted(parent.iterdir())}
    caches = [cache for folder in folders.values() if (cache := _read(folder)) is not None]
    caches.sort(key=lambda cache: -cache.last_used)
    latest: dict[tuple[Path, str], Path] = {}
    for cache in caches:
        latest.setdefault((cache.folder.resolve().parent, cache.stem), cache.folder)
    return [replace(cache, is_latest=cache.folder in latest.values()) for cache in caches]


def select_caches(caches: Sequence[CacheInfo], which: str) -> list[CacheInfo]:
    """The caches to remove: "all", "older" (others of the same images were used later), or one by part of its name."""
    if which == "all":
        return list(caches)
    if which == "older":
        return [cache for cache in caches if not cache.is_latest]
    named = [cache for cache in caches if cache.name == which] or [cache for cache in caches if which in cache.name]
    if not which or not named:
        raise UserError(f"no cache is called {which!r}", "use all, older, or a name from the list without --remove")
    if len(named) > 1:
        raise UserError(f"{len(named)} caches have {which!r} in their names", "give the whole name")
    return named


def remove_cache(cache: CacheInfo) -> None:
    """Remove a cache with its strong views; an error if a job is building it or if it holds other files.

    Jobs that have it open can still read it.
    """
    locks: list[JobLock] = []
    try:
        for folder in cache.folders:
            lock = JobLock(folder / "building.lock")
            if _is_locked(folder) or not lock.try_acquire():
                raise UserError(f"{cache.name} is being built", "wait until that job has ended, or end it")
            locks.append(lock)
        current = _read(cache.folder)  # read again: now nobody else writes to it
        if current is None or current.folders != cache.folders:
            raise UserError(f"{cache.name} has changed since it was listed", "list the caches again")
        if current.other_files:
            names = ", ".join(current.other_files[:3])
            raise UserError(f"{cache.name} holds other files too ({names})", "look into it, and remove it by hand")
        for folder in reversed(cache.folders):
            for path in sorted(folder.iterdir(), key=lambda path: path.suffix != ".json"):  # first the notes
                if _is_cache_file(path) and path.name != "building.lock":
                    path.unlink(missing_ok=True)
    finally:
        for lock in locks:
            lock.release()
    for folder in reversed(cache.folders):
        with contextlib.suppress(OSError):  # another job has started to build it again
            folder.rmdir()


def _read(folder: Path) -> CacheInfo | None:
    """The cache in a folder; None if the folder is not recognisably a cache."""
    name = _CACHE_NAME.fullmatch(folder.name)
    if name is None or not _is_cache_folder(folder, name["digest"]):
        return None
    folders, other_files = [folder], []
    for path in sorted(folder.iterdir()):
        strong = _STRONG_NAME.fullmatch(path.name)
        if strong is not None and _is_cache_folder(path, strong["digest"]):
            folders.append(path)
            other_files += [f"{path.name}/{inner.name}" for inner in path.iterdir() if not _is_cache_file(inner)]
        elif not _is_cache_file(path):
            other_files.append(path.name)
    note = _read_note(folder)
    stats = [path.stat() for each in folders for path in each.iterdir() if _is_cache_file(path)]
    is_complete = "crc32" in note and (folder / "cache.json").exists() and (folder / "values.npy").exists()
    return CacheInfo(
        folder=folder,
        stem=name["stem"],
        backbone=str(note.get("backbone") or name["backbone"]),
        size=int(name["size"]),
        kind=name["kind"],
        made_of=note.get("made_of", {}),
        images=_image_count(folder),
        bytes=sum(stat.st_size for stat in stats),
        last_used=(folder / "cache.json").stat().st_mtime if is_complete else max(stat.st_mtime for stat in stats),
        is_complete=is_complete,
        folders=tuple(folders),
        other_files=tuple(other_files),
    )


def _is_cache_folder(folder: Path, digest: str) -> bool:
    """Whether the notes in a folder have the digest of its name; a build that was killed early has values alone."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if note := _read_note(folder):
        return digest_of(note["made_of"]) == digest
    return any(path.name.startswith("values.") and _is_cache_file(path) for path in folder.iterdir())


def _is_cache_file(path: Path) -> bool:
    return bool(_FILE_NAME.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


def _read_note(folder: Path) -> dict[str, Any]:
    """The note of a cache, or of its build; empty if there is none."""
    for name in ("cache.json", "building.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            note = json.loads((folder / name).read_text(encoding="utf-8"))
            if isinstance(note, dict) and isinstance(note.get("made_of"), dict):
                return note
    return {}


def _image_count(folder: Path) -> int | None:
    import numpy as np

    for name in ("values.npy", "values.partial.npy"):
        with contextlib.suppress(OSError, ValueError):
            return int(np.load(folder / name, mmap_mode="r", allow_pickle=False).shape[0])
    return None


def _is_locked(folder: Path) -> bool:
    """Whether another job builds it: it holds the lock or, on a disk without locks, has written to its own file."""
    lock_path = folder / "building.lock"
    if lock_path.exists():
        lock = JobLock(lock_path)
        if not lock.try_acquire():
            return True
        lock.release()
    unlocked_builds = folder.glob("values.????????.partial.npy") if folder.is_dir() else ()
    return any(time.time() - path.stat().st_mtime <= ABANDONED for path in unlocked_builds)
