"""Writing packs: worker processes resize the images; each WebDataset tar is written atomically."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from PIL import Image, JpegImagePlugin
from torch.utils.data import DataLoader, Dataset

from halflabel.errors import UserError
from halflabel.images.decode import (
    BadImage,
    list_images,
    locate_images,
    none_found_error,
    open_image,
    read_image,
    split_suffixes,
)
from halflabel.images.file_identity import digest_contents
from halflabel.images.pack.read import (
    FORMAT,
    INDEX_COLUMNS,
    VERSION,
    PackSettings,
    data_file_name,
    is_pack,
    open_pack,
    read_manifest,
)
from halflabel.images.quarantine import Quarantine
from halflabel.labels.formats._write import check_provenance
from halflabel.labels.formats.imagefolder import IMAGE_COLUMN
from halflabel.labels.formats.webdataset import image_records
from halflabel.labels.labels import Labels
from halflabel.system.files import atomic_write, exclusive, file_crc32, refuse_remote, write_json
from halflabel.system.remote import local_folder
from halflabel.system.rng import bits, hash_names
from halflabel.system.webdataset import append_to_tar, end_tar

_QUALITY = 90  # of JPEGs
_BATCH = 16  # images that a worker encodes at a time
_STORING = 0x7061636B  # separates the random numbers of the storage order from all others


def pack_images(
    folder: Path,
    out: Path,
    settings: PackSettings,
    *,
    labels: Labels | None = None,
    shard_bytes: int = 256 << 20,
    workers: int = 0,
    max_bad: float = 0.01,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the images of a folder into a pack and return the content of pack.json.

    With `labels`, only their images, each with its labels in KEY.json. An interrupted pack is continued after its last
    complete data file, with the same bytes. More unreadable images than the share `max_bad` are an error.
    """
    refuse_remote(out)
    folder = local_folder(folder)
    names, not_utf8, image_of = _select_images(folder, labels)
    if labels is not None:
        check_provenance(labels, ~labels.is_answer(), "a pack")
    records = None if labels is None else list(image_records(labels))
    keys = _sample_keys(names)
    if not len(names):
        raise UserError(f"there are no images in {folder}", "name the folder with the images")
    # Neighbours are read together: they must not be similar.
    order = pa.array(np.argsort(bits(0, _STORING, hash_names(names)), kind="stable"))
    names, keys = names.take(order), keys.take(order)
    contents = digest_contents([str(folder / name) for name in names.to_pylist()])
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "complete": False,
        **asdict(settings),
        "shard_bytes": shard_bytes,
        "tail": [part for part in folder.resolve().parts if part != os.sep][-4:],
        "source": hashlib.sha256(hash_names(names).tobytes() + contents.encode()).hexdigest()[:16],
        "labels": None if labels is None else labels.training.digest()[:16],
    }
    with exclusive(out):
        if (finished := _begin(out, manifest, force)) is not None:
            return {**finished, "was_finished": True}
        quarantine = Quarantine(out / "bad_images.csv")
        for path in not_utf8:
            quarantine.add(path, folder / path, "its name is not UTF-8")
        parts, done = _read_finished_parts(out, quarantine)
        total = len(names) + len(not_utf8)
        data_file = _DataFile(out, len(parts))
        try:
            quarantine.check(total, max_bad)
            for batch in _encoded(names, done, folder, settings, workers):
                for data, width, height, reason in batch:
                    name, key = names[done].as_py(), keys[done].as_py()
                    done += 1
                    if reason:
                        quarantine.add(name, folder / name, reason)
                        data_file.bad.append((name, str(folder / name), reason))
                        quarantine.check(total, max_bad)
                    else:
                        data_file.add(name, f"{key}.jpg", data, width, height)
                        if records is not None:
                            record = {IMAGE_COLUMN: name, **records[image_of[name]]}
                            data_file.append(f"{key}.json", json.dumps(record, ensure_ascii=False).encode())
                    if data_file.length >= shard_bytes:
                        parts.append(data_file.finish(done))
                        data_file = _DataFile(out, len(parts))
                if progress is not None:
                    progress(done, len(names))
            if data_file.rows or data_file.bad:
                parts.append(data_file.finish(done))
        finally:
            data_file.close()
            quarantine.write()
        return _finish(out, manifest, parts, len(quarantine))


