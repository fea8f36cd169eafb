"""The feature caches in a folder: what each was made of, how large it is, when it was last used; and their removal.

Without torch: to look and to remove is quick. A folder is taken for a cache only where its name, the note in it and
everything else that lies there say so; of what is not provably one, nothing is touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.system.files import JobLock

__all__ = ["ABANDONED", "Cache", "chosen", "digest_of", "find_caches", "note_use", "remove"]

ABANDONED = 86400.0  # seconds after which a half-built file that nobody wrote to is taken for left behind
_PLAIN = re.compile(
    r"(?P<stem>(?P<backbone>.+)-(?P<size>\d+)px-(?P<kind>maps|pooled)-[0-9a-f]{12})(-(?P<digest>[0-9a-f]{8}))?"
)
_STRONG = re.compile(r"(?P<stem>strong-\d+)(-(?P<digest>[0-9a-f]{8}))?")
_OURS = re.compile(
    r"(cache|building)\.json|building\.lock|values\.npy|values\.([0-9a-f]{8}\.)?partial\.npy"
    r"|\.((cache|building)\.json|values\.npy)\.\w+\.tmp"
)
_ALONE = re.compile(r"values\.[0-9a-f]{8}\.partial\.npy")  # of a build that could not lock others out


@dataclass(frozen=True)
class Cache:
    """One cache; `shelves` are its folder and those of the strong views in it."""

    folder: Path
    stem: str  # of the name: which backbone, size and images; what follows is a digest of `made_of`
    backbone: str
    size: int  # pixels
    kind: str  # maps, pooled
    made_of: dict[str, str]  # empty where a build broke off before its first note
    images: int | None
    bytes: int
    used: float  # seconds since 1970
    whole: bool
    shelves: tuple[Path, ...]
    foreign: tuple[str, ...]  # what else lies there
    latest: bool = True  # of those of the same stem

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def strong(self) -> int:
        """How many strong views it holds."""
        return len(self.shelves) - 1

    def is_being_built(self) -> bool:
        """Whether another job holds a lock in it, or writes to it where there are no locks."""
        return any(_busy(shelf) for shelf in self.shelves)


def digest_of(made_of: dict[str, str]) -> str:
    """What the name of a cache ends in.

    >>> digest_of({"weights": "a", "view": "b", "images": "c"})
    '070fb8e0'
    """
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:8]


def note_use(folder: Path) -> None:
    """Keep the time at which a cache was used; on a disk that may not be written to it is not kept."""
    with contextlib.suppress(OSError):
        os.utime(folder / "cache.json")


def find_caches(place: Path) -> list[Cache]:
    """The caches in a folder, in the folder "cache" in it, or, for a run, in the one beside it; last used first."""
    if not place.is_dir():
        raise UserError(f"{place} is not a folder", "name the folder with the runs, a run, or the cache itself")
    places = [place, place / "cache"]
    if any((place / name).exists() for name in ("config.yaml", "config.json")):
        places.append(place.resolve().parent / "cache")
    found: dict[Path, Cache] = {}
    for parent in places:
        if parent.is_dir():
            for folder in sorted(parent.iterdir()):
                if folder.resolve() not in found and (cache := _read(folder)) is not None:
                    found[folder.resolve()] = cache
    ordered = sorted(found.values(), key=lambda cache: -cache.used)
    first: dict[tuple[Path, str], Cache] = {}
    for cache in ordered:
        first.setdefault((cache.folder.resolve().parent, cache.stem), cache)
    kept = {id(cache) for cache in first.values()}
    return [replace(cache, latest=id(cache) in kept) for cache in ordered]


def chosen(caches: Sequence[Cache], which: str) -> list[Cache]:
    """Those to remove: all, older ones (others of the same images were used later), or one by a part of its name."""
    if which == "all":
        return list(caches)
    if which == "older":
        return [cache for cache in caches if not cache.latest]
    named = [cache for cache in caches if cache.name == which] or [cache for cache in caches if which in cache.name]
    if not which or not named:
        raise UserError(f"no cache is called {which!r}", "use all, older, or a name from the list without --remove")
    if len(named) > 1:
        raise UserError(f"{len(named)} caches have {which!r} in their names", "give the whole name")
    return named


def remove(cache: Cache) -> None:
    """Remove a cache with its strong views; refused while a job builds it, and where something else lies in it.

    Nothing but files that a cache has by name is removed. Whoever has it open may read on.
    """
    locks: list[JobLock] = []
    try:
        for shelf in cache.shelves:
            lock = JobLock(shelf / "building.lock")
            if _busy(shelf) or not lock.try_acquire():
                raise UserError(f"{cache.name} is being built", "wait until that job has ended, or end it")
            locks.append(lock)
        now = _read(cache.folder)  # as it is, now that nobody else writes to it
        if now is None or now.foreign or now.shelves != cache.shelves:
            other = ", ".join(now.foreign[:3]) if now is not None else ""
            said = f"holds something else too ({other})" if other else "has changed meanwhile"
            raise UserError(f"{cache.name} {said}", "look into it, and remove it by hand")
        for shelf in reversed(cache.shelves):  # those within before the one around them
            for path in sorted(shelf.iterdir(), key=lambda path: path.suffix != ".json"):  # without a note it is none
                if _OURS.fullmatch(path.name) and path.name != "building.lock":
                    path.unlink(missing_ok=True)
    finally:
        for lock in locks:
            lock.release()
    for shelf in reversed(cache.shelves):
        with contextlib.suppress(OSError):  # another job has begun to build it again
            shelf.rmdir()


def _read(folder: Path) -> Cache | None:
    """What a folder says of the cache that it is; None if it is none, or not surely."""
    name = _PLAIN.fullmatch(folder.name)
    if name is None or (files := _files(folder, name, "view")) is None:
        return None
    shelves, foreign = [folder], []
    for path in files:
        within = _STRONG.fullmatch(path.name)
        inner = _files(path, within, "strong view") if within is not None else None
        if inner is not None:
            shelves.append(path)
            foreign += [f"{path.name}/{one.name}" for one in inner if not _is_ours(one)]
        elif not _is_ours(path):
            foreign.append(path.name)
    note = _note(folder)
    own = [path for shelf in shelves for path in shelf.iterdir() if _is_ours(path)]
    stats = [found for path in own if (found := _stat(path)) is not None]
    whole = isinstance(note.get("crc32"), int) and (folder / "values.npy").exists()
    last = _stat(folder / "cache.json") if whole else None
    return Cache(
        folder=folder,
        stem=name["stem"],
        backbone=str(note.get("backbone") or name["backbone"]),
        size=int(name["size"]),
        kind=name["kind"],
        made_of=note.get("made_of", {}),
        images=_length(folder),
        bytes=sum(found.st_size for found in stats),
        used=last.st_mtime if last is not None else max((found.st_mtime for found in stats), default=0.0),
        whole=whole,
        shelves=tuple(shelves),
        foreign=tuple(foreign),
    )


def _files(folder: Path, name: re.Match[str], view: str) -> list[Path] | None:
    """What lies in a folder of such a name; None unless that proves it to be one of ours."""
    if folder.is_symlink() or not folder.is_dir():
        return None
    files = sorted(folder.iterdir())
    notes = [note["made_of"] for file in ("cache.json", "building.json") if (note := _read_json(folder / file))]
    for made_of in notes:
        right = isinstance(made_of, dict) and set(made_of) == {"weights", view, "images"}
        if not right or not all(isinstance(value, str) for value in made_of.values()):
            return None
        if name["digest"] is not None and digest_of(made_of) != name["digest"]:
            return None
    # A build that was killed early has values and no note yet.
    begun = any(path.name.startswith("values.") and _is_ours(path) for path in files)
    return files if notes or (begun and name["digest"] is not None) else None


def _is_ours(path: Path) -> bool:
    return bool(_OURS.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


def _note(folder: Path) -> dict[str, Any]:
    return _read_json(folder / "cache.json") or _read_json(folder / "building.json")


def _read_json(path: Path) -> dict[str, Any]:
    """A note; nothing where there is none that says what the cache was made of."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and "made_of" in found else {}


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _length(folder: Path) -> int | None:
    """For how many images it has room."""
    import numpy as np

    for name in ("values.npy", "values.partial.npy"):
        with contextlib.suppress(OSError, ValueError):
            return int(np.load(folder / name, mmap_mode="r", allow_pickle=False).shape[0])
    return None


def _busy(shelf: Path) -> bool:
    """Whether another job builds it: it holds the lock, or has written to a file of its own within the last day."""
    if (shelf / "building.lock").exists():
        lock = JobLock(shelf / "building.lock")
        if not lock.try_acquire():
            return True
        lock.release()
    return any(_is_young(path) for path in _alone(shelf))


def _alone(shelf: Path) -> Iterable[Path]:
    return (path for path in shelf.iterdir() if _ALONE.fullmatch(path.name)) if shelf.is_dir() else ()


def _is_young(path: Path) -> bool:
    found = _stat(path)
    return found is not None and time.time() - found.st_mtime <= ABANDONED
