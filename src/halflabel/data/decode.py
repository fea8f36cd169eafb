"""Image files to RGB tensors; which file belongs to which image id; what to do with files that cannot be read."""

from __future__ import annotations

import os
import stat
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from halflabel.errors import UserError

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_PIXELS",
    "SUFFIXES",
    "BadImage",
    "decode_image",
    "find_images",
    "list_images",
    "locate_images",
    "match_names",
    "open_image",
    "read_image",
    "split_suffixes",
]

MAX_PIXELS = 100_000_000

#: File name endings taken for images, best first: where `cat.jpg` and `cat.png` both exist, the id `cat` is the first.
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".jpe", ".jfif", ".mpo", ".avif")
_RANK = {suffix: rank for rank, suffix in enumerate(SUFFIXES)}

# The only parsers that ever see a file, beside that for AVIF. The one for JPEG also opens MPO: several pictures in one.
_FORMATS = tuple(
    plugin.format
    for plugin in (
        JpegImagePlugin.JpegImageFile,
        PngImagePlugin.PngImageFile,
        WebPImagePlugin.WebPImageFile,
        GifImagePlugin.GifImageFile,
        BmpImagePlugin.BmpImageFile,
        TiffImagePlugin.TiffImageFile,
    )
)
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(Exception):
    """An image that cannot be read: its `path`, and the `reason` in a few words."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = Path(path)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def open_image(path: str | Path) -> IO[bytes]:
    """The bytes of an image file, or of an image in a pack (`PACK/name`); BadImage or OSError where there is none."""
    # Opening a pipe would wait for ever, so look before opening.
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        from halflabel.data.pack.read import find_packed_image

        found = find_packed_image(path)
        if found is None:
            raise
        pack, number = found
        return pack.file(number)
    if not stat.S_ISREG(status.st_mode):
        raise BadImage(path, "not a file")
    if status.st_size == 0:
        raise BadImage(path, "empty file")
    return open(path, "rb")


def read_image(path: str | Path, *, max_pixels: int = MAX_PIXELS, least: int = 0) -> torch.Tensor:
    """The picture in a JPEG, PNG, WebP, AVIF, GIF (first frame), BMP or TIFF file: uint8 (3, H, W), RGB, upright.

    Transparent pixels are laid on white. 16-bit grey is divided by 257; 32-bit grey is read on the scale 0..65535, and
    floating grey on 0..1, 0..255 or 0..65535, whichever is the first to hold all values, else stretched from its least
    to its greatest value. The size is checked from the header, before any pixel is decoded. The memory is laid out
    (H, W, 3), as decoded: resizing is four times as fast on it, and the views give contiguous tensors. With `least`, a
    JPEG may come at a half, a quarter or an eighth of its size, its sides not under `least`: a fraction of the time.

    Raises BadImage, and nothing else, for whatever is wrong with the file.
    """
    try:
        with open_image(path) as file:
            return decode_image(file, path, max_pixels=max_pixels, least=least)
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(path, _reason(error)) from error


def decode_image(file: IO[bytes], path: str | Path, *, max_pixels: int = MAX_PIXELS, least: int = 0) -> torch.Tensor:
    """`read_image` of an open file; `path` is what BadImage calls it."""
    try:
        with _quiet():
            image = _header(path, file)
            width, height = image.size
            if width < 1 or height < 1:
                raise BadImage(path, "no pixels")
            if width * height > max_pixels:
                raise BadImage(path, f"{width} × {height} pixels is over the limit of {max_pixels}")
            if least:
                image.draft("RGB", (least, least))  # of other formats than JPEG, nothing comes of it
            image.load()
            pixels = _rgb(_upright(image))
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(path, _reason(error)) from error
    import torch  # here: whoever only looks for files need not wait for it

    return torch.from_numpy(pixels).permute(2, 0, 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings alone: faulty EXIF harms no pixel, and the size limit here is `max_pixels`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _header(path: str | Path, file: IO[bytes]) -> ImageFile.ImageFile:
    """Image.open without its own size check, which names no size and cannot be set per call."""
    prefix = file.read(64)
    if prefix[4:8] == b"ftyp" and (b"avif" in prefix or b"avis" in prefix):  # Pillow itself would also take HEIC for it
        avif = _avif()
        if avif is None:
            raise BadImage(path, "AVIF is not read here: Pillow 11.3 or later, built with it, is needed")
        file.seek(0)
        return avif(file, os.fspath(path))
    for name in _FORMATS:
        factory, accept = Image.OPEN[name]
        # `accept` answers with a text where Pillow was built without this format.
        if accept is not None and accept(prefix) is True:
            file.seek(0)
            return factory(file, os.fspath(path))
    raise BadImage(path, "not an image")


def _avif() -> type[ImageFile.ImageFile] | None:
    """What opens AVIF, where Pillow has it."""
    try:
        from PIL import AvifImagePlugin
    except ImportError:
        return None
    return AvifImagePlugin.AvifImageFile if AvifImagePlugin.SUPPORTED else None


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        # The pixels are sound: a picture with faulty EXIF is as good as one without.
        return image
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I"):
        return _grey(np.asarray(image), tops=(65535,))
    if image.mode == "F":
        return _grey(np.asarray(image), tops=(1, 255, 65535))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def _grey(values: NDArray[Any], tops: tuple[int, ...]) -> NDArray[np.uint8]:
    """(H, W) numbers of more than 8 bits to (H, W, 3): round(255 · (v − low) / (high − low))."""
    v = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=None, neginf=None)
    least, most = float(v.min()), float(v.max())
    high = next((top for top in tops if least >= 0 and most <= top), None)
    # Halved before subtracting: the span of two huge floats would overflow.
    low, span = (0.0, high / 2) if high is not None else (least, most / 2 - least / 2)
    scaled = np.rint(255 * ((v / 2 - low / 2) / (span or 1.0)))
    return np.repeat(scaled.astype(np.uint8)[:, :, None], 3, axis=2)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    # A number unpacked from too few bytes (Pillow hands it on as a SyntaxError): the file ends inside its header.
    if "truncated" in text.lower() or isinstance(error.__cause__ or error, struct.error):
        return "truncated"
    if isinstance(error, Image.DecompressionBombError):
        return "more pixels than Pillow decodes"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    return f"damaged ({text[:100]})" if text else f"damaged ({type(error).__name__})"


def _walk(folder: Path) -> Iterator[str]:
    """Paths of all files below `folder`, relative, with forward slashes; no hidden ones (`._cat.jpg`, `.cache/`).

    Links to folders are followed, each folder entered once, so that a link to a parent does not loop.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}", "give the folder that holds the images")

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot list {error.filename}: {error.strerror}", "make the folder readable") from error

    entered = set()
    for here, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        prefix = os.path.relpath(here, folder).replace(os.sep, "/") + "/"
        prefix = "" if prefix == "./" else prefix
        yield from (prefix + name for name in files if not name.startswith("."))


