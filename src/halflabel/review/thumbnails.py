"""Images for the review page: small copies of photos, and class maps. Only files inside the image folder are read."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from halflabel.errors import UserError
from halflabel.images.decode import BadImage, read_image, read_pixels
from halflabel.images.pack.read import is_pack

if TYPE_CHECKING:
    from halflabel.runs.model import Model

SIZES = {"small": 320, "large": 1024}  # longer side in pixels
_MAX_DECODING = 4  # photos decoded at the same time
_KEPT_PHOTOS, _KEPT_MAPS = 400, 1000  # in memory: large photos have about 200 kB, maps 10 kB
_MAP_SIDE = 256  # longer side of a class map in pixels


class ImageUnavailable(Exception):
    """A photo does not exist or cannot be shown; the message is the reason."""


class Thumbnails:
    """Small JPEG copies of photos by index; the latest are kept in memory."""

    def __init__(self, folder: Path, paths: Sequence[str | None]) -> None:
        self.folder = folder
        self.paths = paths
        self.is_pack = is_pack(folder)
        self._decoding = threading.Semaphore(_MAX_DECODING)
        self.jpeg = lru_cache(_KEPT_PHOTOS)(self._make)

    def path(self, image: int) -> Path:
        """Return the file of a photo with symbolic links resolved; a file outside the folder is refused."""
        if not 0 <= image < len(self.paths):
            raise ImageUnavailable("no such image")
        name = self.paths[image]
        if name is None:
            raise ImageUnavailable("the image has no file")
        try:
            root = self.folder.resolve(strict=True)
            path = root / name
            # An image in a pack is not a file: there is no link to resolve.
            if self.is_pack and not os.path.lexists(path) and path.is_relative_to(root) and ".." not in path.parts:
                return path
            path = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise ImageUnavailable("the image has no file") from None
        if not path.is_relative_to(root) or not path.is_file():
            raise ImageUnavailable("the image lies outside its folder")
        return path

    def _make(self, image: int, size: str) -> bytes:
        """Return the photo as JPEG, its longer side at most SIZES[size] pixels."""
        if size not in SIZES:
            raise ImageUnavailable("no such size")
        path, side, stream = self.path(image), SIZES[size], io.BytesIO()
        with self._decoding:
            try:
                picture = Image.fromarray(read_pixels(path, min_side=side))
            except BadImage as bad:
                raise ImageUnavailable(f"the image cannot be read ({bad.reason})") from None
            picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
            picture.save(stream, "JPEG", quality=88)  # without metadata
        return stream.getvalue()


class ClassMaps:
    """Where a model sees a class, as transparent images over the photos; the model is opened at the first request."""

    def __init__(self, run: Path, thumbnails: Thumbnails) -> None:
        self.run, self.thumbnails = run, thumbnails
        self.png = lru_cache(_KEPT_MAPS)(self._make)
        self._model: Model | None = None
        self._lock = threading.Lock()  # one at a time, as the model uses all cores

    def _make(self, image: int, column: int) -> bytes | None:
        """Return the map of a photo in its aspect ratio, scaled to its maximum; None if nothing supports the class."""
        from halflabel.features.class_maps import heat_png, photo_heat_maps
        from halflabel.runs.model import Model

        try:
            pixels = read_image(self.thumbnails.path(image))
            with self._lock:
                model = self._model = self._model or Model.open(self.run)
                (heat,) = photo_heat_maps(model.network, model.views["plain"], pixels, [column], _MAP_SIDE)
        except BadImage as error:
            raise ImageUnavailable(error.reason) from None
        except UserError as error:
            raise ImageUnavailable(error.message) from None
        return heat_png(heat) if heat.any() else None
