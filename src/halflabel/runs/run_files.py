"""Files of a run: checksums, the lock of a training, and the Parquet files of images and scores.

The file of scores has a row per image with its logits and its fold; the kind and the classes are metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from halflabel.errors import UserError, error_summary
from halflabel.evaluation.scores import Kind, Scores
from halflabel.labels.names import Names
from halflabel.system.files import atomic_write, file_crc32, read_json, write_json
from halflabel.system.memory import scratch_array

_FILE = "checksums.json"
_FIX = f"copy the run again, or train again; if you changed the file on purpose, remove its line from {_FILE}"


def write_checksums(folder: Path, *names: str) -> None:
    write_json(folder / _FILE, _read(folder) | {name: file_crc32(folder / name) for name in names})


@contextmanager
def with_checksum(path: Path) -> Iterator[None]:
    """Write a file of a run in this block; its checksum is removed before, so that a kill between leaves none."""
    others = {name: value for name, value in _read(path.parent).items() if name != path.name}
    if others or (path.parent / _FILE).exists():
        write_json(path.parent / _FILE, others)
    yield
    write_checksums(path.parent, path.name)


def verify_checksum(path: Path) -> None:
    """Raise UserError if a file of a run does not match its checksum; a file that was just written may have none."""
    expected = _read(path.parent).get(path.name)
    if expected is not None and path.is_file() and file_crc32(path) != expected:
        raise UserError(f"{path} is damaged: its checksum differs", _FIX)


def _read(folder: Path) -> dict[str, Any]:
    checksums = read_json(folder / _FILE, _FIX) if (folder / _FILE).exists() else {}
    if not isinstance(checksums, dict):
        raise UserError(f"{folder / _FILE} is damaged", _FIX)
    return checksums


_BLOCK_ENTRIES = 1 << 22  # entries read or written at a time


def write_scores(path: Path, scores: Scores) -> None:
    flat = pa.array(np.ascontiguousarray(scores.logits, dtype=np.float32).reshape(-1))
    logits = pa.FixedSizeListArray.from_arrays(flat, len(scores.classes))
    table = pa.table({"image": scores.images.array, "logits": logits, "fold": scores.fold})
    table = table.replace_schema_metadata({"kind": scores.kind, "classes": json.dumps(list(scores.classes))})
    with with_checksum(path), atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=_block_images(len(scores.classes)))


def read_scores(path: Path) -> Scores:
    try:
        verify_checksum(path)
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata
            classes = Names(json.loads(metadata[b"classes"]))
            rows = file.read(["image", "fold"])
            images = Names(rows["image"].cast(pa.string()).combine_chunks())
            logits, first = scratch_array((len(images), len(classes))), 0
            for batch in file.iter_batches(_block_images(len(classes)), columns=["logits"]):
                block = batch.column(0).flatten().to_numpy(zero_copy_only=False)
                logits[first : first + len(batch)] = block.reshape(len(batch), len(classes))
                first += len(batch)
            return Scores(images, classes, logits, rows["fold"].to_numpy().astype(np.int8), _kind(metadata))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, UserError) as error:
        raise _damaged(path, error) from None


def write_digests(path: Path, images: Names, digests: NDArray[np.uint64]) -> None:
    with with_checksum(path), atomic_write(path) as temporary:
        pq.write_table(pa.table({"image": images.array, "digest": digests}), temporary, compression="zstd")


def read_digests(path: Path) -> tuple[Names, NDArray[np.uint64]]:
    try:
        verify_checksum(path)
        rows = pq.read_table(path)
        return Names(rows["image"].cast(pa.string()).combine_chunks()), rows["digest"].to_numpy().astype(np.uint64)
    except (OSError, ValueError, KeyError, pa.ArrowException, UserError) as error:
        raise _damaged(path, error) from None


def read_kind(path: Path) -> Kind:
    """Return the kind of the scores in a file, without reading them."""
    try:
        return _kind(pq.read_schema(path).metadata)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise _damaged(path, error) from None


def _kind(metadata: Mapping[bytes, bytes]) -> Kind:
    kind = metadata[b"kind"].decode()
    if kind not in get_args(Kind):
        raise ValueError(f"scores of the kind {kind!r}")
    return cast(Kind, kind)


def _block_images(classes: int) -> int:
    return max(1, _BLOCK_ENTRIES // max(classes, 1))


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read ({error_summary(error)})", "train again")
