"""Writing a pack: images are made small by worker processes and written shard by shard, each whole or not there."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, JpegImagePlugin
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as F

from halflabel.data.decode import MAX_PIXELS, BadImage, list_images, locate_images, read_image
from halflabel.data.pack.read import (
    FORMAT,
    INDEX_COLUMNS,
    VERSION,
    PackSettings,
    data_file_name,
    file_crc32,
    is_pack,
    read_manifest,
)
from halflabel.data.quarantine import Quarantine
from halflabel.errors import UserError
from halflabel.system.files import atomic_write, write_json
from halflabel.system.rng import bits, hash_names

__all__ = ["encode_image", "pack_images"]

_AT_ONCE = 16  # images that a worker encodes between two hand-overs
_STORING = 0x7061636B  # the draws of the order in the pack are not those of any other purpose


def pack_images(
    folder: Path,
    out: Path,
    stored: PackSettings,
    *,
    ids: Any = None,
    shard_bytes: int = 256 << 20,
    workers: int = 0,
    max_bad: float = 0.01,
    max_pixels: int = MAX_PIXELS,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the images of a folder into a pack and return what pack.json says of it.

    With `ids`, only the images that these ids name. A pack that was interrupted goes on after its last whole shard; the
    bytes are the same as if it had not been, whatever the number of workers. What cannot be read is listed in
    bad_images.csv; above the share `max_bad` of all images it is an error.
    """
    import pyarrow as pa

    names, odd = _chosen(folder, ids)
    if not len(names):
        raise UserError(f"there is no image in {folder}", "name the folder with the images")
    if stored.shuffle == "blocks":  # neighbours are read together: they must not be alike
        names = names.take(pa.array(np.argsort(bits(0, _STORING, hash_names(names)), kind="stable")))
    about = {
        "format": FORMAT,
        "version": VERSION,
        "complete": False,
        **asdict(stored),
        "shard_bytes": shard_bytes,
        "tail": [part for part in folder.resolve().parts if part != os.sep][-4:],
        "source": hashlib.sha256(hash_names(names).tobytes()).hexdigest()[:16],
    }
    _begin(out, about, force)
    quarantine = Quarantine(out / "bad_images.csv")
    for path in odd:
        quarantine.add(path, folder / path, "its name is not UTF-8")
    parts, done = _parts_so_far(out, quarantine)
    total = len(names) + len(odd)
    shard = _DataFile(out, len(parts))
    try:
        quarantine.check(total, max_bad)
        for some in _encoded(names, done, folder, stored, workers, max_pixels):
            for data, wide, high, reason in some:
                name = str(names[done].as_py())
                done += 1
                if reason:
                    quarantine.add(name, folder / name, reason)
                    shard.bad.append((name, str(folder / name), reason))
                    quarantine.check(total, max_bad, so_far=True)
                else:
                    shard.add(name, data, wide, high)
                if shard.length >= shard_bytes:
                    parts.append(shard.finish(done))
                    shard = _DataFile(out, len(parts))
            if progress is not None:
                progress(done, len(names))
        if shard.rows or shard.bad:
            parts.append(shard.finish(done))
    finally:
        shard.close()
        quarantine.write(out / "bad_images.csv")
    return _finish(out, about, parts, len(quarantine))


