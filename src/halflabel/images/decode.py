"""Decoding image files to RGB tensors, and finding the file of each image id."""

from __future__ import annotations

import io
import os
import stat
import struct
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image, ImageFile

from halflabel.errors import NoReadableImage, UserError
from halflabel.images.file_identity import content_digest, refuse_twins
from halflabel.system.files import is_utf8
from halflabel.system.remote import local_folder

if TYPE_CHECKING:
    import torch

    from halflabel.labels.names import Names

MAX_PIXELS = 100_000_000
_MOST_BYTES = 1 << 28  # of a file that is read as a whole
_WIDE_MODE_COST = 2  # memory per pixel of 16 and 32-bit grey, beside 8-bit pixels

_ENDINGS = "jpg jpeg png webp gif bmp tif tiff jpe jfif mpo avif heic heif dcm npy"
#: File name endings of images in order of preference: where `cat.jpg` and `cat.png` both exist, `cat` is the first.
SUFFIXES = tuple(f".{ending}" for ending in _ENDINGS.split())
_RANK = {suffix: rank for rank, suffix in enumerate(SUFFIXES)}

NPY_MARK = b"\x93NUMPY"
TIFF_MARKS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# The only parsers that ever see a file, besides those for AVIF, HEIC and DICOM. The JPEG parser also opens MPO (several
# pictures).
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_MOST_SCANS = 100  # of a progressive JPEG; encoders write about 10
_PREFIX_BYTES = 132  # enough to recognise every format; DICOM has its mark at 128
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


class UnknownFormat(BadImage):
    """A file that is not an image of a known format."""


class TooManyPixels(BadImage):
    """An image that is over the limit of pixels."""


class StoreFailed(BadImage):
    """An image that may be intact, in an object store that failed; it ends a pass over the images."""


def open_image(path: str | Path) -> IO[bytes]:
    """Open an image file, or an image in a pack (`PACK/name`); BadImage or OSError if there is none."""
    # Opening a pipe would block, so check the type first.
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        from halflabel.images.pack.read import find_packed_image

        packed = find_packed_image(path)
        if packed is None:
            raise
        pack, number = packed
        return io.BytesIO(pack.read(number))
    if not stat.S_ISREG(status.st_mode):
        raise BadImage(path, "not a file")
    return open(path, "rb")


def read_image(path: str | Path, *, max_pixels: int = MAX_PIXELS, min_side: int = 0, channels: int = 3) -> torch.Tensor:
    """Decode a JPEG, PNG, WebP, AVIF, GIF (first frame), BMP, TIFF, HEIC or DICOM file: uint8 (3, H, W), RGB, upright.

    Transparent pixels become white. 16-bit grey is divided by 257; 32-bit grey is read on the scale 0..65535, and
    floating-point grey on the first of 0..1, 0..255 and 0..65535 that contains all values, otherwise stretched from its
    minimum to its maximum. The memory layout is (H, W, 3): resizing is four times as fast on it. With `min_side`, a
    JPEG may be decoded at a half, a quarter or an eighth of its size, as long as no side falls below it. With other
    `channels` than 3 it is the bands of a .npy or TIFF file: see `decode_bands`. Raises BadImage, and nothing else, for
    anything that is wrong with the file.
    """
    pixels = read_pixels(path, max_pixels=max_pixels, min_side=min_side, channels=channels)
    import torch  # imported late: finding files does not need it

    return torch.from_numpy(pixels).permute(2, 0, 1)


def read_with_digest(path: str | Path, *, channels: int = 3) -> tuple[torch.Tensor, int]:
    """Decode a file as `read_image`; also return the `content_digest` of its bytes (of large ones, a part)."""
    with _as_bad_image(path), open_image(path) as file:
        data = file.read(_MOST_BYTES)
        is_whole = len(data) < _MOST_BYTES
        size = b"" if is_whole else str(file.seek(0, os.SEEK_END)).encode()
        file.seek(0)
        pixels = decode_image(io.BytesIO(data) if is_whole else file, path, channels=channels)
    import torch  # imported late: finding files does not need it

    return torch.from_numpy(pixels).permute(2, 0, 1), content_digest(data + size)


