"""The binary format, `NAME.labels`: a label table as it is in memory, memory-mapped, for millions of images.

One file in the safetensors layout: 8 bytes with the length of the header, the header as JSON, then the arrays, all
little-endian. With N images, C classes and K known entries:

    start          I32 or I64 (N + 1)   image i has the entries start[i] … start[i+1] − 1
    column, value  I32 (K), ascending within an image; I8 (K), +1 present, −1 absent
    source, score  I16 (K), an index into `sources`; F32 (K), NaN for none. Omitted if all are the same
    sources        U8: the names of the sources as a JSON list
    image_offset, class_offset    I32 or I64 (N + 1, C + 1): where each name begins and ends in
    image_text, class_text        U8: all names in UTF-8, without separators

The header's `__metadata__` holds the format's name (form), its version and a CRC-32 of each array. The arrays are
mapped from the file: nothing is copied. The checksums are compared at every opening, at some gigabytes per second.
"""

from __future__ import annotations

import json
import mmap
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._paths import existing_path
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.system.files import atomic_write, file_crc32
from halflabel.system.rng import hash_names

USES = ()

ENDING = ".labels"

_FORMAT_NAME, _VERSION = "halflabel labels", 1
_TYPES = {"I64": "<i8", "I32": "<i4", "F32": "<f4", "I16": "<i2", "I8": "<i1", "U8": "<u1"}
_NEEDED = ("start", "column", "value", "image_offset", "image_text", "class_offset", "class_text", "sources")
_MAX_HEADER = 100_000_000  # as in safetensors
_FIX_DAMAGED = "copy the file again, or create it again from the original labels with halflabel convert"


class _ArrayPlace(NamedTuple):
    """An array in the file: `items` values of the type `kind`, in the bytes `first` … `end`."""

    kind: np.dtype[Any]
    items: int
    first: int
    end: int


class _MappedRows(Labels):
    """The rows of a binary file, one per known entry; the image indices are computed on first use."""

    def __init__(
        self, table: Table, source: NDArray[np.int16], score: NDArray[np.float32], sources: tuple[str, ...]
    ) -> None:
        # Bypass the frozen dataclass, whose constructor needs all arrays.
        vars(self).update(images=table.images, classes=table.classes, value=table.value)
        weight = np.broadcast_to(np.float32(np.nan), len(score))
        vars(self).update(source=source, score=score, weight=weight, sources=sources, table=table)

    @cached_property
    def image(self) -> NDArray[np.int32]:
        table: Table = vars(self)["table"]
        return np.repeat(np.arange(len(table), dtype=np.int32), np.diff(table.start))

    @cached_property
    def column(self) -> NDArray[np.int32]:
        table: Table = vars(self)["table"]
        return table.column.astype(np.int32, copy=False)

    def resolve(self) -> Table:
        table: Table = vars(self)["table"]
        return table

    def count_conflicts(self) -> int:
        return 0


def sniff(path: Path) -> bool:
    """Only by the ending of the name."""
    return path.suffix == ENDING and path.is_file()


def read(path: Path, policy: Policy) -> LabelImport:
    """Map a binary file, with sources and scores; LabelError for a damaged file."""
    table, arrays, sources = _open(Path(path))
    known = table.known
    source = arrays.get("source", np.broadcast_to(np.int16(0), known))
    score = arrays.get("score", np.broadcast_to(np.float32(np.nan), known))
    present = int(np.count_nonzero(table.value > 0))
    audit = Audit("binary", [str(path)])
    audit.add("1", "present", present)
    audit.add("-1", "absent", known - present)
    return LabelImport(_MappedRows(table, source, score, sources), audit)


def open_table(path: str | Path) -> Table:
    """The table of a binary file; its arrays are mapped from the file."""
    return _open(Path(path))[0]


def write(rows: Labels, path: Path) -> None:
    """Write the labels that hold, with source and score, completely or not at all. Overridden rows are not written."""
    path = Path(path)
    if path.suffix != ENDING:
        raise UserError(
            f"{path.name} does not end in {ENDING}", f"name it {path.stem}{ENDING}: the ending tells the format"
        )
    arrays = _arrays(rows)
    metadata = {"form": _FORMAT_NAME, "version": str(_VERSION)}
    metadata["crc32"] = json.dumps({name: zlib.crc32(array.data) for name, array in arrays.items()})
    header: dict[str, Any] = {"__metadata__": metadata}
    names = {kind: name for name, kind in _TYPES.items()}
    offset = 0
    for name, array in arrays.items():
        ends = [offset, offset + array.nbytes]
        header[name] = {"dtype": names[array.dtype.newbyteorder("<").str.replace("|", "<")], "shape": [len(array)]}
        header[name]["data_offsets"] = ends
        offset = ends[1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that every array is aligned to its item size
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.data)