def _chosen(folder: Path, ids: Any) -> tuple[Any, list[str]]:
    """The relative paths to pack, sorted: of all images, or of those that ids name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_pack(folder):
        raise UserError(f"{folder} is a pack already", "name the folder with the original images")
    if ids is None:
        return list_images(folder)
    listed = list(ids)
    found = [None if path is None else path.relative_to(folder).as_posix() for path in locate_images(listed, folder)]
    if all(path is None for path in found):
        raise UserError(
            f"none of the {len(listed)} images of the label file is in {folder} (first: {listed[0]!r})",
            "check the folder; names may leave out the ending, such as .jpg",
        )
    return pc.unique(pa.array([path for path in found if path is not None], pa.large_string())).sort(), []


def _begin(out: Path, about: dict[str, Any], force: bool) -> None:
    """Make the folder of a pack, or see that what is there is the beginning of the same one."""
    before = read_manifest(out)
    if before is not None and not force:
        if before.get("complete"):
            raise UserError(f"{out} holds a pack already", "choose another folder, or add --force to pack again")
        changed = [key for key, value in about.items() if before.get(key) != value]
        if changed:
            what = "another set of images" if "source" in changed else f"another --{changed[0].replace('_', '-')}"
            raise UserError(f"{out} holds the beginning of a pack with {what}", "add --force to begin again")
        return
    if before is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already and is not a pack", "name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    if before is not None:
        write_json(out / "pack.json", about)  # no longer complete, before anything of it goes
        for pattern in ("*.shard", "*.arrow", "*.shard.part", "bad_images.csv"):
            for path in out.glob(pattern):
                path.unlink()
    write_json(out / "pack.json", about)


def _parts_so_far(out: Path, quarantine: Quarantine) -> tuple[list[Any], int]:
    """The indexes of the pack that are whole, and how many images they account for; bad ones are put aside again."""
    import pyarrow as pa

    parts: list[Any] = []
    done = 0
    while (path := out / f"{len(parts):05d}.arrow").exists():
        try:
            with pa.OSFile(str(path)) as file:
                part = pa.ipc.open_file(file).get_batch(0)
            note = json.loads(part.schema.metadata[b"halflabel"])
            length = int(part.column("length").to_numpy().astype(np.int64).sum())
            if part.num_rows and (out / data_file_name(len(parts))).stat().st_size != length:
                break
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            break  # it is packed again, and all that follows
        parts.append(part)
        done = int(note["done"])
        for row in note["bad"]:
            quarantine.add(*row)
    return parts, done


class _DataFile:
    """One shard while it is written: under another name until it is whole, then its index beside it."""

    def __init__(self, out: Path, number: int) -> None:
        self.out, self.number = out, number
        self.length = 0
        self.rows: list[tuple[str, int, int, int, int, int, int]] = []
        self.bad: list[tuple[str, str, str]] = []
        self.partial = out / f"{data_file_name(number)}.part"
        self._file: IO[bytes] | None = None

    def add(self, name: str, data: bytes, wide: int, high: int) -> None:
        if self._file is None:
            self._file = open(self.partial, "wb")  # noqa: SIM115  # closed by finish or close
        self._file.write(data)
        self.rows.append((name, self.number, self.length, len(data), wide, high, zlib.crc32(data)))
        self.length += len(data)

    def finish(self, done: int) -> Any:
        import pyarrow as pa

        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self.close()
            os.replace(self.partial, self.out / data_file_name(self.number))
        name, *columns = zip(*self.rows, strict=True) if self.rows else ((),) * (1 + len(INDEX_COLUMNS))
        arrays = [pa.array(name, pa.large_string())]
        arrays += [
            pa.array(np.array(values, kind)) for values, kind in zip(columns, INDEX_COLUMNS.values(), strict=True)
        ]
        part = pa.record_batch(arrays, names=["name", *INDEX_COLUMNS])
        note = json.dumps({"done": done, "bad": self.bad})
        _write_arrow(part.replace_schema_metadata({"halflabel": note}), self.out / f"{self.number:05d}.arrow")
        return part

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write_arrow(batch: Any, path: Path) -> None:
    import pyarrow as pa

    with (
        atomic_write(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _finish(out: Path, about: dict[str, Any], parts: list[Any], bad: int) -> dict[str, Any]:
    import pyarrow as pa

    whole = pa.Table.from_batches([part.replace_schema_metadata(None) for part in parts])
    if whole["name"].nbytes < 1 << 31:  # 4 bytes per name less
        whole = whole.set_column(0, "name", whole["name"].cast(pa.string()))
    whole = whole.combine_chunks()
    if not whole.num_rows:
        raise UserError("not one image could be read", f"see {out / 'bad_images.csv'}")
    (batch,) = whole.to_batches()
    _write_arrow(batch, out / "index.arrow")
    length = int(batch.column("length").to_numpy().astype(np.int64).sum())
    about = {**about, "complete": True, "images": batch.num_rows, "bad": bad, "shards": len(parts), "bytes": length}
    about["index_crc32"] = file_crc32(out / "index.arrow")
    write_json(out / "pack.json", about)
    for number in range(len(parts)):
        (out / f"{number:05d}.arrow").unlink(missing_ok=True)
    (out / f"{data_file_name(len(parts))}.part").unlink(missing_ok=True)
    return about


_Encoded = tuple[bytes, int, int, str]  # bytes, width, height, or what is wrong


def _encoded(
    names: Any, first: int, folder: Path, stored: PackSettings, workers: int, max_pixels: int
) -> Iterable[list[_Encoded]]:
    """The images from number `first` on, encoded by worker processes, a few at a time, in their order."""
    batches = [range(at, min(at + _AT_ONCE, len(names))) for at in range(first, len(names), _AT_ONCE)]
    return DataLoader(
        _Originals(names, folder, stored, max_pixels),
        batch_sampler=batches,  # type: ignore[arg-type]  # ranges serve as lists do
        num_workers=workers,
        collate_fn=_as_they_are,
    )


def _as_they_are(items: list[_Encoded]) -> list[_Encoded]:
    return items


class _Originals(Dataset[_Encoded]):
    def __init__(self, names: Any, folder: Path, stored: PackSettings, max_pixels: int) -> None:
        self.names, self.folder, self.stored, self.max_pixels = names, folder, stored, max_pixels

    def __getitem__(self, number: int) -> _Encoded:
        try:
            return *encode_image(self.folder / str(self.names[number].as_py()), self.stored, self.max_pixels), ""
        except BadImage as bad:
            return b"", 0, 0, bad.reason


def encode_image(path: Path, stored: PackSettings, max_pixels: int = MAX_PIXELS) -> tuple[bytes, int, int]:
    """The bytes to store for one image file, and its width and height. Images are made smaller, never larger, but for
    squashed ones. A JPEG that is small enough, upright and not progressive goes in as it is: it loses nothing."""
    squash = stored.resize == "squash"
    # Twice the size in a JPEG's own reduction leaves the last step to a proper filter.
    image = read_image(path, max_pixels=max_pixels, least=2 * stored.size)
    high, wide = image.shape[1:]
    scale = min(1.0, stored.size / min(high, wide))
    to = (stored.size, stored.size) if squash else (max(1, round(high * scale)), max(1, round(wide * scale)))
    if to == (high, wide) and stored.store == "jpeg" and (same := _as_it_is(path)) is not None:
        return same, int(wide), int(high)
    if to != (high, wide):
        image = F.resize(image, list(to), antialias=True)
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    if stored.store == "raw":
        return pixels.tobytes(), to[1], to[0]
    stream = io.BytesIO()
    try:
        if stored.store == "jpeg":
            Image.fromarray(pixels).save(stream, "JPEG", quality=stored.quality)
        else:
            Image.fromarray(pixels).save(stream, "PNG", compress_level=1)  # higher levels take long and gain little
    except (OSError, ValueError) as error:  # a JPEG has at most 65,500 pixels a side
        raise BadImage(path, f"cannot be stored ({error})") from None
    return stream.getvalue(), to[1], to[0]


def _as_it_is(path: Path) -> bytes | None:
    """The bytes of a JPEG that reads everywhere as it does here."""
    data = path.read_bytes()
    if data[:3] != b"\xff\xd8\xff":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        try:
            turned = image.getexif().get(0x0112, 1) != 1
        except Exception:  # whatever faulty EXIF raises: Pillow may take it for anything
            return None
    plain = image.mode in ("RGB", "L") and not image.info.get("progressive") and not turned
    return data if plain and not image.info.get("mp") else None
