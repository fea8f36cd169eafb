"""Packs: images made small once, one after another in a few large files, so that training reads at the disk's speed.

A pack is a folder:

    00000.shard, 00001.shard, …   the bytes of the images (JPEG, PNG, or plain rows of RGB bytes), nothing between them
    index.arrow                   one row per image: name, shard, offset, length, width, height, crc32
    pack.json                     version, settings, checksum of the index
    bad_images.csv                image, path, reason: what could not be read

The index is mapped, not read: 28 bytes and the name per image, shared by all processes. Names are the paths that the
images had below their folder. Labels stay outside.
"""

from __future__ import annotations

import io
import json
import os
import warnings
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halflabel.data.decode import MAX_PIXELS, SUFFIXES, BadImage, decode_image, match_names, split_suffixes
from halflabel.errors import UserError
from halflabel.system.rng import hash_names

if TYPE_CHECKING:
    import torch

__all__ = [
    "FORMAT",
    "INDEX_COLUMNS",
    "VERSION",
    "Pack",
    "PackSettings",
    "data_file_name",
    "decode_jpegs",
    "file_crc32",
    "find_packed_image",
    "is_pack",
    "open_pack",
    "read_manifest",
]

FORMAT = "halflabel pack"
VERSION = 1
#: The columns of index.arrow beside the name, with their types.
INDEX_COLUMNS = {
    "shard": np.uint32,
    "offset": np.uint64,
    "length": np.uint32,
    "width": np.uint32,
    "height": np.uint32,
    "crc32": np.uint32,
}
_KEPT_OPEN = 128  # pack; with the rest, opening is a small part of reading
_BLOCK = 1 << 24
_NEAR = 1 << 16  # bytes between two reads that are one to the disk


@dataclass(frozen=True)
class PackSettings:
    """How the images of a pack are stored; `resize`: short = the shorter side is at most `size`, squash = a square."""

    size: int = 448
    resize: Literal["short", "squash"] = "short"
    store: Literal["jpeg", "png", "raw"] = "jpeg"
    quality: int = 90
    shuffle: Literal["all", "blocks"] = "all"

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> PackSettings:
        return cls(**{name: found[name] for name in cls.__dataclass_fields__})


def data_file_name(number: int) -> str:
    return f"{number:05d}.shard"


def is_pack(folder: str | Path) -> bool:
    """Whether a folder is a pack, finished or not."""
    return read_manifest(Path(folder)) is not None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What pack.json says; None where the folder is not a pack."""
    try:
        found = json.loads((folder / "pack.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def open_pack(folder: str | Path) -> Pack:
    """A finished pack, ready to read; opened once per process while it stays as it is."""
    folder = Path(folder)
    try:
        changed = os.stat(folder / "pack.json").st_mtime_ns
    except OSError:
        raise UserError(f"{folder} is not a pack", "make one: halflabel pack IMAGES OUT") from None
    return _open(str(folder), changed)


@lru_cache(maxsize=8)
def _open(folder: str, changed: int) -> Pack:
    import pyarrow as pa

    place = Path(folder)
    about = read_manifest(place)
    again = f"pack the images again: halflabel pack IMAGES {folder} --force"
    if about is None:
        raise UserError(f"{folder} is not a pack", "make one: halflabel pack IMAGES OUT")
    if about.get("version") != VERSION:
        raise UserError(f"{folder} is a pack of version {about.get('version')!r}, not {VERSION}", again)
    if not about.get("complete"):
        raise UserError(f"the pack {folder} is not finished", f"go on with it: halflabel pack IMAGES {folder}")
    try:
        if file_crc32(place / "index.arrow") != about["index_crc32"]:
            raise UserError(f"{place / 'index.arrow'} is damaged: its bytes do not match their checksum", again)
        with pa.memory_map(str(place / "index.arrow")) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        stored = PackSettings.from_dict(about)
        index = {name: batch.column(name).to_numpy() for name in INDEX_COLUMNS}
        return Pack(place, batch.column("name"), index, stored, tuple(about["tail"]), str(about["index_crc32"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise UserError(f"the pack {folder} cannot be read ({error})", again) from None


def file_crc32(path: Path) -> int:
    """The CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


