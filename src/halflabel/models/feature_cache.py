"""The feature cache: what a frozen backbone says of every image, computed once, so that a head trains in seconds.

Float16, memory-mapped: 2·D bytes per image and view for pooled features, 2·D·h·w for maps.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.data.pack.source import PackedImages
from halflabel.data.sources import Arrays, Features, Images, Plan, sequential_plan
from halflabel.errors import NoReadableImage, UserError
from halflabel.models.backbones import Backbone, fingerprint
from halflabel.models.feature_cache_admin import ABANDONED, digest_of, note_use
from halflabel.models.heads import pool
from halflabel.system import distributed
from halflabel.system.files import DISK_FULL, JobLock, atomic_write, disk_full_error, write_json
from halflabel.system.gpu_memory import MicroBatcher

__all__ = ["cache_features", "copies_for"]

_BLOCK = 1 << 24
_KEEP = 512  # images between two notes of how far the building has come
_WITHIN = 30.0  # seconds in which there is one at least
_LOOK = 0.5  # seconds between two looks whether another job has ended
_COPY_SEED = 0x636F7079  # of the strong views kept here, whatever seed trains on them


def copies_for(views: Sequence[str], copies: int) -> int:
    """How many strong views of an image to cache for a method that sees these views: `copies`, or 0 if it wants none.

    >>> copies_for(("weak", "strong"), 4), copies_for(("weak",), 4)
    (4, 0)
    """
    return copies if "strong" in views else 0


def cache_features(
    backbone: Backbone,
    source: Images | Arrays,
    folder: Path,
    *,
    maps: bool = False,
    copies: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Features:
    """The features of every image, a plain view and `copies` strong ones, from the cache where it is still true.

    A cache belongs to a list of image names, and to the weights, the view and the state of the files that it was made
    of: other ones get a cache beside it. It is built again when its bytes do not match their checksum. A build that was
    interrupted goes on where it stopped. Of several jobs that need the same one, one builds it and the others wait; on
    a disk without locks each builds its own, from the start, and the first that is whole stays.
    Each strong view of an image is kept beside the plain one, in a cache of its own, so more of them can be added
    later. They are an approximation: a few fixed augmentations in the place of a fresh one each time an image is seen.
    (1 + copies) · 2·D bytes per image for pooled features, · h·w for maps: efficientnet-lite0 at 224 px takes 2.5 kB
    and 125 kB per view. `progress` is told (images done, of how many), `say` why a cache is built anew or waited for.
    Several processes build it together; the first one writes, and all must be able to read the folder.
    """
    if copies and "strong" not in source.views:
        raise UserError("these images have no strong view to keep copies of", "give the source one, or copies=0")
    if batch_size is None:
        batch_size = 128 if torch.device(device).type == "cuda" else 16
    weights, images = fingerprint(backbone), _stamp(source)
    made_of = {"weights": weights, "view": source.views["plain"].describe(), "images": images}
    shelves = [_Shelf.find(folder, _name(backbone, source, maps), "plain", 0, made_of)]
    for copy in range(copies):
        made_of = {"weights": weights, "strong view": source.views["strong"].describe(), "images": images}
        shelves.append(_Shelf.find(shelves[0].folder, f"strong-{copy}", "strong", copy, made_of))
    said: set[str] = set()

    def say_once(line: str) -> None:
        if say is not None and line not in said:
            say(line)
        said.add(line)

    faults = distributed.run_on_main(lambda: [shelf.fault() for shelf in shelves])
    missing = [shelf for shelf, fault in zip(shelves, faults, strict=True) if fault is not None]
    total = len(missing) * len(source)
    for number, shelf in enumerate(missing):

        def tell(done: int, before: int = number * len(source)) -> None:
            if progress is not None and distributed.is_main():
                progress(before + done, total)

        with shelf.turn(say_once, tell) as locked:
            fault = distributed.run_on_main(shelf.fault)  # another job may have built it meanwhile
            if fault is None:
                tell(len(source))
                continue
            if fault:
                say_once(f"the feature cache is stale ({fault}): computing it again")
            elif changed := distributed.run_on_main(shelf.differs):
                say_once(f"the cached features do not fit ({changed}): computing others beside them")
            shelf.build(backbone, source, maps, device, batch_size, tell, locked)
    if not all(distributed.all_gather(all(shelf.values.exists() for shelf in shelves))):
        raise UserError(
            f"not every process can read the feature cache in {folder}", "put the run into a folder all machines share"
        )
    bad: dict[int, list[str]] = {}
    for shelf in shelves:
        bad |= shelf.bad()
        if distributed.is_main():
            note_use(shelf.folder)
    if isinstance(source, Images):
        for image, (_, path, why) in bad.items():
            source.mark_unreadable(image, path, why)
    plain, *strong = (_open(shelf.values) for shelf in shelves)
    return Features(plain, source.names, list(bad), strong=strong if "strong" in source.views else None)


@dataclass(frozen=True)
class _Shelf:
    """One view of every image in a folder: values.npy and, once it is whole, cache.json with what it was made of."""

    folder: Path
    view: str
    copy: int
    made_of: dict[str, str]
    stem: str  # of the folder's name, which ends in a digest of what it was made of

    @classmethod
    def find(cls, parent: Path, stem: str, view: str, copy: int, made_of: dict[str, str]) -> _Shelf:
        """Its place in a folder; what an earlier version began or made there, without a digest, is gone on with."""

        def is_old() -> bool:
            notes = (_read_json(parent / stem / name) for name in ("building.json", "cache.json"))
            return any(note.get("made_of") == made_of for note in notes)

        name = stem if distributed.run_on_main(is_old) else f"{stem}-{digest_of(made_of)}"
        return cls(parent / name, view, copy, made_of, stem)

    @property
    def values(self) -> Path:
        return self.folder / "values.npy"

    def fault(self) -> str | None:
        """Why it has to be built again; None if it is true, "" if there is nothing yet."""
        found = _read_json(self.folder / "cache.json")
        if not isinstance(found.get("made_of"), dict):
            return ""
        if changed := self._changed(found):
            return changed
        return None if _checksum(self.values) == found.get("crc32") else "its bytes do not match their checksum"

    def differs(self) -> str:
        """What changed since the most similar of the caches beside it was made; nothing if there is none."""
        parent = self.folder.parent
        beside = [parent / self.stem, *parent.glob(f"{glob.escape(self.stem)}-*")]
        notes = [_read_json(folder / "cache.json") for folder in beside]
        found = (note for note in notes if isinstance(note.get("made_of"), dict))
        return min((self._changed(note) for note in found), key=len, default="")

    def _changed(self, note: dict[str, Any]) -> str:
        changed = [what for what, key in self.made_of.items() if note["made_of"].get(what) != key]
        return f"the {' and the '.join(changed)} changed" if changed else ""

    @contextmanager
    def turn(self, say: Callable[[str], None], tell: Callable[[int], None]) -> Iterator[bool]:
        """Wait until no other job builds it, then keep others from it; whether that can be, in the first process."""
        lock = JobLock(self.folder / "building.lock")
        try:
            while not distributed.run_on_main(lock.try_acquire):
                say("another job is computing these features: waiting")
                done = _read_json(self.folder / "building.json").get("done", 0)
                tell(done if isinstance(done, int) else 0)
                time.sleep(_LOOK)
            yield lock.is_held
        finally:
            lock.release()

    def bad(self) -> dict[int, list[str]]:
        """Images that could not be read, by number: image, path, reason."""
        return {int(number): why for number, why in _read_json(self.folder / "cache.json")["bad"].items()}

    def build(
        self,
        backbone: Backbone,
        source: Images | Arrays,
        maps: bool,
        device: torch.device | str,
        batch_size: int,
        tell: Callable[[int], None],
        locked: bool,
    ) -> None:
        # Unless it is locked another job may build it too, and whatever is half built may be what that one writes to.
        own = "values.partial.npy" if locked else f"values.{secrets.token_hex(4)}.partial.npy"
        partial = self.folder / own

        def begin() -> tuple[bool, dict[str, Any]]:
            self.folder.mkdir(parents=True, exist_ok=True)
            _tidy(self.folder, locked)
            so_far = _read_json(self.folder / "building.json") if locked else {}
            return so_far.get("made_of") != self.made_of or not _is_whole(partial, so_far), so_far

        fresh, so_far = distributed.run_on_main(begin)
        writes = distributed.is_main()
        done: int = 0 if fresh else so_far["done"] // batch_size * batch_size  # whole batches, whatever they were then
        bad: dict[str, list[str]] = {} if fresh else so_far["bad"]
        values: Any = np.lib.format.open_memmap(partial, mode="r+") if writes and not fresh else None
        opened = os.stat(partial) if values is not None else None
        noted, crc = done, zlib.crc32(values[:done].tobytes()) if done and writes else 0
        noted_at = time.monotonic()
        batcher = MicroBatcher()

        def note() -> None:
            nonlocal noted, noted_at, crc
            values.flush()
            if locked:
                crc = zlib.crc32(values[noted:done].tobytes(), crc)
                content = {"made_of": self.made_of, "done": done, "crc32": crc, "bad": bad}
                write_json(self.folder / "building.json", content)
            noted, noted_at = done, time.monotonic()

        backbone = backbone.to(device).to(memory_format=torch.channels_last).eval()
        plan = sequential_plan(len(source), batch_size)[done // batch_size :]
        try:
            for planned, images, out, why in _together(
                plan, self._compute(backbone, source, plan, maps, device, batcher)
            ):
                bad |= why
                if out is not None:
                    if values is None:
                        values = _allocate(partial, (len(source), *out.shape[1:]))
                        opened = os.stat(partial)
                    values[images] = out
                done = int(planned[-1]) + 1
                if values is not None and (done - noted >= _KEEP or time.monotonic() - noted_at >= _WITHIN):
                    note()
                tell(done)
        except BaseException as error:
            if not locked:
                partial.unlink(missing_ok=True)
            elif not isinstance(error, OSError) and values is not None and done > noted:
                note()  # stopped, or out of time: the next one goes on from here; a disk that fails is left alone
            raise

        def end() -> None:
            if values is None or opened is None:
                raise NoReadableImage("not one image could be read", "check the image folder")
            if not locked and self.fault() is None:  # another job was quicker
                partial.unlink(missing_ok=True)
                return
            values.flush()
            self._put(partial, values, opened)
            crc = _checksum(self.values)
            note = {"made_of": self.made_of, "crc32": crc, "bad": bad, "backbone": backbone.name}
            write_json(self.folder / "cache.json", note)
            if locked:
                (self.folder / "building.json").unlink(missing_ok=True)

        distributed.run_on_main(end)

    def _put(self, partial: Path, values: Any, opened: os.stat_result) -> None:
        """Give the built file its name. If that is no longer the file that was written to, write it anew.

        Some network disks grant one lock on each machine: then another job may have begun or ended it meanwhile.
        """
        try:
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
                is_ours = os.path.samestat(os.fstat(file.fileno()), opened)
        except FileNotFoundError:
            is_ours = False
        if is_ours:
            os.replace(partial, self.values)
            return
        with atomic_write(self.values) as temporary, open(temporary, "wb") as file:
            np.save(file, values)

    def _compute(
        self,
        backbone: Backbone,
        source: Images | Arrays,
        plan: Plan,
        maps: bool,
        device: torch.device | str,
        batcher: MicroBatcher,
    ) -> Iterator[_Computed]:
        """What the backbone says of this process's batches of the plan."""

        def look(view: torch.Tensor) -> torch.Tensor:
            features = backbone(view)
            return (features if maps else pool(features)).to(torch.float16)

        plan = plan[distributed.rank() :: distributed.world_size()]
        fetched = source.fetch(plan, (self.view,), seed=_COPY_SEED, epoch=self.copy)
        for planned, (images, views) in zip(plan, fetched, strict=True):
            out, why = None, {}
            if len(images):
                with torch.inference_mode():
                    out = batcher.run(look, views[0].to(device)).cpu().numpy()
            if isinstance(source, Images):
                why = {str(number): list(source.bad[number]) for number in np.setdiff1d(planned, images).tolist()}
            yield _Computed(planned, images, out, why)


