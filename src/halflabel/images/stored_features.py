"""Features of images in Parquet files, in place of the images: written by `halflabel embed`, or by any other program.

A file has a column of image names (`image`, or else the first column of texts) and a column of vectors (`features`, or
else the first column of lists of floats); null vectors are images that could not be read. Files of `embed` say in their
metadata which backbone made them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import torch
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.images import decode
from halflabel.images.decode import none_found_error
from halflabel.images.file_identity import content_digest
from halflabel.images.pack.source import ImagePaths
from halflabel.images.sources import Features, FetchedBatch, Images, Plan
from halflabel.images.views import View
from halflabel.labels.formats._sheets import parquet_files
from halflabel.labels.names import Names
from halflabel.system import memory
from halflabel.system.remote import local_path

METADATA = b"halflabel"  # key of the metadata of a file
_ROWS = 4096  # read at a time
_READ_AHEAD = 1 << 20  # bytes of a column: without, a row group is read as a whole
_FIX = "write the features again: a column of image names, and a column of lists of as many floats each"


class StoredFeatures(Images):
    """Images of which only the features are there, read into a scratch file in the order of `names`."""

    def __init__(self, names: Names, folder: Path, views: Mapping[str, View], **options: Any) -> None:
        super().__init__((), names, views, **options)
        self.folder = folder
        self.paths = ImagePaths(folder, names)
        self.about = describe_features(folder)
        values, has_features = _read_values(names, folder, self.about["dimensions"])
        if not has_features.any() and self.max_bad < 1:
            raise none_found_error(names, folder)
        self.mark_missing(np.flatnonzero(~has_features).tolist(), folder, "no features", "finite features")
        self.features = Features(values, names, np.flatnonzero(~has_features).tolist())
        self.digests = np.where(has_features, _digests(names, folder, values), 0).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.names)

    def digest(self) -> str:
        """Return a digest of the features."""
        return hashlib.sha256(self.features.values.numpy().data).hexdigest()[:16]  # type: ignore[union-attr]

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        raise UserError("there are features in place of the images", "use ‹tune=head›")

    def group_copies(self) -> NDArray[np.int64]:
        """Return the group of each image (N,): images with equal features are in one group."""
        _, first, group = np.unique(self.digests, return_index=True, return_inverse=True)
        copies: NDArray[np.int64] = first[group]
        copies[self.features.bad] = self.features.bad
        return copies


def _digests(names: Names, folder: Path, values: torch.Tensor) -> NDArray[np.uint64]:
    """Return the digests (N,) of the images, which `embed` writes beside their features; else of the features."""
    files = parquet_files(folder)
    if all("digest" in _schema(path).names for path in files):
        stored = np.concatenate([pq.read_table(path, columns=["digest"])["digest"].to_numpy() for path in files])
        digests, place = np.zeros(len(names), np.uint64), _find(names, _all_names(files))
        digests[place[place >= 0]] = stored[place >= 0]
        return digests
    return np.array([content_digest(row.tobytes()) for row in values.numpy()], np.uint64)


def holds_features(folder: str | Path) -> bool:
    """Return whether a folder, here or in a store, holds Parquet files with features."""
    folder = local_path(folder)
    is_likely = folder.is_dir() and (any(folder.glob("*.parquet")) or any(folder.glob("*=*")))
    return is_likely and bool(files := parquet_files(folder)) and _columns(_schema(files[0])) is not None


def describe_features(folder: Path) -> dict[str, Any]:
    """Return the `dimensions` of the vectors and, for files of `embed`, what made them: see `models.embed`."""
    schema = _schema(parquet_files(folder)[0])
    try:
        about = json.loads((schema.metadata or {})[METADATA])
        return {**about, "dimensions": int(about["dimensions"])}
    except (KeyError, TypeError, ValueError):
        return {"dimensions": _dimensions(folder)}


def stored_names(folder: Path) -> Names:
    """Return the names of the images that have a row, in the order of the last row of each, the one that counts."""
    names = _all_names(parquet_files(folder))
    number = names.dictionary_encode().indices.to_numpy()
    last = np.zeros(number.max(initial=-1) + 1, np.int64)
    last[number] = np.arange(len(number))
    return Names(names.take(pa.array(np.sort(last))))


def unlisted_images(names: Names, place: Path) -> list[str]:
    """Return the images in a folder, a pack or a folder of features that no id in `names` refers to."""
    if not holds_features(place):
        return decode.unlisted_images(list(names), place)
    stored = stored_names(local_path(place))
    return [name for name, number in zip(stored, _find(names, stored.array), strict=True) if number < 0]


def _all_names(files: Sequence[Path]) -> Any:
    names = [images.cast(pa.large_string()) for path in files for images, _ in _batches(path, with_features=False)]
    return pa.concat_arrays(names) if names else pa.array([], pa.large_string())


def _schema(path: Path) -> Any:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({error})", "write or download it again") from None


def _columns(schema: Any) -> tuple[str, str] | None:
    """Return the names of the columns of images and of features; None if one is missing."""

    def is_vector(kind: Any) -> bool:
        is_list = pt.is_fixed_size_list(kind) or pt.is_list(kind) or pt.is_large_list(kind)
        return bool(is_list and pt.is_floating(kind.value_type))

    texts = [each.name for each in schema if pt.is_string(each.type) or pt.is_large_string(each.type)]
    vectors = [each.name for each in schema if is_vector(each.type)]
    if not texts or not vectors:
        return None
    return "image" if "image" in texts else texts[0], "features" if "features" in vectors else vectors[0]


def _batches(path: Path, *, with_features: bool = True) -> Iterator[tuple[Any, Any]]:
    """Yield names and features of the rows of a file, as Arrow arrays."""
    columns = _columns(_schema(path))
    if columns is None:
        raise UserError(f"{path} has no features", _FIX)
    try:
        with pq.ParquetFile(path, buffer_size=_READ_AHEAD) as file:
            for batch in file.iter_batches(_ROWS, columns=list(columns if with_features else columns[:1])):
                yield batch.column(columns[0]), batch.column(columns[1]) if with_features else None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({error})", "write or download it again") from None


def _dimensions(folder: Path) -> int:
    """Return the length of the first vector."""
    for path in parquet_files(folder):
        for _, vectors in _batches(path):
            if len(values := vectors.drop_null()):
                return len(values[0])
    raise UserError(f"{folder} holds no features", _FIX)


def _read_values(names: Names, folder: Path, channels: int) -> tuple[torch.Tensor, NDArray[np.bool_]]:
    """Return the features (N, D) in the order of `names`, and which images have any (N,); the last row of one wins."""
    files = parquet_files(folder)
    schema = _schema(files[0])
    kind = schema.field((_columns(schema) or ("", ""))[1]).type.value_type
    dtype = torch.float16 if pt.is_float16(kind) else torch.float32
    values = memory.scratch_zeros((len(names), channels), dtype, what=f"the features of {len(names)} images take")
    has_features = np.zeros(len(names), np.bool_)
    array = values.numpy()
    place_of_all, first = _find(names, _all_names(files)), 0
    for path in files:
        for _, vectors in _batches(path):
            place = place_of_all[first : first + len(vectors)]
            first += len(vectors)
            rows = np.flatnonzero((place >= 0) & vectors.is_valid().to_numpy(zero_copy_only=False))
            array[place[rows]] = _vectors(path, vectors, rows, channels)
            has_features[place[rows]] = np.isfinite(array[place[rows]]).all(1)
    return values, has_features


def _vectors(path: Path, vectors: Any, rows: NDArray[np.int64], channels: int) -> NDArray[Any]:
    """Return some vectors of an Arrow array, none of them null, as an array (len(rows), D)."""
    chosen = vectors if len(rows) == len(vectors) else vectors.take(pa.array(rows))
    flat: NDArray[Any] = chosen.flatten().to_numpy(zero_copy_only=False)
    if len(flat) != len(rows) * channels:
        raise UserError(f"{path} has features of different lengths, not {channels}", _FIX)
    return flat.reshape(-1, channels)


def _find(names: Names, images: Any) -> NDArray[np.int64]:
    """Return the number of each image in `names`, −1 if it is not there; `names` may leave out the ending."""
    place = names.index(images)
    if (missing := np.flatnonzero(place < 0)).size:
        place[missing] = names.index(str(name).rpartition(".")[0] for name in images.take(missing).to_pylist())
    return place
