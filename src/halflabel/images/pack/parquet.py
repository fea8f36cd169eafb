"""Parquet files with an image column: unpacked to WebDataset tars, which `pack` reads.

The image column holds bytes or, as in Hugging Face datasets, structs of bytes and path; labels are names, lists of
names, or numbers whose names are in the file's Hugging Face metadata.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from halflabel.errors import LabelError, UserError
from halflabel.images.pack.read import is_pack
from halflabel.labels.formats import webdataset
from halflabel.labels.formats.tags import LIST_COLUMNS
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.system.remote import local_folder
from halflabel.system.webdataset import append_to_tar, end_tar

_LABEL_COLUMNS = (*LIST_COLUMNS, "label", "tag", "class", "category")
_ENDINGS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"RIFF": "webp",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}
_ROWS = 256  # read at a time


@contextmanager
def unpacked_parquet(folder: Path, out: Path) -> Iterator[tuple[Path, Labels | None]]:
    """Yield a folder of tars with the images of Parquet files, and their labels; for any other folder itself.

    If the block fails, the tars, which are beside `out`, are kept for the next attempt.
    """
    folder = local_folder(folder)
    files = [] if is_pack(folder) else _parquet_files(folder)
    if not files:
        yield folder, None
        return
    place = out.with_name(f".{out.name}.unpacked")
    place.mkdir(parents=True, exist_ok=True)
    for path in files:
        stem = path.relative_to(folder).with_suffix("").as_posix().replace("/", "-").replace(".", "-")
        if not (place / f"{stem}.tar").exists():
            temporary = place / f".{stem}.part"
            with open(temporary, "wb") as tar:
                _write_tar(path, stem, tar)
            os.replace(temporary, place / f"{stem}.tar")
    rows = None
    with suppress(LabelError):  # without labels
        rows = webdataset.read(place, Policy(unlisted="unknown")).rows
    yield place, rows
    shutil.rmtree(place)


def _parquet_files(folder: Path) -> list[Path]:
    """The Parquet files with an image column in a folder and its folders, sorted."""
    tables = []
    for path in sorted(folder.rglob("*.parquet")):
        with _open(path) as file:
            tables += [path] if _image_column(file.schema_arrow) is not None else []
    return tables


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Yield a Parquet file; UserError if it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, IndexError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({error})", "download it again") from None


def _write_tar(path: Path, stem: str, tar: IO[bytes]) -> None:
    number = 0
    with _open(path) as file:
        schema = file.schema_arrow
        image_column = _image_column(schema)
        label_column = next((name for name in _LABEL_COLUMNS if name in schema.names), None)
        names = _class_names(schema, label_column)
        for batch in file.iter_batches(_ROWS, columns=[name for name in (image_column, label_column) if name]):
            for row in batch.to_pylist():
                image = row[image_column]
                data = image.get("bytes") if isinstance(image, dict) else image
                ending = next((end for mark, end in _ENDINGS.items() if data and data.startswith(mark)), None)
                if data and ending is not None:
                    key = f"{stem}/{number:08d}"
                    append_to_tar(tar, f"{key}.{ending}", data)
                    if label_column is not None and row[label_column] is not None:
                        labels = {"labels": _labels(row[label_column], names)}
                        append_to_tar(tar, f"{key}.json", json.dumps(labels, ensure_ascii=False).encode())
                number += 1
    end_tar(tar)


def _image_column(schema: Any) -> str | None:
    """The first column of structs with the field bytes, or of bytes."""

    def has_bytes(kind: Any) -> bool:
        if pt.is_struct(kind):
            return int(kind.get_field_index("bytes")) >= 0
        return bool(pt.is_binary(kind) or pt.is_large_binary(kind))

    return next((field.name for field in schema if has_bytes(field.type)), None)


def _class_names(schema: Any, column: str | None) -> list[str] | None:
    """The names of numbered classes, from the metadata that the package `datasets` writes."""
    try:
        feature = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]
        feature = feature.get("feature", feature) if isinstance(feature, dict) else feature[0]
        return list(feature["names"])
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def _labels(value: Any, names: list[str] | None) -> list[str | int]:
    """The classes of an image; the number -1, which means that it has no label, stays a number."""
    values = value if isinstance(value, list) else [value]
    if names is None:
        return [item if item == -1 else str(item) for item in values]
    if numbers := [item for item in values if isinstance(item, int) and not -1 <= item < len(names)]:
        raise UserError(f"there is no class number {numbers[0]}: {len(names)} are named", "write the file again")
    return [names[item] if isinstance(item, int) and item >= 0 else item for item in values]