def read_pixels(
    path: str | Path, *, max_pixels: int = MAX_PIXELS, min_side: int = 0, channels: int = 3
) -> NDArray[np.uint8]:
    """Decode a file as `read_image` does, to (H, W, 3), without torch."""
    with _as_bad_image(path), open_image(path) as file:
        return decode_image(file, path, max_pixels=max_pixels, min_side=min_side, channels=channels)


def image_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """The pixels (H, W, 3) of an image that Pillow has opened, upright and in RGB as `read_image` makes them."""
    with _quiet():
        image.load()
        return _upright_rgb(image)


def decode_image(
    file: IO[bytes], path: str | Path, *, max_pixels: int = MAX_PIXELS, min_side: int = 0, channels: int = 3
) -> NDArray[np.uint8]:
    """Decode an open file as `read_pixels` does; BadImage reports `path`."""
    from halflabel.images.other_formats import decode_bands, decode_dicom

    with _as_bad_image(path), _quiet():
        prefix = file.read(_PREFIX_BYTES)
        file.seek(0)
        if not prefix:
            raise BadImage(path, "empty file")
        if prefix[128:] == b"DICM":
            return decode_dicom(file, path, max_pixels=max_pixels)
        if prefix.startswith(NPY_MARK) or (channels != 3 and prefix.startswith(TIFF_MARKS)):
            return decode_bands(file, path, channels, max_pixels=max_pixels)
        if channels != 3:
            raise BadImage(path, f"neither a .npy nor a TIFF file, which can have {channels} bands")
        try:
            image = _header(path, file, prefix)
        except SyntaxError:  # Pillow does not support such pixels
            if not prefix.startswith(TIFF_MARKS):
                raise
            file.seek(0)
            return decode_bands(file, path, channels, max_pixels=max_pixels)
        width, height = image.size
        if width < 1 or height < 1:
            raise BadImage(path, "no pixels")
        cost = _WIDE_MODE_COST if image.mode[0] in "IF" else 1
        if width * height * cost > max_pixels:
            kind = " of more than 8 bits" if cost > 1 else ""
            limit = max_pixels // cost
            raise TooManyPixels(path, f"{width} × {height} pixels{kind} is over the limit of {limit}")
        if image.info.get("progressive"):  # each scan takes the time of the whole image
            place = file.tell()
            file.seek(0)
            scans = file.read().count(b"\xff\xda")  # start of scan; no other bytes of a JPEG are these
            file.seek(place)
            if scans > _MOST_SCANS:
                raise BadImage(path, f"{scans} scans are over the limit of {_MOST_SCANS}")
        if min_side:
            image.draft("RGB", (min_side, min_side))  # has no effect on formats other than JPEG
        return image_pixels(image)