class Pack:
    """Reads the images of a pack by number. Any number of threads and processes may read at once."""

    def __init__(
        self,
        folder: Path,
        names: Any,
        index: dict[str, NDArray[Any]],
        stored: PackSettings,
        tail: tuple[str, ...] = (),
        stamp: str = "",
    ) -> None:
        self.folder = folder
        self.names = names  # pyarrow strings
        self.index = index
        self.stored = stored
        self.tail = tail  # the last folders of where the images came from: names may repeat them
        self.stamp = stamp  # changes when any image does
        self._files: dict[int, int] = {}
        weakref.finalize(self, _close, self._files)

    def __len__(self) -> int:
        return len(self.names)

    def __reduce__(self) -> Any:
        return open_pack, (self.folder,)

    def name(self, number: int) -> str:
        return str(self.names[int(number)].as_py())

    def read(self, number: int) -> bytes:
        """The stored bytes of one image; BadImage where they are not what was written."""
        shard, offset, length = (int(self.index[column][number]) for column in ("shard", "offset", "length"))
        try:
            kept = self._files.get(shard)
            file = kept if kept is not None else self._open(shard)
            try:
                data = os.pread(file, length, offset)
            finally:
                if shard not in self._files:
                    os.close(file)
        except OSError as error:
            raise BadImage(self.folder / self.name(number), f"{data_file_name(shard)}: {error.strerror}") from None
        if len(data) < length:
            raise BadImage(self.folder / self.name(number), "truncated")
        if zlib.crc32(data) != int(self.index["crc32"][number]):
            raise BadImage(self.folder / self.name(number), "damaged (its bytes do not match their checksum)")
        return data

    def _open(self, shard: int) -> int:
        file = os.open(self.folder / data_file_name(shard), os.O_RDONLY)
        if len(self._files) < _KEPT_OPEN and self._files.setdefault(shard, file) != file:
            os.close(file)  # another thread was first
            return self._files[shard]
        return file

    def image(self, number: int, *, least: int = 0, max_pixels: int = MAX_PIXELS) -> torch.Tensor:
        """One image, uint8 (3, H, W). With `least`, a JPEG may come at a half, a quarter or an eighth of its size, its
        sides not under `least`: that takes a fraction of the time."""
        return self.decode(number, self.read(number), least=least, max_pixels=max_pixels)

    def decode(self, number: int, data: bytes, *, least: int = 0, max_pixels: int = MAX_PIXELS) -> torch.Tensor:
        wide, high = int(self.index["width"][number]), int(self.index["height"][number])
        path = self.folder / self.name(number)
        if wide * high > max_pixels:
            raise BadImage(path, f"{wide} × {high} pixels is over the limit of {max_pixels}")
        if self.stored.store == "raw":
            if len(data) != 3 * wide * high:
                raise BadImage(path, "truncated")
            import torch  # here: whoever only looks for names need not wait for it

            return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(high, wide, 3).permute(2, 0, 1)
        if data[:3] == b"\xff\xd8\xff" and not (least and min(wide, high) >= 2 * least):
            found = decode_jpegs([data])
            if found is not None:
                return found[0]
        return decode_image(io.BytesIO(data), path, max_pixels=max_pixels, least=least)

    def file(self, number: int) -> io.BytesIO:
        """One image as a file that any program reads: rows of plain bytes get the header of a BMP."""
        data = self.read(number)
        if self.stored.store != "raw":
            return io.BytesIO(data)
        pixels = self.decode(number, data).permute(1, 2, 0).numpy()
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "BMP")
        stream.seek(0)
        return stream

    def find(self, names: Any) -> NDArray[np.int64]:
        """The number of each image id, −1 where there is none, by the rules of `decode.locate`.

        Ids that are names, or names less their ending, are matched as whole columns, without an object for each.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = names if isinstance(names, pa.Array) else pa.array(list(names), pa.string())
        wanted = wanted.cast(self.names.type)

        def look_up(ids: Any, held: Any) -> NDArray[np.int64]:
            return np.asarray(
                pc.fill_null(pc.index_in(ids, value_set=held), -1).to_numpy(zero_copy_only=False), np.int64
            )

        found = look_up(wanted, self.names)
        left = np.flatnonzero(found < 0)
        if left.size:
            bases, rank = split_suffixes(self.names)
            # index_in gives the first of equals: the best ending of each base has to come first.
            order = np.argsort(rank, kind="stable")[: int((rank < len(SUFFIXES)).sum())]
            at = look_up(split_suffixes(wanted.take(pa.array(left)))[0], bases.take(pa.array(order)))
            found[left[at >= 0]] = order[at[at >= 0]]
            left = left[at < 0]
        if left.size:
            listed: list[str] = self.names.to_pylist()
            number = {name: at for at, name in enumerate(listed)}
            others = match_names(wanted.take(pa.array(left)).to_pylist(), sorted(listed), self.tail)
            found[left] = [-1 if name is None else number[name] for name in others]
        return found

    @cached_property
    def _by_hash(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        hashes = hash_names(self.names)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def number(self, name: str) -> int:
        """The number of one name, −1 where there is none."""
        hashes, order = self._by_hash
        wanted = hash_names([name])[0]
        for place in range(int(np.searchsorted(hashes, wanted)), len(hashes)):
            if hashes[place] != wanted:
                break
            if self.name(order[place]) == name:
                return int(order[place])
        return -1

    def read_ahead(self, numbers: NDArray[np.int64]) -> None:
        """Tell the system that these images are wanted soon: it reads them ahead, neighbours in one go."""
        if not hasattr(os, "posix_fadvise") or not len(numbers):
            return
        shard = self.index["shard"][numbers].astype(np.int64)
        first = self.index["offset"][numbers].astype(np.int64)
        order = np.lexsort((first, shard))
        shard, first = shard[order], first[order]
        last = first + self.index["length"][numbers].astype(np.int64)[order]
        far = np.flatnonzero((np.diff(shard) != 0) | (first[1:] - last[:-1] > _NEAR)) + 1
        begins, ends = np.concatenate([[0], far]), np.concatenate([far, [len(shard)]]) - 1
        file, now = -1, -1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            try:
                if shard[begin] != now:
                    if file >= 0:
                        os.close(file)
                    file, now = -1, int(shard[begin])
                    file = os.open(self.folder / data_file_name(now), os.O_RDONLY)
                if file >= 0:
                    length = int(last[end] - first[begin])
                    os.posix_fadvise(file, int(first[begin]), length, os.POSIX_FADV_WILLNEED)
            except OSError:
                continue  # a hint: whoever reads the image will say what is wrong
        if file >= 0:
            os.close(file)


def decode_jpegs(encoded: Sequence[bytes], device: torch.device | str = "cpu") -> list[torch.Tensor] | None:
    """JPEGs to uint8 (3, H, W) by torchvision's decoder, half as quick again as Pillow's and the same bytes on a CPU.

    None where there is no such decoder, for that device or at all, or where one of them is beyond it.
    """
    with warnings.catch_warnings():
        # torchvision means to leave decoding to another package one day: then Pillow is what remains.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import torch
            from torchvision.io import ImageReadMode, decode_jpeg

            data = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in encoded]
            if torch.device(device).type == "cpu":
                return [decode_jpeg(one, ImageReadMode.RGB) for one in data]
            found: list[torch.Tensor] = decode_jpeg(data, ImageReadMode.RGB, device=device)
            return found
        except (ImportError, RuntimeError):
            return None


def _close(files: dict[int, int]) -> None:
    for file in files.values():
        os.close(file)
    files.clear()


def find_packed_image(path: str | Path) -> tuple[Pack, int] | None:
    """The pack and the number behind a path such as PACK/train/1.jpg, or None where it leads into no pack."""
    path = Path(path)
    folder = next((parent for parent in path.parents if parent.is_dir()), None)
    if folder is None or not (folder / "pack.json").exists():
        return None
    try:
        pack = open_pack(folder)
    except UserError:
        if is_pack(folder):  # a pack that cannot be read is worth an error of its own
            raise
        return None
    number = pack.number(path.relative_to(folder).as_posix())
    return (pack, number) if number >= 0 else None
