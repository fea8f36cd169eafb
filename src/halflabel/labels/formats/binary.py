"""The binary format, `NAME.labels`: an Arrow IPC file with one record batch and one row per image, memory-mapped.

Columns: `image` string, `labels` list of struct (a sparse table in compressed rows) with `class` dictionary of int32 in
order, `value` int8 (+1, −1), and where they are needed `source` dictionary of int16 (else in the metadata), `score` and
`weight` float32, NaN for none. The metadata of the schema holds a CRC-32 of the rest, compared at every opening.
"""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from halflabel.errors import LabelError, UserError, error_summary
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import existing_path
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.system.files import atomic_write

HOLDS_WEIGHTS = True
USES = ()

ENDING = ".labels"

_MAGIC = b"ARROW1\0\0"
_BEFORE_CHECKSUM = b"halflabel labels 1, CRC-32 "
_DIGITS = 8
_BEGINNING = 1 << 16  # the checksum is among this many bytes
_TYPES = {
    "class": pa.dictionary(pa.int32(), pa.string()),
    "value": pa.int8(),
    "source": pa.dictionary(pa.int16(), pa.string()),
    "score": pa.float32(),
    "weight": pa.float32(),
}
_COMPRESSION = {"record batch": (2, 3), "dictionary": (2, 1, 3)}  # numbers of fields in Arrow's Message.fbs
_FIX_DAMAGED = "copy the file again, or create it again from the original labels with halflabel convert"
# What a hostile file may raise; MemoryError is for an impossible size.
_HOSTILE = (pa.ArrowException, UserError, OSError, ValueError, TypeError, LookupError, AttributeError, MemoryError)


def sniff(path: Path) -> bool:
    return path.suffix == ENDING and path.is_file()