def _split(path: str) -> tuple[str, str]:
    """`a/cat.v2.JPG` to (`a/cat.v2`, `.jpg`); an ending that is no image's stays: (`a/cat.v2`, ``)."""
    base, dot, suffix = path.rpartition(".")
    suffix = (dot + suffix).lower()
    return (base, suffix) if base and not base.endswith("/") and suffix in _RANK else (path, "")


def split_suffixes(names: Any) -> tuple[Any, NDArray[np.int64]]:
    """`_split` of a whole pyarrow column: the bases, and the rank of each ending in SUFFIXES, their number for none."""
    import pyarrow.compute as pc

    endings = "|".join(suffix[1:] for suffix in SUFFIXES)
    bases = pc.replace_substring_regex(names, pattern=rf"(?is)([^/])\.(?:{endings})$", replacement=r"\1")
    cut = pc.not_equal(bases, names).to_numpy(zero_copy_only=False)
    lower = pc.utf8_lower(names)
    rank = np.full(len(names), len(SUFFIXES), np.int64)
    for suffix, number in _RANK.items():
        rank[cut & pc.ends_with(lower, suffix).to_numpy(zero_copy_only=False)] = number
    return bases, rank


def list_images(folder: str | Path) -> tuple[Any, list[str]]:
    """The sorted relative paths of `find_images` as one pyarrow column, so that millions take little room.

    Beside it those that are no UTF-8, which a column of text cannot hold.
    """
    import pyarrow as pa

    found = (path for path in _walk(Path(folder)) if _split(path)[1])
    chunks: list[Any] = []
    odd: list[str] = []
    while some := list(islice(found, 1 << 16)):
        try:
            chunks.append(pa.array(some, pa.large_string()))
        except UnicodeEncodeError:
            odd += [path for path in some if not _is_text(path)]
            chunks.append(pa.array([path for path in some if _is_text(path)], pa.large_string()))
    column = pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())
    return column.sort(), sorted(odd)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_images(folder: str | Path) -> list[Path]:
    """All image files below `folder`, told by their suffix in any case, in the order of their relative paths.

    Of a pack, its images: `PACK/name`, which `read_image` reads."""
    from halflabel.data.pack.read import is_pack, open_pack

    folder = Path(folder)
    if is_pack(folder):
        return [folder / name for name in sorted(open_pack(folder).names.to_pylist())]
    return [folder / path for path in sorted(path for path in _walk(folder) if _split(path)[1])]


