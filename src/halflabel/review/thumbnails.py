"""Pictures for the page: photos made small, and where the model sees a class. Only files below the image folder."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from halflabel.errors import UserError
from halflabel.runs.folder import RunFolder

if TYPE_CHECKING:
    from halflabel.runs.predictor import Predictor

__all__ = ["SIZES", "Maps", "NoPicture", "NothingSeen", "Pictures"]

SIZES = {"small": 320, "large": 1024}  # pixels of the longer side
MAX_PIXELS = 100_000_000
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_AT_ONCE = 4  # photos decoded at a time
_HEAT = (255, 64, 0)


class NoPicture(Exception):
    """There is no such photo, or it cannot be shown: the reason in a few words."""


class NothingSeen(NoPicture):
    """The photo is fine, but no place in it speaks for the class: an answer, not a fault."""


class Shelf:
    """The bytes made last, up to a limit; what was not asked for longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._held: OrderedDict[Any, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], bytes]) -> bytes:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = make()
        with self._lock:
            if key not in self._held:
                self._held[key] = made
                self.size += len(made)
            while self.size > self.limit and self._held:
                self.size -= len(self._held.popitem(last=False)[1])
        return made


class Pictures:
    """Small JPEG copies of numbered photos, the newest held in memory up to `limit` bytes."""

    def __init__(self, folder: Path, paths: Sequence[str | None], limit: int = 64 << 20) -> None:
        self.folder = folder
        self.paths = paths
        self.is_pack = (folder / "pack.json").exists() and (folder / "index.arrow").exists()
        self.shelf = Shelf(limit)
        self._room = threading.Semaphore(_AT_ONCE)

    def path(self, image: int) -> Path:
        """The photo's file, followed through links; one that leads out of the folder is refused."""
        if not 0 <= image < len(self.paths):
            raise NoPicture("no such image")
        name = self.paths[image]
        if name is None:
            raise NoPicture("the image has no file")
        try:
            root = self.folder.resolve(strict=True)
            path = root / name
            # An image in a pack is no file: there is no link to follow.
            if self.is_pack and not os.path.lexists(path) and path.is_relative_to(root) and ".." not in path.parts:
                return path
            path = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise NoPicture("the image has no file") from None
        if not path.is_relative_to(root) or not path.is_file():
            raise NoPicture("the image lies outside its folder")
        return path

    def jpeg(self, image: int, size: str) -> bytes:
        """The photo, its longer side at most SIZES[size] pixels."""
        if size not in SIZES:
            raise NoPicture("no such size")

        def make() -> bytes:
            with self._room:
                return _shrink(self.path(image), SIZES[size])

        return self.shelf.get((image, size), make)


def _shrink(path: Path, side: int) -> bytes:
    from PIL import Image, ImageOps

    try:
        with _opened(path) as file:
            picture: Any = Image.open(file, formats=_FORMATS)
            if picture.width * picture.height > MAX_PIXELS:
                raise NoPicture("the image has too many pixels")
            # A JPEG decoded at a half or an eighth of its size takes a fraction of the time.
            picture.draft("RGB", (side, side))
            picture.load()
        if picture.mode.startswith(("I", "F")):  # more than 8 bits: scaled as in training
            picture = Image.fromarray(_deep(path))
        picture = ImageOps.exif_transpose(picture)
        if picture.has_transparency_data:
            picture = picture.convert("RGBA")
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
        picture = picture.convert("RGB")
        picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=88)  # no metadata goes with it
    except NoPicture:
        raise
    except Exception as error:  # whatever a damaged file makes a decoder raise
        raise NoPicture(f"the image cannot be read ({type(error).__name__})") from None
    return stream.getvalue()


def _opened(path: Path) -> IO[bytes]:
    if path.exists():
        return open(path, "rb")
    from halflabel.data.decode import open_image  # an image in a pack

    return open_image(path)


def _deep(path: Path) -> Any:
    from halflabel.data.decode import read_image

    return read_image(path).permute(1, 2, 0).contiguous().numpy()


class Maps:
    """Where a run's model sees a class, as a transparent picture to lay over the photo; the model is loaded when first
    asked for."""

    def __init__(self, run: RunFolder, pictures: Pictures, limit: int = 16 << 20) -> None:
        self.run = run
        self.pictures = pictures
        self.shelf = Shelf(limit)
        self._predictor: Predictor | None = None
        self._lock = threading.Lock()  # one at a time: the model takes all cores there are

    def png(self, image: int, column: int) -> bytes:
        """The class map of one photo, in the photo's own shape, on a scale of its own."""

        def make() -> bytes:
            with self._lock:
                return self._make(image, column)

        return self.shelf.get((image, column), make)

    def _make(self, image: int, column: int) -> bytes:
        import torch
        from PIL import Image

        from halflabel.data.decode import BadImage, read_image
        from halflabel.models.class_maps import compute_class_maps, heat_map_on_photo, visible_box
        from halflabel.runs.predictor import Predictor

        if self._predictor is None:
            self._predictor = Predictor.from_run(self.run)
        try:
            pixels = read_image(self.pictures.path(image))
        except BadImage as error:
            raise NoPicture(error.reason) from None
        view: Any = self._predictor.views["plain"]
        try:
            maps = compute_class_maps(self._predictor.model, torch.as_tensor(view(pixels, 0))[None], [column])
        except UserError as error:
            raise NoPicture(error.message) from None
        if maps.max() <= 0:
            raise NothingSeen("no place in this photo speaks for the class")
        high, wide = int(pixels.shape[1]), int(pixels.shape[2])
        scale = 256 / max(high, wide)
        size = max(1, round(wide * scale)), max(1, round(high * scale))
        hot = heat_map_on_photo(maps[0, 0], (size[1], size[0]), visible_box(view, high, wide))
        alpha = np.rint(200 * hot).astype(np.uint8)
        picture = Image.new("RGB", size, _HEAT)
        picture.putalpha(Image.fromarray(alpha))
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        return stream.getvalue()
