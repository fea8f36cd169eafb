"""Images for the review page: small copies of photos, and class maps. Only files inside the image folder are read."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from halflabel.data.pack.read import is_pack
from halflabel.errors import UserError
from halflabel.runs.folder import RunFolder

if TYPE_CHECKING:
    from halflabel.runs.predictor import Predictor


SIZES = {"small": 320, "large": 1024}  # longer side in pixels
_MAX_DECODING = 4  # photos decoded at the same time
_MAP_COLOUR = (255, 64, 0)


class ImageUnavailable(Exception):
    """A photo does not exist or cannot be shown; the message is the reason."""


class EmptyClassMap(ImageUnavailable):
    """No part of the photo supports the class; this is a result, not a failure."""


class ByteCache:
    """A thread-safe LRU cache of byte strings with a limit on their total size."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._items: OrderedDict[Any, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], bytes]) -> bytes:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        content = make()
        with self._lock:
            if key not in self._items:
                self._items[key] = content
                self.size += len(content)
            while self.size > self.limit and self._items:
                self.size -= len(self._items.popitem(last=False)[1])
        return content


class Thumbnails:
    """Small JPEG copies of photos by index, cached in memory up to `limit` bytes."""

    def __init__(self, folder: Path, paths: Sequence[str | None], limit: int = 64 << 20) -> None:
        self.folder = folder
        self.paths = paths
        self.is_pack = is_pack(folder)
        self.cache = ByteCache(limit)
        self._decoding = threading.Semaphore(_MAX_DECODING)

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

    def jpeg(self, image: int, size: str) -> bytes:
        """Return the photo as JPEG, its longer side at most SIZES[size] pixels."""
        if size not in SIZES:
            raise ImageUnavailable("no such size")

        def make() -> bytes:
            with self._decoding:
                return _shrink(self.path(image), SIZES[size])

        return self.cache.get((image, size), make)


def _shrink(path: Path, side: int) -> bytes:
    from PIL import Image

    from halflabel.data.decode import BadImage, read_pixels

    try:
        picture = Image.fromarray(read_pixels(path, min_side=side))
    except BadImage as bad:
        raise ImageUnavailable(f"the image cannot be read ({bad.reason})") from None
    picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=88)  # without metadata
    return stream.getvalue()


class ClassMaps:
    """Class maps of a run as transparent images to lay over the photos; the model is loaded at the first request."""

    def __init__(self, run: RunFolder, thumbnails: Thumbnails, limit: int = 16 << 20) -> None:
        self.run = run
        self.thumbnails = thumbnails
        self.cache = ByteCache(limit)
        self._predictor: Predictor | None = None
        self._lock = threading.Lock()  # one at a time, as the model uses all cores

    def png(self, image: int, column: int) -> bytes:
        """Return the class map of one photo in the photo's aspect ratio, scaled to its own maximum."""

        def make() -> bytes:
            with self._lock:
                return self._make(image, column)

        return self.cache.get((image, column), make)

    def _make(self, image: int, column: int) -> bytes:
        import torch
        from PIL import Image

        from halflabel.data.decode import BadImage, read_image
        from halflabel.models.class_maps import compute_class_maps, heat_map_on_photo, visible_box
        from halflabel.runs.predictor import Predictor

        if self._predictor is None:
            self._predictor = Predictor.from_run(self.run)
        try:
            pixels = read_image(self.thumbnails.path(image))
        except BadImage as error:
            raise ImageUnavailable(error.reason) from None
        view: Any = self._predictor.views["plain"]
        try:
            maps = compute_class_maps(self._predictor.model, torch.as_tensor(view(pixels, 0))[None], [column])
        except UserError as error:
            raise ImageUnavailable(error.message) from None
        if maps.max() <= 0:
            raise EmptyClassMap("no part of this photo supports the class")
        height, width = int(pixels.shape[1]), int(pixels.shape[2])
        scale = 256 / max(height, width)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        hot = heat_map_on_photo(maps[0, 0], (size[1], size[0]), visible_box(view, height, width))
        alpha = np.rint(200 * hot).astype(np.uint8)
        picture = Image.new("RGB", size, _MAP_COLOUR)
        picture.putalpha(Image.fromarray(alpha))
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        return stream.getvalue()