def _select_images(folder: Path, labels: Labels | None) -> tuple[Any, list[str], dict[str, int]]:
    """Return the sorted relative paths to pack, those not in UTF-8, and the labelled image of each path."""
    if read_manifest(folder) is not None:
        raise UserError(f"{folder} is a pack already", "name the folder with the original images")
    if labels is None:
        if is_pack(folder):  # tars that others wrote
            return open_pack(folder).names.cast(pa.large_string()).sort(), [], {}
        return *list_images(folder), {}
    ids = list(labels.images)
    paths = locate_images(ids, folder)
    image_of = {path.relative_to(folder).as_posix(): n for n, path in enumerate(paths) if path is not None}
    if not image_of:
        raise none_found_error(ids, folder)
    return pa.array(sorted(image_of), pa.large_string()), [], image_of


def _sample_keys(names: Any) -> Any:
    """Return the WebDataset key of each image: its name without the ending.

    A key ends at the first dot of a file name, so other dots are written %2E. Where `a.jpg` and `a.png` would have the
    same key, the ending stays.
    """
    bases = split_suffixes(names)[0].to_pylist()
    count = Counter(bases)

    def key(name: str, base: str) -> str:
        is_repeated = count[base] > 1
        folder, slash, stem = (name if is_repeated else base).replace("%", "%25").rpartition("/")
        return folder + slash + stem.replace(".", "%2E") + ("%" if is_repeated else "")  # no other key ends with %

    return pa.array(map(key, names.to_pylist(), bases), names.type)


def _begin(out: Path, manifest: dict[str, Any], force: bool) -> dict[str, Any] | None:
    """Create the folder of a pack, or check that a pack there is the same one; return it if it is finished."""
    before = read_manifest(out)
    if before is not None and not force:
        changed = [key for key, value in manifest.items() if before.get(key) != value and key != "complete"]
        if changed:
            difference = "another set of images" if "source" in changed else f"another ‹{changed[0]}›"
            fix = "choose another folder, or add ‹force› to pack again"
            raise UserError(f"{out} holds a pack with {difference}", fix)
        return before if before.get("complete") else None
    if before is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already and is not a pack", "name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    if before is not None:
        write_json(out / "pack.json", manifest)  # marks it incomplete before any file is removed
        for pattern in ("*.tar", "*.arrow", "*.tar.part", "bad_images.csv"):
            for path in out.glob(pattern):
                path.unlink()
    write_json(out / "pack.json", manifest)
    return None


def _read_finished_parts(out: Path, quarantine: Quarantine) -> tuple[list[Any], int]:
    """Return the indexes of complete data files and the number of their images; unreadable ones join the quarantine."""
    parts: list[Any] = []
    done = 0
    while (path := out / f"{len(parts):05d}.arrow").exists():
        try:
            with pa.OSFile(str(path)) as file:
                part = pa.ipc.open_file(file).get_batch(0)
            note = json.loads(part.schema.metadata[b"halflabel"])
            if part.num_rows and (out / data_file_name(len(parts))).stat().st_size != note["bytes"]:
                break
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            break  # this file and all that follow are written again
        parts.append(part)
        done = int(note["done"])
        for row in note["bad"]:
            quarantine.add(*row)
    return parts, done


