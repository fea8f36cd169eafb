"""Reading packs: images resized once and stored in a few large files, so that training reads at the disk's speed.

A pack is a folder:

    00000.tar, 00001.tar, …   WebDataset tars: KEY.jpg, and KEY.json with the labels if they were given
    index.arrow               one row per image: name, shard, offset, length, width, height, crc32
    pack.json                 version, settings, checksum of the index
    bad_images.csv            image, path, reason of the images that could not be read

The index is memory-mapped. Names are the paths of the images relative to the folder that was packed. A folder of tars
that others wrote is a pack too: its index is made from the headers, without sizes and checksums.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.images.decode import (
    MAX_PIXELS,
    SUFFIXES,
    BadImage,
    StoreFailed,
    TooManyPixels,
    decode_image,
    match_names,
    split_suffixes,
)
from halflabel.images.file_identity import refuse_twins
from halflabel.labels.names import find_names
from halflabel.system.files import file_crc32, read_json
from halflabel.system.remote import RemoteFolder, StoreError, local_folder
from halflabel.system.webdataset import list_members, tar_files

if TYPE_CHECKING:
    import torch

FORMAT = "halflabel pack"
VERSION = 2
#: The columns of index.arrow besides the name, with their types.
INDEX_COLUMNS = {
    "shard": np.uint32,
    "offset": np.uint64,
    "length": np.uint32,
    "width": np.uint32,
    "height": np.uint32,
    "crc32": np.uint32,
}


@dataclass(frozen=True)
class PackSettings:
    """How the images of a pack are stored: as JPEGs whose shorter side is at most `size`."""

    size: int = 448

    @classmethod
    def from_dict(cls, manifest: dict[str, Any]) -> PackSettings:
        return cls(**{name: manifest[name] for name in cls.__dataclass_fields__})


def data_file_name(number: int) -> str:
    return f"{number:05d}.tar"


def is_pack(folder: str | Path) -> bool:
    """Return whether a folder is a pack, finished or not, or holds WebDataset tars."""
    return read_manifest(Path(folder)) is not None or bool(tar_files(folder))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read pack.json; None if the folder is not a pack."""
    try:
        manifest = read_json(folder / "pack.json", "")
    except UserError:
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("format") == FORMAT else None


def open_pack(folder: str | Path) -> Pack:
    """Open a finished pack, or a folder of WebDataset tars; cached per process until it changes."""
    folder = local_folder(folder)
    if read_manifest(folder) is None:
        if tars := tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in tar_files(folder)):
            return _open_tars(str(folder), tars)
        raise UserError(f"{folder} is not a pack", "make one: halflabel pack IMAGES OUT")
    return _open(str(folder), os.stat(folder / "pack.json").st_mtime_ns, RemoteFolder.version(folder))


@lru_cache(maxsize=8)
def _open(folder: str, changed: int, version: int) -> Pack:
    path = Path(folder)
    manifest = read_manifest(path) or {}
    fix = f"pack the images again, with ‹force›: halflabel pack IMAGES {folder}"
    if manifest.get("version") != VERSION:
        raise UserError(f"{folder} is a pack of version {manifest.get('version')!r}, not {VERSION}", fix)
    if not manifest.get("complete"):
        raise UserError(f"the pack {folder} is not finished", f"continue it: halflabel pack IMAGES {folder}")
    try:
        if file_crc32(path / "index.arrow") != manifest["index_crc32"]:
            raise UserError(f"{path / 'index.arrow'} is damaged: its bytes do not match their checksum", fix)
        with pa.memory_map(str(path / "index.arrow")) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
            batch.validate(full=True)  # an offset outside of the file would end the process
        settings = PackSettings.from_dict(manifest)
        index = {name: batch.column(name).to_numpy() for name in INDEX_COLUMNS}
        tail, stamp = tuple(manifest["tail"]), str(manifest["index_crc32"])
        return Pack(path, batch.column("name"), index, settings, tail, stamp)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise UserError(f"the pack {folder} cannot be read ({error})", fix) from None


@lru_cache(maxsize=8)
def _open_tars(folder: str, tars: tuple[tuple[str, int, int], ...]) -> Pack:
    """Open tars that others wrote: their images are of any size and format, and have no checksums."""
    members = list_members([Path(path) for path, _, _ in tars])
    images = np.flatnonzero(split_suffixes(members.names)[1] < len(SUFFIXES))
    if not len(images):
        raise UserError(f"the tars in {folder} hold no images", "name a folder with images, a pack or WebDataset tars")
    index: dict[str, NDArray[Any]] = {
        "shard": members.tar[images],
        "offset": members.offset[images],
        "length": members.length[images],
    }
    files = [path.name for path in members.tars]
    stamp = hashlib.sha256(repr([(Path(path).name, *state) for path, *state in tars]).encode()).hexdigest()[:16]
    settings = PackSettings(size=1 << 30)
    return Pack(Path(folder), members.names.take(pa.array(images)), index, settings, (), stamp, files)


