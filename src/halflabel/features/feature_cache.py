"""The feature cache: the features of a frozen backbone for every image, computed once, so that a head trains fast.

Float16, memory-mapped: 2·D bytes per image and view for pooled features, 2·D·h·w for maps.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.errors import NoReadableImage, UserError
from halflabel.features.backbones import Backbone, fingerprint
from halflabel.features.feature_blocks import FeatureBatch, FeatureExtractor, engine_device, goes_to_ray
from halflabel.features.onnx_features import OnnxBackbone, find_onnx_backbone
from halflabel.images.file_identity import FileState
from halflabel.images.pack.source import PackedImages
from halflabel.images.sources import Arrays, Features, Images, Plan, sequential_plan
from halflabel.system import distributed
from halflabel.system.files import DISK_FULL, JobLock, atomic_write, disk_full_error, file_crc32, write_json
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.threads import use_free_cores

_NOTE_IMAGES = 512  # images between two notes of how far a build is
_NOTE_SECONDS = 30.0  # the longest time between two notes
_POLL_SECONDS = 0.5  # between two checks whether another job has ended


def copies_for(views: Sequence[str], copies: int) -> int:
    """The number of strong views to cache for a method that uses these views: `copies`, or 0 without strong views.

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
    reporter: Reporter = SILENT,
) -> Features:
    """The features of every image, of its plain view and `copies` strong views, computed if they are not cached.

    A cache belongs to a list of image names, and to the weights, the view and the state of the image files: with other
    ones, a new cache is written beside it. A cache whose checksum does not match is computed again. An interrupted
    build is continued. If several jobs need the same cache, one builds it and the others wait; on a disk without locks
    they compute the same values at once.
    Each strong view of all images is a cache of its own in the folder of the plain one, so more can be added later.
    They are an approximation: a few fixed augmentations instead of a new one each time an image is seen.
    (1 + copies) · 2·D bytes per image for pooled features, times h·w for maps: efficientnet-lite0 at 224 px takes
    2.5 kB and 125 kB per view. On a CPU, ONNX Runtime computes pooled features where it can, see `find_onnx_backbone`.
    `batch_size`: by default 128 on a GPU, else 16. Messages say why a cache is computed
    again or waited for. Several processes build it together; the first one writes, and all must see the folder.
    With `--engine ray` the workers of the cluster compute blocks of images, and this process writes them.
    """
    if copies and "strong" not in source.views:
        raise UserError("these images have no strong view to cache", "give the source a strong view, or use copies=0")
    device = engine_device(source, device)
    if batch_size is None:
        batch_size = 128 if torch.device(device).type == "cuda" else 16
    caches = _view_caches(backbone, source, folder, maps, copies)
    messages: set[str] = set()

    def message_once(line: str) -> None:
        if line not in messages:
            reporter.message(line)
        messages.add(line)

    faults = distributed.run_on_main(lambda: [cache.fault() for cache in caches])
    missing = [cache for cache, fault in zip(caches, faults, strict=True) if fault is not None]
    total = len(missing) * len(source)
    network: Backbone | OnnxBackbone = backbone
    if missing and not maps:
        view, images = source.views["plain"], len(source)
        network = (
            find_onnx_backbone(backbone, view, folder, images=images, device=device, reporter=reporter) or backbone
        )
    for number, cache in enumerate(missing):

        def progress(done: int, before: int = number * len(source)) -> None:
            if distributed.is_main():
                reporter.progress(before + done, total)

        with cache.exclusive(message_once, progress):
            fault = distributed.run_on_main(cache.fault)  # another job may have built it meanwhile
            if fault is None:
                progress(len(source))
                continue
            if fault:
                message_once(f"the feature cache is stale ({fault}): computing it again")
            elif changed := distributed.run_on_main(cache.difference):
                message_once(f"the cached features do not fit ({changed}): computing others beside them")
            with use_free_cores():
                _Build(cache, network, source, maps, device, batch_size, progress).run()
    if not all(distributed.all_gather(all(cache.values.exists() for cache in caches))):
        raise UserError(
            f"not every process can read the feature cache in {folder}", "put the run into a folder all machines share"
        )
    unreadable: dict[int, list[str]] = {}
    for cache in caches:
        unreadable |= cache.unreadable()
        if distributed.is_main():
            with suppress(OSError):  # on a read-only disk the time of use is not stored
                os.utime(cache.folder / "cache.json")
    if isinstance(source, Images):
        for image, (_, path, reason) in unreadable.items():
            source.mark_unreadable(image, path, reason)
    plain, *strong = (np.load(cache.values, mmap_mode="c", allow_pickle=False) for cache in caches)
    return Features(plain, source.names, list(unreadable), strong=strong if "strong" in source.views else None)


