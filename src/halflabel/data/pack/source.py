"""Packs as sources: their images decoded by workers, or on the device, where the views of a batch can be made too."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from halflabel.data.decode import MAX_PIXELS, BadImage
from halflabel.data.gpu_views import make_view
from halflabel.data.pack.read import Pack, decode_jpegs, open_pack
from halflabel.data.quarantine import Quarantine
from halflabel.data.sources import FetchedBatch, Images, Plan
from halflabel.data.views import Plain, View, Weak, view_keys
from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.system.rng import bits

__all__ = ["DeviceViews", "PackedImages", "open_packed_images"]

_ORDER = 0x6F726472  # the draws of the reading order are not those of any other purpose
_BLOCK = 128  # images that lie together and are read together
_WINDOW = 32  # blocks whose images are mixed
_AHEAD = 2048  # images that the system is told of before they are asked for


class PackedImages(Images):
    """The images of a pack, decoded and augmented by worker processes; beside what `Images` says:

    A JPEG that is stored larger than all views need is decoded at a half, a quarter or an eighth. An image whose bytes
    do not match their checksum is unreadable. 8 bytes per image beside its name and its hash.
    """

    def __init__(
        self,
        pack: Pack,
        at: NDArray[np.int64],
        names: Names,
        views: Mapping[str, View],
        *,
        workers: int = 0,
        max_bad: float = 0.01,
        max_pixels: int = MAX_PIXELS,
        quarantine: Quarantine | None = None,
    ) -> None:
        more: dict[str, Any] = {"workers": workers, "max_bad": max_bad, "max_pixels": max_pixels}
        super().__init__((), names, views, quarantine=quarantine, **more)
        self.pack = pack
        self.at = at  # (N,) numbers in the pack, −1 for an image that is not there
        self.paths = _Paths(pack.folder, names)

    def __len__(self) -> int:
        return len(self.at)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64] | None:
        """All images, blocks of neighbours in a random order, then the images of several blocks mixed.

        A disk reads a block in one go; a full shuffle would have it seek for each image. A function of seed, epoch and
        the pack. None where the pack was not made to be read like this: then any order will do.
        """
        if self.pack.stored.shuffle != "blocks" or not len(self):
            return None
        block = np.maximum(self.at, 0) // _BLOCK
        blocks = int(block.max()) + 1
        turn = np.empty(blocks, np.int64)
        turn[np.argsort(bits(seed, _ORDER, epoch, np.arange(blocks)), kind="stable")] = np.arange(blocks)
        return np.lexsort((bits(seed, _ORDER, epoch, self.hashes), turn[block] // _WINDOW))

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        return super().fetch(_ReadAheadPlan(plan, self.pack, self.at), views, seed=seed, epoch=epoch)

    def read(self, plan: Plan) -> Iterator[tuple[NDArray[np.int64], list[bytes | BadImage]]]:
        """The stored bytes of the images of a plan, batch by batch, read by threads a few batches ahead."""

        def stored(index: NDArray[np.int64]) -> list[bytes | BadImage]:
            found: list[bytes | BadImage] = []
            for number in index.tolist():
                at = int(self.at[number])
                try:
                    found.append(self.pack.read(at) if at >= 0 else BadImage(self.paths[number], "not in the pack"))
                except BadImage as bad:
                    found.append(bad)
            return found

        threads = max(1, self.workers)
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[tuple[NDArray[np.int64], Future[list[bytes | BadImage]]]] = deque()
            try:
                for index in _ReadAheadPlan(plan, self.pack, self.at):
                    waiting.append((index, pool.submit(stored, index)))
                    if len(waiting) > 2 * threads:
                        first, ready = waiting.popleft()
                        yield first, ready.result()
                while waiting:
                    first, ready = waiting.popleft()
                    yield first, ready.result()
            finally:  # a pass that is broken off must not read on
                for _, ready in waiting:
                    ready.cancel()

    def stamp(self) -> bytes:
        """Changes when any image does."""
        return self.pack.stamp.encode() + self.at.tobytes()

    def _decoder(self) -> Dataset[Any]:
        return _PackDecoder(self.pack, self.at, self.paths, self.views, self.max_pixels)


def open_packed_images(
    names: Names,
    folder: Path,
    views: Mapping[str, View],
    *,
    workers: int = 0,
    max_bad: float = 0.01,
    quarantine: Quarantine | None = None,
) -> PackedImages:
    """The images of a label table in a pack, by the rules for a folder; one that is not there is unreadable."""
    pack = open_pack(folder)
    for view in views.values():
        if view.size > pack.stored.size:
            raise UserError(
                f"the pack {folder} holds images of {pack.stored.size} px, {view.size} px are asked for",
                f"use --size {pack.stored.size}, or pack the images with --size {view.size}",
            )
        if pack.stored.resize == "squash" and getattr(view, "resize", "squash") != "squash":
            raise UserError(
                f"the images of the pack {folder} are squashed to squares: none can be cut out of them",
                "use --resize squash, or pack the images with --resize short",
            )
    at = pack.find(names.array)
    if len(at) and (at < 0).all():
        raise UserError(
            f"none of the {len(at)} images of the label file is in {folder} (first: {names[0]!r})",
            "check the pack; names may leave out the ending, such as .jpg",
        )
    return PackedImages(pack, at, names, views, workers=workers, max_bad=max_bad, quarantine=quarantine)


class _Paths(Sequence[str]):
    """PACK/NAME of each image, made when asked for: a list of them would take more room than the index."""

    def __init__(self, folder: Path, names: Names) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        return str(self.folder / self.names[number])


class _ReadAheadPlan(Sequence[NDArray[np.int64]]):
    """A plan that, while it is gone through, has the system read ahead what comes next."""

    def __init__(self, plan: Plan, pack: Pack, at: NDArray[np.int64]) -> None:
        self.plan, self.pack, self.at = plan, pack, at

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, number: Any) -> Any:
        return self.plan[number]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        step = max(1, _AHEAD // max(len(self.plan[0]), 1)) if len(self.plan) else 1
        for number, index in enumerate(self.plan):
            if number % step == 0:
                first = number + step if number else 0
                self._expect(self.plan[first : number + 2 * step])
            yield index

    def _expect(self, batches: Plan) -> None:
        if len(batches):
            at = self.at[np.concatenate(batches)]
            self.pack.read_ahead(at[at >= 0])


class _PackDecoder(Dataset[Any]):
    def __init__(
        self, pack: Pack, at: NDArray[np.int64], paths: Sequence[str], views: Mapping[str, View], max_pixels: int
    ) -> None:
        self.pack, self.at, self.paths, self.views, self.max_pixels = pack, at, paths, views, max_pixels

    def __getitem__(self, item: tuple[int, tuple[str, ...], list[int]]) -> Any:
        number, names, keys = item
        stored = int(self.at[number])
        if stored < 0:
            return number, None, (number, self.paths[number], "not in the pack")
        views = [self.views[name] for name in names]
        try:
            image = self.pack.image(stored, least=min_source_side(views), max_pixels=self.max_pixels)
        except BadImage as bad:
            return number, None, (number, str(bad.path), bad.reason)
        return number, tuple(view(image, key) for view, key in zip(views, keys, strict=True)), None


def min_source_side(views: Sequence[View]) -> int:
    """The shorter side from which none of the views enlarges what it shows; 0 where that is not known."""
    sides = []
    for view in views:
        match view:
            case Plain():
                share = 1.0 if view.resize == "squash" else view.crop_pct
            case Weak():
                share = math.sqrt(view.least)
            case _:
                return 0
        sides.append(math.ceil(view.size / share))
    return max(sides, default=0)


class DeviceViews:
    """Another source's plain views, and the other views made of them on the device, a whole batch at a time.

    The workers then only decode. The draws are those of the views on the CPU; the pixels differ a little, as
    `resident` says. With `decode`, the JPEGs of a pack are decoded on the device as well, where it is a GPU; a batch
    that it cannot decode is left to the CPU. Threads then only read.
    """

    def __init__(self, whole: Images, device: torch.device | str, *, decode: bool = False) -> None:
        self.whole = whole
        self.device = torch.device(device)
        self.decode = decode
        self.names, self.hashes, self.views = whole.names, whole.hashes, whole.views

    def __len__(self) -> int:
        return len(self.whole)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64] | None:
        return self.whole.order(seed, epoch) if isinstance(self.whole, PackedImages) else None

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        whole = self.whole
        if self.decode and self.device.type == "cuda" and isinstance(whole, PackedImages):
            batches: Iterator[FetchedBatch] = (self._decoded(whole, *some) for some in whole.read(plan))
        else:
            batches = whole.fetch(plan, ("plain",), seed=seed, epoch=epoch)
        for index, plain in batches:
            if not len(index):
                yield FetchedBatch(index, ())
                continue
            images = plain[0].to(self.device, non_blocking=True)
            keys = view_keys(seed, epoch, self.hashes[index], len(views))
            yield FetchedBatch(
                index, tuple(make_view(self.views[name], images, keys[:, v]) for v, name in enumerate(views))
            )

    def _decoded(self, whole: PackedImages, index: NDArray[np.int64], data: list[bytes | BadImage]) -> FetchedBatch:
        """Plain views of stored bytes, decoded on the device."""
        encoded = [one for one in data if isinstance(one, bytes)]
        decoded = decode_jpegs(encoded, self.device) if encoded and whole.pack.stored.store == "jpeg" else None
        images = iter(decoded or ())
        plain = whole.views["plain"]
        good, found = [], []
        for place, number in enumerate(index.tolist()):
            one = data[place]
            try:
                if isinstance(one, BadImage):
                    raise one
                image = next(images) if decoded else whole.pack.decode(int(whole.at[number]), one).to(self.device)
                found.append(plain(image, 0))
                good.append(number)
            except BadImage as bad:
                whole.mark_unreadable(number, str(bad.path), bad.reason)
        return FetchedBatch(np.asarray(good, np.int64), (torch.stack(found),) if found else ())
