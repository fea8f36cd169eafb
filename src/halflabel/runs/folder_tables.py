"""The Parquet tables of a run folder: which images were held out, and the scores of the held-out images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError, error_summary
from halflabel.labels.names import Names
from halflabel.runs.folder_integrity import verify_checksum, with_checksum
from halflabel.system.files import atomic_write


def write_split(path: Path, images: Sequence[str], part: NDArray[Any]) -> None:
    """Write one row per image; part (N,) is 0 for training images and 1 for held-out ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = np.array(["train", "validation"])[part]
    with with_checksum(path), atomic_write(path) as temporary:
        pq.write_table(pa.table({"image": images, "part": pa.array(kind).dictionary_encode()}), temporary)


def read_split(path: Path) -> tuple[Names, NDArray[np.int8]]:
    """Return the image names and their part (N,): 0 for training images, 1 for held-out ones."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        if not path.is_file():  # reading a named pipe would block
            raise ValueError("no such file")
        verify_checksum(path)
        table = pq.read_table(path)
        image, part = (table[name].cast(pa.string()).combine_chunks() for name in ("image", "part"))
        if image.null_count or not pc.all(pc.is_in(part, pa.array(["train", "validation"])), min_count=0).as_py():
            raise ValueError("an image has no name or no part")
        names = Names(image)
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException, UserError) as error:
        raise UserError(f"{path} cannot be read ({error_summary(error)})", "start a new run") from None
    return names, pc.equal(part, "validation").to_numpy(zero_copy_only=False).astype(np.int8)


def write_scores_parquet(
    path: Path,
    images: Sequence[str],
    classes: Sequence[str],
    scores: NDArray[np.float32],
    fold: NDArray[np.int8] | None = None,
) -> None:
    """Write one row per image with a list of C scores, and its fold; the class names are in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = pa.array(np.ascontiguousarray(scores, dtype=np.float32).reshape(-1))
    columns = {"image": images, "scores": pa.FixedSizeListArray.from_arrays(flat, len(classes))}
    table = pa.table(columns if fold is None else {**columns, "fold": fold})
    table = table.replace_schema_metadata({"classes": json.dumps(list(classes))})
    with with_checksum(path), atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_scores_parquet(
    path: Path, *, has_folds: bool = False
) -> tuple[Names, list[str], NDArray[np.float32], NDArray[np.int8]]:
    """Return (N images, C classes, scores (N, C), folds (N,)); scores are NaN for images that could not be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        verify_checksum(path)
        table = pq.read_table(path).combine_chunks()
        classes = [str(name) for name in json.loads(table.schema.metadata[b"classes"])]
        names = Names(table["image"].cast(pa.string()).combine_chunks())
        flat = table["scores"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        scores = flat.reshape(len(names), len(classes)).astype(np.float32)
        fold = table["fold"].to_numpy() if has_folds else np.zeros(len(names))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, UserError) as error:
        raise UserError(f"{path} cannot be read ({error_summary(error)})", "train again") from None
    return names, classes, scores, fold.astype(np.int8)