class _Computed(NamedTuple):
    """One batch: the images planned, those read, their features (B, …) float16, and why others could not be read."""

    planned: NDArray[np.int64]
    images: NDArray[np.int64]
    out: NDArray[np.float16] | None
    why: dict[str, list[str]]


def _allocate(path: Path, shape: tuple[int, ...]) -> Any:
    """A mapped file with all its space on the disk: writing into one without would end the process when it is full."""
    path.unlink(missing_ok=True)  # not cut short: another job may have it open
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on every system
        try:
            with open(path, "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            path.unlink()
            if error.errno in DISK_FULL:
                raise disk_full_error(path, error) from None
            raise
    return values


def _tidy(folder: Path, locked: bool) -> None:
    """Remove what builds left that were killed."""
    left = [path for path in folder.glob("values.*.partial.npy") if _age(path) > ABANDONED]
    for path in [*left, *(folder.glob(".*.tmp") if locked else ())]:
        path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Seconds since it was last written to."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _is_whole(partial: Path, so_far: dict[str, Any]) -> bool:
    """Whether a half-built file holds what was noted of it."""
    try:
        values = np.lib.format.open_memmap(partial, mode="r")
        return zlib.crc32(values[: so_far["done"]].tobytes()) == so_far["crc32"] and isinstance(so_far["bad"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _together(plan: Plan, own: Iterator[_Computed]) -> Iterator[_Computed]:
    """The batches of all processes in the order of the plan, in the first one; nothing in the others."""
    for _ in range(0, len(plan), distributed.world_size()):
        for found in distributed.gather_to_main(next(own, None)):
            if found is not None:
                yield found


def _name(backbone: Backbone, source: Images | Arrays, maps: bool) -> str:
    names = hashlib.sha256(source.hashes.tobytes()).hexdigest()[:12]
    size = source.views["plain"].size
    return f"{backbone.name.replace('/', '_')}-{size}px-{'maps' if maps else 'pooled'}-{names}"


def _stamp(source: Images | Arrays) -> str:
    """Changes when any image does: by content in memory, by size and time of change for files."""
    sha = hashlib.sha256()
    if isinstance(source, Arrays):
        sha.update(source.images.contiguous().numpy().data)
    elif isinstance(source, PackedImages):
        sha.update(source.stamp())
    else:
        for path in source.paths:
            try:
                found = os.stat(path)
                sha.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
            except OSError:
                sha.update(b"missing\n")
    return sha.hexdigest()[:16]


def _checksum(path: Path) -> int:
    crc = 0
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                crc = zlib.crc32(block, crc)
    except OSError:
        return -1
    return crc


def _open(path: Path) -> NDArray[Any]:
    values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return values


def _read_json(path: Path) -> dict[str, Any]:
    """The file's content, or nothing where it is missing or damaged: both mean that there is no cache."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