def _view_caches(
    backbone: Backbone, source: Images | Arrays, folder: Path, maps: bool, copies: int
) -> list[_ViewCache]:
    """The cache of the plain view, then those of the strong views, in folders inside its folder."""
    weights, images = fingerprint(backbone), _images_digest(source)
    plain = "square" if maps and "square" in source.views else "plain"  # maps must have one shape
    files = FileState(source.paths if isinstance(source, Images) and not isinstance(source, PackedImages) else ())
    made_of = {"weights": weights, "view": source.views[plain].describe(), "images": images}
    caches = [_ViewCache(folder, _stem(backbone, source, maps), plain, 0, made_of, files)]
    for copy in range(copies):
        made_of = {"weights": weights, "strong view": source.views["strong"].describe(), "images": images}
        caches.append(_ViewCache(caches[0].folder, f"strong-{copy}", "strong", copy, made_of, files))
    return caches


@dataclass(frozen=True)
class _ViewCache:
    """The features of one view of every image: a folder with values.npy and, once it is complete, cache.json.

    The folder's name is the stem and a digest of `made_of`.
    """

    parent: Path
    stem: str
    view: str
    copy: int
    made_of: dict[str, str]
    files: FileState

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(json.dumps(self.made_of, sort_keys=True).encode()).hexdigest()[:8]
        return self.parent / f"{self.stem}-{digest}"

    @property
    def values(self) -> Path:
        return self.folder / "values.npy"

    def fault(self) -> str | None:
        """Why it must be computed again; None if it is valid, "" if there is none yet."""
        note = _read_note(self.folder / "cache.json")
        if not isinstance(note.get("made_of"), dict):
            return ""
        if changed := self._changed(note):
            return changed
        if not self.files.fits(note):
            return "an image was replaced by another of the same size and time"
        return None if _values_checksum(self.values) == note.get("crc32") else "its bytes do not match their checksum"

    def difference(self) -> str:
        """How it differs from the most similar cache of the same images; "" if there is none."""
        folders = self.parent.glob(f"{glob.escape(self.stem)}-*")
        notes = [_read_note(folder / "cache.json") for folder in folders]
        differences = [self._changed(note) for note in notes if isinstance(note.get("made_of"), dict)]
        return min(differences, key=len, default="")

    def _changed(self, note: dict[str, Any]) -> str:
        changed = [name for name, value in self.made_of.items() if note["made_of"].get(name) != value]
        return f"the {' and the '.join(changed)} changed" if changed else ""

    @contextmanager
    def exclusive(self, message: Callable[[str], None], progress: Callable[[int], None]) -> Iterator[None]:
        """Wait until no other job builds it, then lock it, where locks work."""
        lock = JobLock(self.folder / "building.lock")
        try:
            while not distributed.run_on_main(lock.try_acquire):
                message("another job is computing these features: waiting")
                done = _read_note(self.folder / "building.json").get("done", 0)
                progress(done if isinstance(done, int) else 0)
                time.sleep(_POLL_SECONDS)
            if lock.is_held:  # otherwise another job may be writing them
                for leftover in self.folder.glob(".*.tmp"):  # of a build that was killed
                    leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def unreadable(self) -> dict[int, list[str]]:
        """The images that could not be read, by number: image, path, reason."""
        return {int(number): why for number, why in _read_note(self.folder / "cache.json")["bad"].items()}