@contextmanager
def _as_bad_image(path: str | Path) -> Iterator[None]:
    """Turn any error into a BadImage."""
    try:
        yield
    except BadImage:
        raise
    except Exception as error:
        kind = TooManyPixels if isinstance(error, Image.DecompressionBombError) else BadImage
        raise kind(path, _reason(error)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings: faulty EXIF does not affect pixels, and `max_pixels` limits the size here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _header(path: str | Path, file: IO[bytes], prefix: bytes) -> ImageFile.ImageFile:
    """Image.open without its size check, which reports no size and cannot be set per call."""
    if prefix[4:8] == b"ftyp":
        brands = prefix[8:64]
        if b"avif" in brands or b"avis" in brands:  # Pillow's parser would also accept HEIC
            with suppress(ImportError):
                from PIL import AvifImagePlugin

                if AvifImagePlugin.SUPPORTED:
                    return AvifImagePlugin.AvifImageFile(file, os.fspath(path))
            raise BadImage(path, "AVIF needs Pillow 11.3 or later, built with AVIF support")
        if b"hei" in brands or b"hev" in brands:
            try:
                from pillow_heif import HeifImageFile
            except ImportError:
                raise BadImage(path, "HEIC needs pillow-heif: pip install 'halflabel[heic]'") from None
            open_heic: Any = HeifImageFile
            heic: ImageFile.ImageFile = open_heic(file, os.fspath(path))
            return heic
    Image.init()  # registers the parsers, once
    for name in _FORMATS:
        factory, accept = Image.OPEN[name]
        # `accept` returns a text if Pillow was built without this format.
        if accept is not None and accept(prefix) is True:
            return factory(file, os.fspath(path))
    raise UnknownFormat(path, "not an image")


def _upright_rgb(image: Image.Image) -> NDArray[np.uint8]:
    rotation = None
    with suppress(Exception):  # the pixels are intact: faulty EXIF is treated like none
        rotation = _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    image = image if rotation is None else image.transpose(rotation)
    if image.mode.startswith("I"):
        return _grey_to_rgb(np.asarray(image), maxima=(65535,))
    if image.mode == "F":
        return _grey_to_rgb(np.asarray(image), maxima=(1, 255, 65535))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def _grey_to_rgb(values: NDArray[Any], maxima: tuple[int, ...]) -> NDArray[np.uint8]:
    """(H, W) numbers of more than 8 bits -> (H, W, 3): round(255 · (v − low) / (high − low))."""
    v = values.astype(np.float64)
    if not np.isfinite(v).all():
        raise ValueError("pixels that are not numbers")
    smallest, largest = float(v.min()), float(v.max())
    high = next((maximum for maximum in maxima if smallest >= 0 and largest <= maximum), None)
    # Halved before subtracting: the difference of two huge floats would overflow.
    low, span = (0.0, high / 2) if high is not None else (smallest, largest / 2 - smallest / 2)
    scaled = np.rint(255 * ((v / 2 - low / 2) / (span or 1.0)))
    return np.repeat(scaled.astype(np.uint8)[:, :, None], 3, axis=2)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    # A number unpacked from too few bytes (Pillow raises it as a SyntaxError): the file ends inside its header.
    if "truncated" in text.lower() or isinstance(error.__cause__ or error, struct.error):
        return "truncated"
    if isinstance(error, Image.DecompressionBombError):
        return "more pixels than Pillow decodes"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    return f"damaged ({text[:100]})" if text else f"damaged ({type(error).__name__})"


def _walk(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files below `folder`, except hidden ones; each linked folder is entered once."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot list {error.filename}: {error.strerror}", "make the folder readable") from error

    entered = set()
    for current, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        status = os.stat(current)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        prefix = os.path.relpath(current, folder).replace(os.sep, "/") + "/"
        prefix = "" if prefix == "./" else prefix
        yield from (prefix + name for name in files if not name.startswith("."))


def _split(path: str) -> tuple[str, str]:
    """`a/cat.v2.JPG` -> (`a/cat.v2`, `.jpg`); an ending that is not one of an image stays: (`a/cat.v2`, ``)."""
    base, dot, suffix = path.rpartition(".")
    suffix = (dot + suffix).lower()
    return (base, suffix) if base and not base.endswith("/") and suffix in _RANK else (path, "")


def _is_image(path: str) -> bool:
    return bool(_split(path)[1])


def split_suffixes(names: Any) -> tuple[Any, NDArray[np.int64]]:
    """Split a pyarrow column of names into bases and the rank of each ending in SUFFIXES (len(SUFFIXES) for none)."""
    endings = "|".join(suffix[1:] for suffix in SUFFIXES)
    bases = pc.replace_substring_regex(names, pattern=rf"(?is)([^/])\.(?:{endings})$", replacement=r"\1")
    cut = pc.not_equal(bases, names).to_numpy(zero_copy_only=False)
    lower = pc.utf8_lower(names)
    rank = np.full(len(names), len(SUFFIXES), np.int64)
    for suffix, number in _RANK.items():
        rank[cut & pc.ends_with(lower, suffix).to_numpy(zero_copy_only=False)] = number
    return bases, rank


def list_images(folder: str | Path) -> tuple[Any, list[str]]:
    """Return the sorted relative paths of all images as a pyarrow column, and those that are not UTF-8 as a list."""
    paths = filter(_is_image, _walk(local_folder(folder)))
    chunks: list[Any] = []
    not_utf8: list[str] = []
    while block := list(islice(paths, 1 << 16)):
        not_utf8 += [path for path in block if not is_utf8(path)]
        chunks.append(pa.array([path for path in block if is_utf8(path)], pa.large_string()))
    column = pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())
    return column.sort(), sorted(not_utf8)


def find_images(folder: str | Path) -> list[Path]:
    """Return all image files below `folder`, by relative path; of a pack as `PACK/name`, which `read_image` reads."""
    from halflabel.images.pack.read import is_pack, open_pack

    folder = local_folder(folder)
    paths = open_pack(folder).names.to_pylist() if is_pack(folder) else filter(_is_image, _walk(folder))
    return [folder / path for path in sorted(paths)]