def read(path: Path, policy: Policy) -> LabelImport:
    """Map a binary file, with sources, scores and weights; LabelError for a damaged file."""
    path = existing_path(path)
    with open(path, "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if pages[: len(_MAGIC)] != _MAGIC or pages.find(_BEFORE_CHECKSUM, 0, _BEGINNING) < 0:
        fix = "copy the file again, or update halflabel if a newer one wrote it"
        raise LabelError("this is not a binary label file, or its beginning is damaged", fix, path)
    digits, checksum = _checksum(pages)
    if pages[digits] != checksum:
        raise LabelError("it is damaged: the checksum differs", _FIX_DAMAGED, path)
    try:
        rows = _rows(_batch_of(pa.py_buffer(pages).slice(len(_MAGIC))))
    except _HOSTILE as error:
        raise LabelError(f"its parts do not fit together ({error_summary(error)})", _FIX_DAMAGED, path) from None
    audit = Audit("binary", [str(path)])
    present = int(np.count_nonzero(rows.value > 0))
    audit.add("1", "present", present)
    audit.add("-1", "absent", len(rows) - present)
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write the labels that hold, completely or not at all. Overridden rows are not written."""
    path = Path(path)
    if path.suffix != ENDING:
        raise UserError(
            f"{path.name} does not end in {ENDING}", f"name it {path.stem}{ENDING}: the ending tells the format"
        )
    if len(rows) > np.iinfo(np.int32).max:
        raise UserError(f"{len(rows):,} labels are more than a {ENDING} file can hold", "write a .parquet file")
    batch = _make_batch(rows.drop_overridden())
    with atomic_write(path) as temporary, open(temporary, "wb+") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        with mmap.mmap(file.fileno(), 0) as pages:
            digits, checksum = _checksum(pages)
            pages[digits] = checksum


def _make_batch(rows: Labels) -> pa.RecordBatch:
    """The content of a file, from rows in the order of images and classes."""
    entries = {"class": pa.DictionaryArray.from_arrays(rows.column, rows.classes.array), "value": pa.array(rows.value)}
    if len(rows.sources) > 1:
        entries["source"] = pa.DictionaryArray.from_arrays(rows.source, pa.array(rows.sources, pa.string()))
    for name, numbers in (("score", rows.score), ("weight", rows.weight)):
        if not np.isnan(numbers).all():
            entries[name] = pa.array(numbers)
    start = np.searchsorted(rows.image, np.arange(len(rows.images) + 1, dtype=np.int32))
    structs = pa.StructArray.from_arrays(list(entries.values()), list(entries))
    labels = pa.ListArray.from_arrays(pa.array(start, pa.int32()), structs)
    metadata = {"source": rows.sources[0], "form": _BEFORE_CHECKSUM + b"?" * _DIGITS}
    return pa.record_batch([rows.images.array, labels], ["image", "labels"], metadata=metadata)


def _checksum(pages: mmap.mmap) -> tuple[slice, bytes]:
    """Where a file holds its checksum in hexadecimal digits, and the CRC-32 of the rest of the file."""
    first = pages.find(_BEFORE_CHECKSUM, 0, _BEGINNING) + len(_BEFORE_CHECKSUM)
    digits = slice(first, first + _DIGITS)
    with memoryview(pages) as view:
        return digits, b"%08x" % zlib.crc32(view[digits.stop :], zlib.crc32(view[: digits.start]))


def _batch_of(stream: pa.Buffer) -> pa.RecordBatch:
    """The only record batch of an Arrow stream, checked by Arrow; ValueError if something in it is compressed."""
    kinds = []
    for message in pa.ipc.MessageReader.open_stream(stream):
        kinds.append(message.type)
        # A few compressed bytes may unpack to any size. Messages of an older version name the compression elsewhere.
        is_old = message.metadata_version != pa.ipc.MetadataVersion.V5
        if is_old or _has_field(message.metadata.to_pybytes(), _COMPRESSION.get(message.type, ())):
            raise ValueError("compressed arrays")
    if kinds.count("record batch") != 1:
        raise ValueError("several parts, or none")
    batch = pa.ipc.open_stream(stream).read_next_batch()
    batch.validate(full=True)
    return batch


def _has_field(table: bytes, path: tuple[int, ...]) -> bool:
    """Whether a flatbuffers table has a field: `path` holds the numbers of the fields that lead to it."""

    def number(place: int, size: int = 4, *, signed: bool = False) -> int:
        return int.from_bytes(table[place : place + size], "little", signed=signed)

    place = number(0)
    for field in path:
        fields = place - number(place, signed=True)
        offset = number(fields + 4 + 2 * field, 2) if 4 + 2 * field < number(fields, 2) else 0
        if not offset:
            return False
        place += offset + number(place + offset)
    return bool(path)


def _rows(batch: pa.RecordBatch) -> Labels:
    image, labels = batch["image"], batch["labels"]
    fields = list(labels.type.value_type)
    is_text = pa.types.is_string(image.type) or pa.types.is_large_string(image.type)
    if not (is_text and pa.types.is_list(labels.type) and all(_TYPES[each.name] == each.type for each in fields)):
        raise ValueError("types")
    numbers, names = {}, {"source": pa.array([batch.schema.metadata[b"source"].decode()])}
    for field, column in zip(fields, labels.values.flatten(), strict=True):
        if pa.types.is_dictionary(field.type):
            names[field.name], column = column.dictionary, column.indices
        numbers[field.name] = column.to_numpy()
    if any(array.null_count for array in (image, labels, *names.values())):
        raise ValueError("nulls")
    images, classes = Names(image), Names(names["class"])
    start, column, value = labels.offsets.to_numpy(), numbers["class"], numbers["value"]
    values = csr_array((value, column, start), (len(images), len(classes)))
    values.check_format(full_check=True)
    if start[-1] != len(value) or not values.has_canonical_format or (np.abs(value) != 1).any():
        raise ValueError("entries")
    if (numbers.get("weight", np.zeros(1)) < 0).any():
        raise ValueError("weights")
    source = numbers.get("source", np.broadcast_to(np.int16(0), len(value)))
    parts = source, numbers.get("score"), names["source"].to_pylist(), numbers.get("weight")
    return Labels.from_table(Table(images, classes, values), *parts)