@dataclass(eq=False)
class Pack:
    """Reads the images of a pack by number; safe for any number of threads and processes."""

    folder: Path
    names: Any  # pyarrow strings
    index: dict[str, NDArray[Any]]  # INDEX_COLUMNS; of tars that others wrote, without the last three
    settings: PackSettings
    tail: tuple[str, ...] = ()  # the last folders of the source path: image ids may repeat them
    stamp: str = ""  # changes when any image changes
    files: list[str] | None = None  # the names of the data files, if not those of `data_file_name`

    def __post_init__(self) -> None:
        self.remote = RemoteFolder.of(self.folder)

    def __len__(self) -> int:
        return len(self.names)

    def __reduce__(self) -> Any:
        # Another machine opens a pack in an object store by its address.
        return open_pack, (self.folder if self.remote is None else self.remote.url,)

    def name(self, number: int) -> str:
        return str(self.names[int(number)].as_py())

    def file_name(self, shard: int) -> str:
        return data_file_name(shard) if self.files is None else self.files[shard]

    def read(self, number: int) -> bytes:
        """Read the stored bytes of one image; BadImage if they differ from what was written."""
        shard, offset, length = (int(self.index[column][number]) for column in ("shard", "offset", "length"))
        path, file_name = self.folder / self.name(number), self.file_name(shard)
        try:
            if self.remote is None:  # opening the file each time is a small part of reading and decoding an image
                with open(self.folder / file_name, "rb", buffering=0) as file:
                    data = os.pread(file.fileno(), length, offset)
            else:
                data = self.remote.read(file_name, offset, length)
                if not self._is_intact(number, data):  # a damaged copy is fetched again
                    self.remote.discard(file_name, offset, length)
                    data = self.remote.read(file_name, offset, length)
        except StoreError as error:
            raise StoreFailed(path, str(error)) from None
        except OSError as error:
            if self.remote is not None:
                raise
            raise BadImage(path, f"{file_name}: {error.strerror}") from None
        if len(data) < length:
            raise BadImage(path, "truncated")
        if not self._is_intact(number, data):
            raise BadImage(path, "damaged (its bytes do not match their checksum)")
        return data

    def _is_intact(self, number: int, data: bytes) -> bool:
        return "crc32" not in self.index or zlib.crc32(data) == int(self.index["crc32"][number])

    def decode(self, number: int, data: bytes, *, min_side: int = 0) -> torch.Tensor:
        """Decode the stored bytes of one image to uint8 (3, H, W), with `min_side` as in `read_image`."""
        path = self.folder / self.name(number)
        import torch  # imported late: finding names does not need it

        if "width" in self.index:
            width, height = int(self.index["width"][number]), int(self.index["height"][number])
            if width * height > MAX_PIXELS:
                raise TooManyPixels(path, f"{width} × {height} pixels is over the limit of {MAX_PIXELS}")
            if data[:3] == b"\xff\xd8\xff" and not (min_side and min(width, height) >= 2 * min_side):
                images = decode_jpegs([data])
                if images is not None:
                    return images[0]
        pixels = decode_image(io.BytesIO(data), path, min_side=min_side)
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def find(self, names: Any) -> NDArray[np.int64]:
        """Return the number of each image id, −1 if there is none, by the rules of `decode.locate_images`."""
        wanted = names if isinstance(names, pa.Array) else pa.array(list(names), pa.string())
        wanted = wanted.cast(self.names.type)

        numbers = find_names(wanted, self.names)
        left = np.flatnonzero(numbers < 0)
        if left.size:
            bases, rank = split_suffixes(self.names)
            # index_in returns the first of equals: the preferred ending of each base has to come first.
            order = np.argsort(rank, kind="stable")[: int((rank < len(SUFFIXES)).sum())]
            place = find_names(split_suffixes(wanted.take(pa.array(left)))[0], bases.take(pa.array(order)))
            numbers[left[place >= 0]] = order[place[place >= 0]]
            left = left[place < 0]
        if left.size:
            matches = match_names(wanted.take(pa.array(left)).to_pylist(), sorted(self.numbers), self.tail)
            numbers[left] = [-1 if name is None else self.numbers[name] for name in matches]
        matched = np.sort(numbers[numbers >= 0])
        if (matched[1:] == matched[:-1]).any():
            refuse_twins(
                wanted.to_pylist(), [self.name(number) if number >= 0 else None for number in numbers.tolist()]
            )
        return numbers

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each name."""
        return {name: number for number, name in enumerate(self.names.to_pylist())}

    def read_ahead(self, numbers: NDArray[np.int64]) -> None:
        """Advise the system to read these images ahead, in disk order; or fetch them from an object store."""
        columns = [self.index[column][numbers].tolist() for column in ("shard", "offset", "length")]
        parts = sorted(zip(*columns, strict=True))
        if self.remote is not None:
            self.remote.read_ahead((self.file_name(shard), offset, length) for shard, offset, length in parts)
        elif hasattr(os, "posix_fadvise"):
            for shard, images in groupby(parts, key=itemgetter(0)):
                # Only a hint: reading an image reports what is wrong.
                with suppress(OSError), open(self.folder / self.file_name(shard), "rb") as file:
                    for _, offset, length in images:
                        os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)


def decode_jpegs(encoded: Sequence[bytes], device: torch.device | str = "cpu") -> list[torch.Tensor] | None:
    """Decode JPEGs to uint8 (3, H, W) with torchvision, faster than Pillow; None if it has no decoder or one fails."""
    with warnings.catch_warnings():
        # torchvision plans to move decoding to another package; without it Pillow decodes.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import torch
            from torchvision.io import ImageReadMode, decode_jpeg

            data = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in encoded]
            if torch.device(device).type == "cpu":
                return [decode_jpeg(jpeg, ImageReadMode.RGB) for jpeg in data]
            images: list[torch.Tensor] = decode_jpeg(data, ImageReadMode.RGB, device=device)
            return images
        except (ImportError, RuntimeError):
            return None


def find_packed_image(path: str | Path) -> tuple[Pack, int] | None:
    """Return the pack and the image number of a path such as PACK/train/1.jpg, or None if it is not in a pack."""
    path = Path(path)
    folder = next((parent for parent in path.parents if parent.is_dir()), None)
    if folder is None or not is_pack(folder):
        return None
    pack = open_pack(folder)
    number = pack.numbers.get(path.relative_to(folder).as_posix())
    return None if number is None else (pack, number)