def locate_images(names: Sequence[str], folder: str | Path) -> list[Path | None]:
    """The file of each image id below `folder`, or None: one walk of the folder, then hash lookups.

    In this order: the id as a relative path; the same less its image suffix, with any image suffix; for an id without
    a folder, the only image of that stem anywhere below. An id that names a folder is not sought elsewhere
    (`train/1.jpg` is never `val/1.jpg`), but may repeat the end of `folder` itself (`images/1.jpg` in `…/images`).
    Ids that are absolute or contain `..` get None. In a pack, ids are those of the folder that was packed.
    """
    from halflabel.data.pack.read import is_pack, open_pack

    folder = Path(folder)
    if is_pack(folder):
        pack = open_pack(folder)
        return [folder / pack.name(number) if number >= 0 else None for number in pack.find(names).tolist()]
    found = match_names(names, sorted(_walk(folder)), folder.resolve().parts)
    return [None if path is None else folder / path for path in found]


def match_names(names: Sequence[str], files: Sequence[str], tail: tuple[str, ...]) -> list[str | None]:
    """`locate_images` among relative paths in sorted order; `tail` are the parts of the path of their folder."""
    exact = set(files)
    by_base: dict[str, str] = {}
    by_stem: dict[str, str | None] = {}
    for path in files:
        base, suffix = _split(path)
        if suffix:
            held = by_base.get(base)
            if held is None or _RANK[suffix] < _RANK[_split(held)[1]]:
                by_base[base] = path
            stem = base.rpartition("/")[2]
            by_stem[stem] = None if stem in by_stem else path

    def find(name: str) -> str | None:
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        if ".." in parts or name.startswith(("/", "\\")) or not parts:
            return None
        if name in exact:
            return name
        if len(parts) == 1:
            base = _split(parts[0])[0]
            return parts[0] if parts[0] in exact else by_base.get(base) or by_stem.get(base)
        for cut in range(len(parts)):
            if cut == 0 or tuple(parts[:cut]) == tail[-cut:]:
                path = "/".join(parts[cut:])
                found = path if path in exact else by_base.get(_split(path)[0])
                if found is not None:
                    return found
        return None

    return [find(name) for name in names]
