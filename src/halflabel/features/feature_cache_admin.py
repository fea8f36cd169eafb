"""List and remove feature caches, for the command `halflabel cache`. Importing this module does not import torch."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.system.files import JobLock

_CACHE_NAME = re.compile(r"(?P<stem>.+-(?P<size>\d+)px-(?P<kind>maps|pooled)-[0-9a-f]{12})-[0-9a-f]{8}")
_FILE_NAME = re.compile(r"strong-.*|\.?(cache|building|values)\..*")  # what a cache writes into its folder


@dataclass(frozen=True)
class CacheInfo:
    """One feature cache."""

    folder: Path
    stem: str  # of the name: backbone, size and images; the rest of the name is a digest of `made_of`
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
        """Whether another job holds a lock."""
        for path in self.folder.rglob("building.lock"):
            lock = JobLock(path)
            if not lock.try_acquire():
                return True
            lock.release()
        return False


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
    if len(named) == 1:
        return named
    if named:
        raise UserError(f"{len(named)} caches have {which!r} in their names", "give the whole name")
    raise UserError(f"no cache is called {which!r}", "use all, older, or a name from the list without --remove")


def remove_cache(cache: CacheInfo) -> None:
    """Remove a cache and the network that was exported to compute it; an error if a job builds it or others use it."""
    if cache.is_being_built():
        raise UserError(f"{cache.name} is being built", "wait until that job has ended, or end it")
    if others := [path.name for path in cache.folder.rglob("*") if not _FILE_NAME.fullmatch(path.name)]:
        names = ", ".join(others[:3])
        raise UserError(f"{cache.name} holds other files too ({names})", "look into it, and remove it by hand")
    shutil.rmtree(cache.folder)
    network = f"{cache.backbone.replace('/', '_')}-{cache.size}px-{cache.made_of.get('weights')}.onnx"
    (cache.folder.parent / network).unlink(missing_ok=True)


def _read(folder: Path) -> CacheInfo | None:
    """The cache in a folder; None if it is not named like one, or has no note of what it was made of."""
    name, note = _CACHE_NAME.fullmatch(folder.name), dict[str, Any]()
    for file in ("building.json", "cache.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            note = json.loads((folder / file).read_text(encoding="utf-8"))
    if name is None or folder.is_symlink() or not isinstance(note, dict) or not isinstance(note.get("made_of"), dict):
        return None
    images = None
    for file in ("values.partial.npy", "values.npy"):
        with contextlib.suppress(OSError, ValueError):
            images = int(np.load(folder / file, mmap_mode="r", allow_pickle=False).shape[0])
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    is_complete = (folder / "cache.json").exists() and (folder / "values.npy").exists()
    size = sum(stat.st_size for stat in stats)
    used = (folder / "cache.json").stat().st_mtime if is_complete else max(stat.st_mtime for stat in stats)
    of = (name["stem"], int(name["size"]), name["kind"], str(note.get("backbone", "")), note["made_of"])
    return CacheInfo(folder, *of, images, size, used, is_complete)
