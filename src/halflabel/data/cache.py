"""The feature cache: what a frozen backbone says of every image, computed once, so that a head trains in seconds.

Float16, memory-mapped: 2·D bytes per image and view for pooled features, 2·D·h·w for maps.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import processes
from halflabel.backbones import Backbone, fingerprint
from halflabel.data.packed import Packed
from halflabel.data.sources import Arrays, Features, Images, Plan, sequential
from halflabel.errors import UserError
from halflabel.files import FULL, no_space, write_json
from halflabel.heads import pool
from halflabel.room import Room

__all__ = ["cache_features"]

_BLOCK = 1 << 24
_KEEP = 512  # images between two notes of how far the building has come
_COPY_SEED = 0x636F7079  # of the strong views kept here, whatever seed trains on them


def cache_features(
    backbone: Backbone,
    source: Images | Arrays,
    folder: Path,
    *,
    maps: bool = False,
    copies: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Features:
    """The features of every image, a plain view and `copies` strong ones, from the cache where it is still true.

    A cache belongs to a list of image names. It is stale, and built again, when the weights, the view or the files
    changed, or when its bytes do not match their checksum. A build that was interrupted goes on where it stopped.
    Each strong view of an image is kept beside the plain one and goes stale by itself, so more of them can be added
    later. They are an approximation: a few fixed augmentations in the place of a fresh one each time an image is seen.
    (1 + copies) · 2·D bytes per image for pooled features, · h·w for maps: efficientnet-lite0 at 224 px takes 2.5 kB
    and 125 kB per view. `progress` is told (images done, of how many), `say` why a cache is built anew.
    Several processes build it together; the first one writes, and all must be able to read the folder.
    """
    if copies and "strong" not in source.views:
        raise UserError("these images have no strong view to keep copies of", "give the source one, or copies=0")
    place = folder / _name(backbone, source, maps)
    weights, images = fingerprint(backbone), _stamp(source)
    made_of = {"weights": weights, "view": source.views["plain"].describe(), "images": images}
    shelves = [_Shelf(place, "plain", 0, made_of)]
    for copy in range(copies):
        made_of = {"weights": weights, "strong view": source.views["strong"].describe(), "images": images}
        shelves.append(_Shelf(place / f"strong-{copy}", "strong", copy, made_of))
    faults = processes.on_first(lambda: [shelf.fault() for shelf in shelves])
    for reason in dict.fromkeys(faults):  # each once
        if reason and say is not None:
            say(f"the feature cache is stale ({reason}): computing it again")
    stale = [shelf for shelf, fault in zip(shelves, faults, strict=True) if fault is not None]
    total = len(stale) * len(source)
    for number, shelf in enumerate(stale):

        def tell(done: int, before: int = number * len(source)) -> None:
            if progress is not None:
                progress(before + done, total)

        shelf.build(backbone, source, maps, device, batch_size, tell)
    if not all(processes.gather(all(shelf.values.exists() for shelf in shelves))):
        raise UserError(
            f"not every process can read the feature cache in {folder}", "put the run into a folder all machines share"
        )
    bad: dict[int, list[str]] = {}
    for shelf in shelves:
        bad |= shelf.bad()
    if isinstance(source, Images):
        for image, (_, path, why) in bad.items():
            source.put_aside(image, path, why)
    plain, *strong = (_open(shelf.values) for shelf in shelves)
    return Features(plain, source.names, list(bad), strong=strong)


@dataclass(frozen=True)
class _Shelf:
    """One view of every image in a folder: values.npy and, once it is whole, cache.json with what it was made of."""

    folder: Path
    view: str
    copy: int
    made_of: dict[str, str]

    @property
    def values(self) -> Path:
        return self.folder / "values.npy"

    def fault(self) -> str | None:
        """Why it has to be built again; None if it is true, "" if there is nothing yet."""
        found = _read_json(self.folder / "cache.json")
        made_of = found.get("made_of", self.made_of)
        if changed := [what for what, key in self.made_of.items() if made_of.get(what) != key]:
            return f"the {' and the '.join(changed)} changed"
        if "made_of" not in found:
            return ""
        return None if _checksum(self.values) == found.get("crc32") else "its bytes do not match their checksum"

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
    ) -> None:
        partial = self.folder / "values.partial.npy"

        def begin() -> tuple[bool, dict[str, Any]]:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "cache.json").unlink(missing_ok=True)
            for stale in self.folder.glob(".*.tmp"):  # of a build that was killed while it wrote
                stale.unlink(missing_ok=True)
            so_far = _read_json(self.folder / "building.json")
            return so_far.get("made_of") != self.made_of or not _is_whole(partial, so_far), so_far

        fresh, so_far = processes.on_first(begin)
        writes = processes.is_first()
        done: int = 0 if fresh else so_far["done"] // batch_size * batch_size  # whole batches, whatever they were then
        bad: dict[str, list[str]] = {} if fresh else so_far["bad"]
        values: Any = np.lib.format.open_memmap(partial, mode="r+") if writes and not fresh else None
        noted, crc = done, zlib.crc32(values[:done].tobytes()) if done and writes else 0
        room = Room()

        def note() -> None:
            nonlocal noted, crc
            values.flush()
            crc = zlib.crc32(values[noted:done].tobytes(), crc)
            noted = done
            content = {"made_of": self.made_of, "done": done, "crc32": crc, "bad": bad}
            write_json(self.folder / "building.json", content)

        backbone = backbone.to(device).to(memory_format=torch.channels_last).eval()
        plan = sequential(len(source), batch_size)[done // batch_size :]
        try:
            for planned, images, out, why in _together(plan, self._compute(backbone, source, plan, maps, device, room)):
                bad |= why
                if out is not None:
                    if values is None:
                        values = _allocate(partial, (len(source), *out.shape[1:]))
                    values[images] = out
                done = int(planned[-1]) + 1
                if values is not None and done - noted >= _KEEP:
                    note()
                tell(done)
        except KeyboardInterrupt:
            if values is not None and done > noted:
                note()
            raise

        def end() -> None:
            if values is None:
                raise UserError("not one image could be read", "check the image folder")
            values.flush()
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, self.values)
            crc = _checksum(self.values)
            note = {"made_of": self.made_of, "crc32": crc, "bad": bad, "backbone": backbone.name}
            write_json(self.folder / "cache.json", note)
            (self.folder / "building.json").unlink(missing_ok=True)

        processes.on_first(end)

    def _compute(
        self,
        backbone: Backbone,
        source: Images | Arrays,
        plan: Plan,
        maps: bool,
        device: torch.device | str,
        room: Room,
    ) -> Iterator[_Computed]:
        """What the backbone says of this process's batches of the plan."""

        def look(view: torch.Tensor) -> torch.Tensor:
            features = backbone(view)
            return (features if maps else pool(features)).to(torch.float16)

        plan = plan[processes.rank() :: processes.count()]
        fetched = source.fetch(plan, (self.view,), seed=_COPY_SEED, epoch=self.copy)
        for planned, (images, views) in zip(plan, fetched, strict=True):
            out, why = None, {}
            if len(images):
                with torch.inference_mode():
                    out = room.run(look, views[0].to(device)).cpu().numpy()
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
    """A mapped file with all its room on the disk: writing into one without would end the process when it is full."""
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on every system
        try:
            with open(path, "rb+") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            path.unlink()
            if error.errno in FULL:
                raise no_space(path, error) from None
            raise
    return values


def _is_whole(partial: Path, so_far: dict[str, Any]) -> bool:
    """Whether a half-built file holds what was noted of it."""
    try:
        values = np.lib.format.open_memmap(partial, mode="r")
        return zlib.crc32(values[: so_far["done"]].tobytes()) == so_far["crc32"] and isinstance(so_far["bad"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _together(plan: Plan, own: Iterator[_Computed]) -> Iterator[_Computed]:
    """The batches of all processes in the order of the plan, in the first one; nothing in the others."""
    for _ in range(0, len(plan), processes.count()):
        for found in processes.to_first(next(own, None)):
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
    elif isinstance(source, Packed):
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