class _DataFile:
    """A data file while it is written: under a temporary name until it is complete, then with its index beside it."""

    def __init__(self, out: Path, number: int) -> None:
        self.out, self.number = out, number
        self.length = 0
        self.rows: list[tuple[str, int, int, int, int, int, int]] = []
        self.bad: list[tuple[str, str, str]] = []
        self.partial = out / f"{data_file_name(number)}.part"
        self._file: IO[bytes] | None = None

    def add(self, name: str, member: str, data: bytes, width: int, height: int) -> None:
        offset = self.append(member, data)
        self.rows.append((name, self.number, offset, len(data), width, height, zlib.crc32(data)))

    def append(self, member: str, data: bytes) -> int:
        """Append a file to the tar and return the place of its bytes."""
        if self._file is None:
            self._file = open(self.partial, "wb")  # noqa: SIM115  # closed by finish or close
        offset = append_to_tar(self._file, member, data)
        self.length = self._file.tell()
        return offset

    def finish(self, done: int) -> Any:
        if self._file is not None:
            end_tar(self._file)
            self.length = self._file.tell()
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
        note = json.dumps({"done": done, "bad": self.bad, "bytes": self.length})
        _write_arrow(part.replace_schema_metadata({"halflabel": note}), self.out / f"{self.number:05d}.arrow")
        return part

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write_arrow(batch: Any, path: Path) -> None:
    with (
        atomic_write(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _finish(out: Path, manifest: dict[str, Any], parts: list[Any], bad: int) -> dict[str, Any]:
    whole = pa.Table.from_batches([part.replace_schema_metadata(None) for part in parts])
    if whole["name"].nbytes < 1 << 31:  # saves 4 bytes per name
        whole = whole.set_column(0, "name", whole["name"].cast(pa.string()))
    whole = whole.combine_chunks()
    if not whole.num_rows:
        raise UserError("none of the images could be read", f"see {out / 'bad_images.csv'}")
    (batch,) = whole.to_batches()
    _write_arrow(batch, out / "index.arrow")
    length = int(batch.column("length").to_numpy().astype(np.int64).sum())
    manifest = {
        **manifest,
        "complete": True,
        "images": batch.num_rows,
        "bad": bad,
        "shards": len(parts),
        "bytes": length,
    }
    manifest["index_crc32"] = file_crc32(out / "index.arrow")
    write_json(out / "pack.json", manifest)
    for number in range(len(parts)):
        (out / f"{number:05d}.arrow").unlink(missing_ok=True)
    (out / f"{data_file_name(len(parts))}.part").unlink(missing_ok=True)
    return manifest


_Encoded = tuple[bytes, int, int, str]  # bytes, width, height, reason if unreadable


def _encoded(names: Any, first: int, folder: Path, settings: PackSettings, workers: int) -> Iterable[list[_Encoded]]:
    """Yield the images from number `first` on, encoded by worker processes in order, a few at a time."""
    batches = [range(start, min(start + _BATCH, len(names))) for start in range(first, len(names), _BATCH)]
    return DataLoader(
        _Originals(names, folder, settings),
        batch_sampler=batches,  # type: ignore[arg-type]  # ranges work like lists
        num_workers=workers,
        collate_fn=list,
    )


class _Originals(Dataset[_Encoded]):
    def __init__(self, names: Any, folder: Path, settings: PackSettings) -> None:
        self.names, self.folder, self.settings = names, folder, settings

    def __getitem__(self, number: int) -> _Encoded:
        try:
            return *encode_image(self.folder / str(self.names[number].as_py()), self.settings), ""
        except BadImage as bad:
            return b"", 0, 0, bad.reason


def encode_image(path: Path, settings: PackSettings) -> tuple[bytes, int, int]:
    """Return the bytes to store for one image file, and its width and height; a small plain JPEG stays as it is."""
    # JPEG's fast reduction stops at twice the size, which leaves the last step to a proper filter.
    image = read_image(path, min_side=2 * settings.size)
    height, width = image.shape[1:]
    scale = min(1.0, settings.size / min(height, width))
    new = max(1, round(height * scale)), max(1, round(width * scale))
    if new == (height, width) and (unchanged := _storable_jpeg(path)) is not None:
        return unchanged, int(width), int(height)
    if new != (height, width):
        from torchvision.transforms.v2.functional import resize

        image = resize(image, list(new), antialias=True)
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    stream = io.BytesIO()
    try:
        Image.fromarray(pixels).save(stream, "JPEG", quality=_QUALITY)
    except (OSError, ValueError) as error:  # a JPEG has at most 65,500 pixels a side
        raise BadImage(path, f"cannot be stored ({error})") from None
    return stream.getvalue(), new[1], new[0]


def _storable_jpeg(path: Path) -> bytes | None:
    """Return the bytes of a plain JPEG that every decoder reads alike; None for other files."""
    with open_image(path) as file:
        data = file.read()
    if data[:3] != b"\xff\xd8\xff":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        try:
            is_rotated = image.getexif().get(0x0112, 1) != 1
        except Exception:  # faulty EXIF can raise anything
            return None
    plain = image.mode in ("RGB", "L") and not image.info.get("progressive") and not is_rotated
    return data if plain and not image.info.get("mp") else None