def _arrays(rows: Labels) -> dict[str, NDArray[Any]]:
    """The arrays by name, largest item size first, so that each is aligned to its item size."""
    if isinstance(rows, _MappedRows):
        holding: Any = slice(None)
        table = rows.resolve()  # one row per entry
    else:
        holding = rows.holding()
        table = Table.from_entries(
            rows.images, rows.classes, rows.image[holding], rows.column[holding], rows.value[holding]
        )
    arrays: dict[str, NDArray[Any]] = {"start": table.start, "column": table.column, "value": table.value}
    for kind, names in (("image", table.images), ("class", table.classes)):
        arrays[f"{kind}_offset"], arrays[f"{kind}_text"] = names.parts()
    if len(rows.sources) > 1:
        arrays["source"] = rows.source[holding]
    if not np.isnan(rows.score).all():
        arrays["score"] = rows.score[holding]
    arrays["sources"] = np.frombuffer(json.dumps(rows.sources, ensure_ascii=False).encode(), np.uint8)
    little = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    return dict(sorted(little.items(), key=lambda item: -item[1].itemsize))


def _open(path: Path) -> tuple[Table, dict[str, NDArray[Any]], tuple[str, ...]]:
    path = existing_path(path)
    with open(path, "rb") as file:
        arrays = _map(file, path)
    try:
        missing = [name for name in _NEEDED if name not in arrays]
        if missing:
            raise LabelError(f"it has no {missing[0]!r}", _FIX_DAMAGED, path)
        sources = tuple(str(name) for name in json.loads(arrays["sources"].tobytes()))
        images, classes = (
            Names.from_parts(arrays[f"{kind}_offset"], arrays[f"{kind}_text"]) for kind in ("image", "class")
        )
        _check(images, classes, arrays, sources)
        table = Table.from_parts(images, classes, arrays["start"], arrays["column"], arrays["value"])
    except (KeyError, ValueError) as error:
        raise LabelError(f"its parts do not fit together ({error})", _FIX_DAMAGED, path) from None
    return table, arrays, sources


def _map(file: BinaryIO, path: Path) -> dict[str, NDArray[Any]]:
    """Map the arrays of the file after comparing sizes and checksums."""
    size = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER):
        raise LabelError("this is not a binary label file, or its beginning is damaged", _FIX_DAMAGED, path)
    try:
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__")
        if metadata["form"] != _FORMAT_NAME:
            raise LabelError(f"its format is {metadata['form']!r}, not {_FORMAT_NAME!r}", "name a file of labels", path)
        if int(metadata["version"]) > _VERSION:
            message = f"it was written by a newer halflabel (version {metadata['version']} of the format)"
            raise LabelError(message, "update halflabel, or convert it to .parquet with the newer one", path)
        checksums = json.loads(metadata["crc32"])
        places = {name: _array_place(part, 8 + length) for name, part in header.items()}
        expected_size = max(place.end for place in places.values())
        if set(checksums) != set(places):
            raise ValueError
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise LabelError("its header is damaged", _FIX_DAMAGED, path) from None
    if size != expected_size:
        raise LabelError(f"it has {size:,} bytes instead of {expected_size:,}", _FIX_DAMAGED, path)
    for name, place in places.items():
        # Not through the mapping: that would count as used memory.
        if file_crc32(path, place.first, place.end - place.first) != checksums[name]:
            raise LabelError(f"its part {name!r} is damaged: the checksum differs", _FIX_DAMAGED, path)
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {name: _array(pages, place) for name, place in places.items()}


def _array_place(part: dict[str, Any], base: int) -> _ArrayPlace:
    """The place of an array in the file, from its entry in the header; ValueError if the numbers do not fit."""
    (count,), (first, end), kind = part["shape"], part["data_offsets"], np.dtype(_TYPES[part["dtype"]])
    if not (isinstance(count, int) and isinstance(first, int) and 0 <= first == end - kind.itemsize * count <= end):
        raise ValueError
    return _ArrayPlace(kind, count, base + first, base + end)


def _array(pages: mmap.mmap, place: _ArrayPlace) -> NDArray[Any]:
    if not place.items:  # an empty array may start after the last byte
        return np.zeros(0, place.kind)
    return np.frombuffer(pages, place.kind, place.items, place.first)


def _are_distinct(names: Names) -> bool:
    """Whether no two names are the same; only names with the same 64-bit hash are compared."""
    hashes = np.sort(hash_names(names.array))
    if not (hashes[1:] == hashes[:-1]).any():
        return True
    return len(names.array.unique()) == len(names)


def _check(images: Names, classes: Names, arrays: dict[str, NDArray[Any]], sources: tuple[str, ...]) -> None:
    """Check what correct checksums do not guarantee: that the writer followed the format."""
    for kind, names in (("image", images), ("class", classes)):
        if not _are_distinct(names):
            raise ValueError(f"{kind} names twice")
    start, column, value = (arrays[name] for name in ("start", "column", "value"))
    known = len(value)
    if len(start) != len(images) + 1 or start[0] != 0 or start[-1] != known or (start[1:] < start[:-1]).any():
        raise ValueError("start")
    ends = np.zeros(known + 1, bool)
    ends[start] = True
    if known and ((column[1:] <= column[:-1]) & ~ends[1:-1]).any():
        raise ValueError("column order")
    if len(column) != known or (known and not 0 <= column.min() <= column.max() < len(classes)):
        raise ValueError("column")
    if known and not (value.min() >= -1 and value.max() <= 1 and np.count_nonzero(value) == known):
        raise ValueError("value")
    for name in ("source", "score"):
        if name in arrays and len(arrays[name]) != known:
            raise ValueError(name)
    if "source" in arrays and known and not 0 <= arrays["source"].min() <= arrays["source"].max() < len(sources):
        raise ValueError("source")
