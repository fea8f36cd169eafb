"""The Parquet file of scores: a row per image with its logits and its fold; the kind and the classes as metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from halflabel.errors import UserError, error_summary
from halflabel.evaluation.scores import Kind, Scores
from halflabel.labels.names import Names
from halflabel.runs.folder_integrity import verify_checksum, with_checksum
from halflabel.system.files import atomic_write
from halflabel.system.memory import scratch_array

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
