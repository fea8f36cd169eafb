"""Packs as image sources, decoded by worker processes."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, none_found_error
from halflabel.images.file_identity import content_digest
from halflabel.images.pack.read import Pack, open_pack
from halflabel.images.sources import Images, Plan
from halflabel.images.views import Plain, Varied, View, Weak
from halflabel.labels.names import Names
from halflabel.system.rng import bits

_ORDER = 0x6F726472  # separates the random numbers of the reading order from all others
_BLOCK = 128  # neighbouring images that are read together
_WINDOW = 32  # blocks whose images are shuffled together
_AHEAD = 2048  # images that the system reads ahead


class PackedImages(Images):
    """The images of a pack, like `Images`; JPEGs larger than all views need are decoded at a part of their size."""

    def __init__(
        self,
        pack: Pack,
        positions: NDArray[np.int64],
        names: Names,
        views: Mapping[str, View],
        **options: Any,
    ) -> None:
        super().__init__((), names, views, **options)
        self.pack = pack
        self.positions = positions  # (N,) numbers in the pack, −1 for an image that is not there
        self.paths = ImagePaths(pack.folder, names)

    def __len__(self) -> int:
        return len(self.positions)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64] | None:
        """Return all images in a random order of blocks, with the images of several blocks shuffled together.

        A disk reads a block at once; a full shuffle would make it seek for each image. None if any order will do: few
        images, or tars of others, which are perhaps sorted.
        """
        if self.pack.files is not None or len(self) <= _BLOCK * _WINDOW:
            return None
        block = np.maximum(self.positions, 0) // _BLOCK
        blocks = int(block.max()) + 1
        block_rank = np.empty(blocks, np.int64)
        block_rank[np.argsort(bits(seed, _ORDER, epoch, np.arange(blocks)), kind="stable")] = np.arange(blocks)
        return np.lexsort((bits(seed, _ORDER, epoch, self.hashes), block_rank[block] // _WINDOW))

    def _paced(self, plan: Plan) -> Iterator[NDArray[np.int64]]:
        return _reading_ahead(plan, self.pack, self.positions)

    def read(self, plan: Plan) -> Iterator[tuple[NDArray[np.int64], list[bytes | BadImage]]]:
        """Yield the stored bytes of the images of a plan, batch by batch, read by threads a few batches ahead."""

        def read_batch(index: NDArray[np.int64]) -> list[bytes | BadImage]:
            stored: list[bytes | BadImage] = []
            for number in index.tolist():
                position = int(self.positions[number])
                try:
                    if position < 0:
                        raise BadImage(self.paths[number], "not in the pack")
                    stored.append(self.pack.read(position))
                except BadImage as bad:
                    stored.append(bad)
            return stored

        threads = max(1, self.workers)
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[tuple[NDArray[np.int64], Future[list[bytes | BadImage]]]] = deque()
            try:
                for index in self._paced(plan):
                    waiting.append((index, pool.submit(read_batch, index)))
                    if len(waiting) > 2 * threads:
                        first, ready = waiting.popleft()
                        yield first, ready.result()
                while waiting:
                    first, ready = waiting.popleft()
                    yield first, ready.result()
            finally:  # an interrupted pass must not continue to read
                for _, ready in waiting:
                    ready.cancel()

    def part(self, index: NDArray[np.int64]) -> Images:
        return PackedImages(self.pack, self.positions[index], self.names.take(index), self.views, max_bad=1.0)

    def digest(self) -> str:
        """Return a digest that changes when any image changes."""
        return hashlib.sha256(self.pack.stamp.encode() + self.positions.tobytes()).hexdigest()[:16]

    def group_copies(self) -> NDArray[np.int64]:
        """Return the group of each image (N,): images with the same stored bytes are in one group."""
        is_packed = self.positions >= 0
        key = -1 - np.arange(len(self.positions))
        index = self.positions[is_packed]
        length = self.pack.index["length"][index]
        if "crc32" in self.pack.index:
            crc = self.pack.index["crc32"][index].astype(np.int64)
        else:  # only images of the same length are read
            _, group, count = np.unique(length, return_inverse=True, return_counts=True)
            crc = np.arange(len(index))
            for place in np.flatnonzero(count[group] > 1):
                with suppress(BadImage):
                    crc[place] = zlib.crc32(self.pack.read(int(index[place])))
        key[is_packed] = crc << 31 | length
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(first[group], np.int64)

    def _reader(self) -> Callable[[int, list[View]], tuple[torch.Tensor, int]]:
        return partial(_read_packed, self.pack, self.positions, self.paths)


def open_packed_images(names: Names, folder: Path, views: Mapping[str, View], **options: Any) -> PackedImages:
    """Open the images of a label table in a pack, with the options of `Images`; a missing image is unreadable."""
    pack = open_pack(folder)
    for view in views.values():
        if view.channels != 3:
            raise UserError(f"the pack {folder} holds RGB images, and other ‹channels› are needed", "name the folder")
        if view.size > pack.settings.size:
            raise UserError(
                f"the pack {folder} holds images of {pack.settings.size} px, but {view.size} px are needed",
                f"use ‹size={pack.settings.size}›, or pack the images with ‹size={view.size}›",
            )
    positions = pack.find(names.array)
    if len(positions) and (positions < 0).all():
        raise none_found_error(names, folder)
    return PackedImages(pack, positions, names, views, **options)


class ImagePaths(Sequence[str]):
    """FOLDER/NAME of each image, made on access: a list of them would take more memory than the index."""

    def __init__(self, folder: Path, names: Names) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        return str(self.folder / self.names[number])


def _reading_ahead(plan: Plan, pack: Pack, positions: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the batches of a plan, and make the system read ahead the images of the next ones."""
    step = max(1, _AHEAD // max(len(plan[0]), 1)) if len(plan) else 1
    for number, index in enumerate(plan):
        if number % step == 0 and (batches := plan[number + step if number else 0 : number + 2 * step]):
            ahead = positions[np.concatenate(batches)]
            pack.read_ahead(ahead[ahead >= 0])
        yield index


def _read_packed(
    pack: Pack, positions: NDArray[np.int64], paths: Sequence[str], number: int, views: list[View]
) -> tuple[torch.Tensor, int]:
    if positions[number] < 0:
        raise BadImage(paths[number], "not in the pack")
    data = pack.read(int(positions[number]))
    return pack.decode(int(positions[number]), data, min_side=min_source_side(views)), content_digest(data)


def min_source_side(views: Sequence[View]) -> int:
    """Return the shorter side of an image that no view has to enlarge; 0 if that is not known."""
    sides = []
    for view in views:
        match view:
            case Plain():
                share = view.crop_pct if view.resize == "crop" else 1.0
            case Varied():  # made from the plain view
                share = 1.0
            case Weak():
                share = math.sqrt(view.least)
            case _:
                return 0
        sides.append(math.ceil(view.size / share))
    return max(sides, default=0)
