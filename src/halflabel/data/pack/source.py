"""Packs as image sources, decoded by worker processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from halflabel.data.decode import MAX_PIXELS, BadImage
from halflabel.data.pack.read import Pack, open_pack
from halflabel.data.quarantine import Quarantine
from halflabel.data.sources import Images
from halflabel.data.views import Plain, View, Weak
from halflabel.errors import UserError
from halflabel.labels.names import Names

__all__ = ["PackedImages", "open_packed_images"]


class PackedImages(Images):
    """The images of a pack, decoded and augmented by worker processes like `Images`.

    A JPEG that is stored larger than all views need is decoded at a half, a quarter or an eighth of its size. An image
    whose bytes do not match their checksum is unreadable. Memory: 8 bytes per image besides its name and its hash.
    """

    def __init__(
        self,
        pack: Pack,
        positions: NDArray[np.int64],
        names: Names,
        views: Mapping[str, View],
        *,
        workers: int = 0,
        max_bad: float = 0.01,
        max_pixels: int = MAX_PIXELS,
        quarantine: Quarantine | None = None,
    ) -> None:
        super().__init__(
            (), names, views, workers=workers, max_bad=max_bad, max_pixels=max_pixels, quarantine=quarantine
        )
        self.pack = pack
        self.positions = positions  # (N,) numbers in the pack, −1 for an image that is not there
        self.paths = _Paths(pack.folder, names)

    def __len__(self) -> int:
        return len(self.positions)

    def stamp(self) -> bytes:
        """Return bytes that change when any image changes."""
        return self.pack.stamp.encode() + self.positions.tobytes()

    def _decoder(self) -> Dataset[Any]:
        return _PackDecoder(self.pack, self.positions, self.paths, self.views, self.max_pixels)


def open_packed_images(
    names: Names,
    folder: Path,
    views: Mapping[str, View],
    *,
    workers: int = 0,
    max_bad: float = 0.01,
    quarantine: Quarantine | None = None,
) -> PackedImages:
    """Open the images of a label table in a pack, by the rules for a folder; a missing image is unreadable."""
    pack = open_pack(folder)
    for view in views.values():
        if view.size > pack.settings.size:
            raise UserError(
                f"the pack {folder} holds images of {pack.settings.size} px, but {view.size} px are needed",
                f"use --size {pack.settings.size}, or pack the images with --size {view.size}",
            )
        if pack.settings.resize == "squash" and getattr(view, "resize", "squash") != "squash":
            raise UserError(
                f"the images of the pack {folder} are squashed to squares: squares cannot be cropped from them",
                "use --resize squash, or pack the images with --resize short",
            )
    positions = pack.find(names.array)
    if len(positions) and (positions < 0).all():
        raise UserError(
            f"none of the {len(positions)} images of the label file is in {folder} (first: {names[0]!r})",
            "check the pack; names may leave out the ending, such as .jpg",
        )
    return PackedImages(pack, positions, names, views, workers=workers, max_bad=max_bad, quarantine=quarantine)


class _Paths(Sequence[str]):
    """PACK/NAME of each image, made on access: a list of them would take more memory than the index."""

    def __init__(self, folder: Path, names: Names) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        return str(self.folder / self.names[number])


class _PackDecoder(Dataset[Any]):
    def __init__(
        self, pack: Pack, positions: NDArray[np.int64], paths: Sequence[str], views: Mapping[str, View], max_pixels: int
    ) -> None:
        self.pack, self.positions, self.paths, self.views, self.max_pixels = pack, positions, paths, views, max_pixels

    def __getitem__(self, item: tuple[int, tuple[str, ...], list[int]]) -> Any:
        number, names, keys = item
        position = int(self.positions[number])
        if position < 0:
            return number, None, (number, self.paths[number], "not in the pack")
        views = [self.views[name] for name in names]
        try:
            image = self.pack.image(position, min_side=min_source_side(views), max_pixels=self.max_pixels)
        except BadImage as bad:
            return number, None, (number, str(bad.path), bad.reason)
        return number, tuple(view(image, key) for view, key in zip(views, keys, strict=True)), None


def min_source_side(views: Sequence[View]) -> int:
    """Return the shorter side of an image that no view has to enlarge; 0 if that is not known."""
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