@dataclass
class _Build:
    """One build of a view's cache, into a partial file that is renamed when it is complete.

    Notes in building.json let the next job continue an interrupted build.
    """

    cache: _ViewCache
    network: Backbone | OnnxBackbone
    source: Images | Arrays
    maps: bool
    device: torch.device | str
    batch_size: int
    progress: Callable[[int], None]
    done: int = 0  # images that are computed
    noted: int = 0  # images at the newest note
    noted_at: float = 0.0
    crc: int = 0  # checksum of the noted images
    bad: dict[str, list[str]] = field(default_factory=dict)
    values: Any = None  # the memory-mapped partial file, in the first process

    def __post_init__(self) -> None:
        self.partial = self.cache.folder / "values.partial.npy"
        self.partial_stat: os.stat_result | None = None  # of the partial file

    def run(self) -> None:
        distributed.run_on_main(self.cache.files.note)  # the state before the images are read
        self._continue_or_start()
        try:
            for batch in self._compute():
                self._store(batch)
                self.progress(self.done)
        except BaseException as error:
            if not isinstance(error, OSError) and self.values is not None and self.done > self.noted:
                self._note()  # stopped, or out of time: the next job continues from here
            raise
        distributed.run_on_main(self._finish)

    def _compute(self) -> Iterator[FeatureBatch]:
        """Compute what is left, in this process, in all processes of the job or on Ray."""
        view, copy = self.cache.view, self.cache.copy
        extractor = FeatureExtractor(self.network, view, copy, self.maps, self.device, self.batch_size)
        if isinstance(self.source, Images) and goes_to_ray(self.source):
            return extractor.on_ray(self.source, self.done)
        plan = sequential_plan(len(self.source), self.batch_size)[self.done // self.batch_size :]
        local = plan[distributed.rank() :: distributed.world_size()]
        return _gather_batches(plan, extractor.batches(self.source, local))

    def _continue_or_start(self) -> None:
        def find_earlier_build() -> dict[str, Any] | None:
            self.cache.folder.mkdir(parents=True, exist_ok=True)
            note = _read_note(self.cache.folder / "building.json")
            is_same = note.get("made_of") == self.cache.made_of and self.cache.files.fits(note)
            return note if is_same and _is_valid_partial(self.partial, note) else None

        note = distributed.run_on_main(find_earlier_build)
        if note is not None:
            self.done = note["done"] // self.batch_size * self.batch_size  # whole batches of the present size
            self.bad = note["bad"]
            if distributed.is_main():
                self.values = np.lib.format.open_memmap(self.partial, mode="r+")
                self.partial_stat = os.stat(self.partial)
                self.crc = zlib.crc32(self.values[: self.done].tobytes()) if self.done else 0
        self.noted, self.noted_at = self.done, time.monotonic()

    def _store(self, batch: FeatureBatch) -> None:
        self.bad |= batch.bad
        if batch.features is not None:
            if self.values is None:
                self.values = _allocate_values(self.partial, (len(self.source), *batch.features.shape[1:]))
                self.partial_stat = os.stat(self.partial)
            self.values[batch.images] = batch.features
        self.done = int(batch.planned[-1]) + 1
        is_due = self.done - self.noted >= _NOTE_IMAGES or time.monotonic() - self.noted_at >= _NOTE_SECONDS
        if self.values is not None and is_due:
            self._note()

    def _note(self) -> None:
        """Write to the disk what is computed, and how much that is."""
        self.values.flush()
        self.crc = zlib.crc32(self.values[self.noted : self.done].tobytes(), self.crc)
        note = {"made_of": self.cache.made_of, "done": self.done, "crc32": self.crc, "bad": self.bad}
        write_json(self.cache.folder / "building.json", note | self.cache.files.note())
        self.noted, self.noted_at = self.done, time.monotonic()

    def _finish(self) -> None:
        if self.values is None or self.partial_stat is None:
            raise NoReadableImage("not one image could be read", "check the image folder")
        self.values.flush()
        self._rename(self.partial_stat)
        crc = _values_checksum(self.cache.values)
        note = {"made_of": self.cache.made_of, "crc32": crc, "bad": self.bad, "backbone": self.network.name}
        write_json(self.cache.folder / "cache.json", note | self.cache.files.note())
        (self.cache.folder / "building.json").unlink(missing_ok=True)

    def _rename(self, opened: os.stat_result) -> None:
        """Rename the partial file to values.npy. If it is no longer the file that was written, write the values again.

        On a disk without locks, or one that grants the same lock twice, another job may have replaced the partial file.
        """
        try:
            with open(self.partial, "rb") as file:
                os.fsync(file.fileno())
                is_same = os.path.samestat(os.fstat(file.fileno()), opened)
        except FileNotFoundError:
            is_same = False
        if is_same:
            os.replace(self.partial, self.cache.values)
            return
        with atomic_write(self.cache.values) as temporary, open(temporary, "wb") as file:
            np.save(file, self.values)


def _gather_batches(plan: Plan, local: Iterator[FeatureBatch]) -> Iterator[FeatureBatch]:
    """The batches of all processes in the order of the plan, in the first process; nothing in the others."""
    for _ in range(0, len(plan), distributed.world_size()):
        for batch in distributed.gather_to_main(next(local, None)):
            if batch is not None:
                yield batch


def _stem(backbone: Backbone, source: Images | Arrays, maps: bool) -> str:
    names = hashlib.sha256(source.hashes.tobytes()).hexdigest()[:12]
    size = source.views["plain"].size
    return f"{backbone.name.replace('/', '_')}-{size}px-{'maps' if maps else 'pooled'}-{names}"


def _images_digest(source: Images | Arrays) -> str:
    """Changes when an image changes: by content for arrays, by size and modification time for files."""
    digest = hashlib.sha256()
    if isinstance(source, Arrays):
        for image in source.images:
            digest.update(image.contiguous().numpy().data)
    elif isinstance(source, PackedImages):
        digest.update(source.stamp())
    else:
        for path in source.paths:
            try:
                stat = os.stat(path)
                digest.update(f"{stat.st_size} {stat.st_mtime_ns}\n".encode())
            except OSError:
                digest.update(b"missing\n")
    return digest.hexdigest()[:16]


def _allocate_values(path: Path, shape: tuple[int, ...]) -> Any:
    """A memory-mapped file with its disk space reserved: otherwise a full disk would kill the process at a write."""
    path.unlink(missing_ok=True)  # not truncated: another job may have it open
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


def _is_valid_partial(partial: Path, note: dict[str, Any]) -> bool:
    """Whether a partial file matches the note about it."""
    try:
        values = np.lib.format.open_memmap(partial, mode="r")
        return zlib.crc32(values[: note["done"]].tobytes()) == note["crc32"] and isinstance(note["bad"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _values_checksum(path: Path) -> int:
    """The CRC-32 of a file; -1 if it cannot be read."""
    try:
        return file_crc32(path)
    except OSError:
        return -1


def _read_note(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or damaged, which both mean that there is no cache."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