def locate_images(names: Sequence[str], folder: str | Path) -> list[Path | None]:
    """Return the file of each image id below `folder`, or None: one walk of the folder, then hash lookups.

    An id is tried in this order: as a relative path; with its image suffix replaced by any image suffix; for an id
    without a folder, as the only image of that stem anywhere below. An id that names a folder is not searched
    elsewhere (`train/1.jpg` never matches `val/1.jpg`), but may repeat the end of `folder` itself (`images/1.jpg` in
    `…/images`). Ids that are absolute or contain `..` get None. In a pack, ids are those of the folder that was packed.
    Two ids that are the same file are an error: their labels would be on both sides of a split.
    """
    from halflabel.images.pack.read import is_pack, open_pack

    folder = local_folder(folder)
    if is_pack(folder):
        pack = open_pack(folder)
        return [folder / pack.name(number) if number >= 0 else None for number in pack.find(names).tolist()]
    paths = match_names(names, sorted(_walk(folder)), folder.resolve().parts)
    refuse_twins(names, paths)
    return [None if path is None else folder / path for path in paths]


def item_files(names: Sequence[str], folder: Path) -> list[list[Path]]:
    """Return the files of each id: one image, or those in the folder that it names; none if there is neither."""
    files = [[] if path is None else [path] for path in locate_images(names, folder)]
    for number, name in enumerate(names):
        place = Path(name)
        if not files[number] and not place.is_absolute() and ".." not in place.parts and (folder / place).is_dir():
            files[number] = find_images(folder / place)
    return files


def first_files(names: Sequence[str], folder: Path) -> list[Path | None]:
    """Return the file that shows each id: its image, or the first one of its folder; None if it has none."""
    return [files[0] if files else None for files in item_files(names, folder)]


def require_images(names: Sequence[str], folder: str | Path) -> list[Path]:
    """Return the file of each image id below `folder`; UserError if one has none."""
    paths = locate_images(names, folder)
    if missing := [name for name, path in zip(names, paths, strict=True) if path is None]:
        raise UserError(
            f"{len(missing)} of {len(names)} images have no file in {folder}, such as "
            + ", ".join(map(repr, missing[:3])),
            "check the folder, or leave those images out of the labels",
        )
    return [path for path in paths if path is not None]


def none_found_error(names: Sequence[str] | Names, folder: Path) -> NoReadableImage:
    """Return the error for a label file whose images are all missing."""
    return NoReadableImage(
        f"none of the {len(names)} images of the label file is in {folder} (first: {names[0]!r})",
        "check the folder; names may leave out the ending, such as .jpg",
    )


def unlisted_images(names: Sequence[str], folder: str | Path) -> list[str]:
    """Return the relative paths of the images below `folder` that no id in `names` refers to."""
    folder = local_folder(folder)
    listed = set(locate_images(names, folder))
    paths = [path for path in find_images(folder) if path not in listed]
    return [name for path in paths if is_utf8(name := path.relative_to(folder).as_posix())]


def match_names(names: Sequence[str], files: Sequence[str], tail: tuple[str, ...]) -> list[str | None]:
    """Find image ids among sorted relative paths as `locate_images` does; `tail`: parts of the folder's path."""
    exact = set(files)
    by_base: dict[str, str] = {}
    by_stem: dict[str, str | None] = {}
    for path in files:
        base, suffix = _split(path)
        if suffix:
            current = by_base.get(base)
            if current is None or _RANK[suffix] < _RANK[_split(current)[1]]:
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
                match = path if path in exact else by_base.get(_split(path)[0])
                if match is not None:
                    return match
        return None

    found = [find(name) for name in names]
    missing = [number for number, path in enumerate(found) if path is None]
    wanted = [unicodedata.normalize("NFC", names[number]) for number in missing]
    composed = {unicodedata.normalize("NFC", path): path for path in files} if missing else {}
    if missing and (composed.keys() != exact or wanted != [names[number] for number in missing]):
        matches = dict(zip(missing, match_names(wanted, sorted(composed), tail), strict=True))
        if again := {number: composed[path] for number, path in matches.items() if path is not None}:
            example = ascii(names[next(iter(again))])
            warnings.warn(f"{len(again)} image names and their files differ in Unicode form: {example}", stacklevel=2)
            found = [again.get(number, path) for number, path in enumerate(found)]
    return found
