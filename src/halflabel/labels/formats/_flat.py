"""Records of JSON and Parquet files that no format describes, as a plain CSV file, which `_layout` looks at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halflabel.labels.formats._csv import FILE_CELL, csv_line
from halflabel.labels.formats._json import Node, load_json, load_lines
from halflabel.labels.formats._records import image_names
from halflabel.labels.formats._sheets import read_parquet
from halflabel.system.files import is_utf8

Record = dict[str, Any]

FILE = "file"  # the column of names that are keys, or those of files
_LINES = (".jsonl", ".ndjson", ".odgt")
_FOLDERS = ("*/ann/*.json", "ann/*.json", "*.json")  # the first two are Supervisely's
_OUTLINES = ("bytes", "imageData", "points", "rle", "mask", "bbox", "segmentation", "coordinates", "polygon")
_CONTAINERS = ("annotations", "images", "data", "items", "labels", "frames", "results")
_OTHERS = {"category_id", "neg_category_ids", "categories", "caption", "captions"}  # of COCO, LVIS and captions
_MOST_COLUMNS = 200


def write_flat(path: Path, plain: Path) -> bool:
    """Write the records of a file or folder as CSV; False if it has none."""
    columns = _columns(list(_records(path)))
    if not 1 < len(columns) <= _MOST_COLUMNS or not _OTHERS.isdisjoint(columns):
        return False
    for name, values in columns.items():
        if all(isinstance(value, str) and FILE_CELL.fullmatch(value) for value in values):
            columns[name] = image_names([Node(value, path) for value in values])
    with open(plain, "w", newline="", encoding="utf-8") as file:
        file.write(csv_line(map(_cell, columns)))
        file.writelines(csv_line(map(_cell, cells)) for cells in zip(*columns.values(), strict=True))
    return True


def _columns(records: list[Record]) -> dict[str, list[Any]]:
    """The values of each key; those of objects as columns such as `item.name`, or `name` if they are marks."""
    columns: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        values = [record.get(key) for record in records]
        objects = [value for value in values if isinstance(value, dict)]
        shared = Counter(inner for each in objects for inner in each).most_common(1)
        is_object = bool(shared) and 2 * shared[0][1] > len(objects)  # and no table by names of its own
        if not is_object or any(value is not None and not isinstance(value, dict) for value in values):
            are_lists = any(isinstance(value, list) for value in values)
            columns[key] = [[value] if are_lists and isinstance(value, str) else value for value in values]
            continue
        are_marks = all(isinstance(item, int | None) for each in objects for item in each.values())
        for inner in dict.fromkeys(inner for each in objects for inner in each):
            columns[inner if are_marks else f"{key}.{inner}"] = [(value or {}).get(inner) for value in values]
    return columns


def _records(path: Path) -> Iterator[Record]:
    if path.is_dir():
        files = next((files for pattern in _FOLDERS if (files := sorted(path.glob(pattern)))), [])
        values = [load_json(file, without=_OUTLINES).value for file in files]
        if all(isinstance(value, dict) for value in values):
            yield from ({**value, FILE: file.stem} for file, value in zip(files, values, strict=True))
    elif path.suffix == ".parquet":
        yield from _rows(path)
    elif path.suffix.lower() in _LINES:
        yield from (node.value for node in load_lines(path))
    else:
        yield from _objects(load_json(path, without=_OUTLINES).value)


def _objects(value: Any) -> list[Record]:
    """The objects of a list, of a list in an object, or under the names of images."""
    if isinstance(value, list):
        return value if all(isinstance(item, dict) for item in value) else []
    if not isinstance(value, dict):
        return []
    if value and all(map(FILE_CELL.fullmatch, value)):
        return [{FILE: key, **(item if isinstance(item, dict) else {"labels": item})} for key, item in value.items()]
    found = [objects for key in _CONTAINERS if (objects := _objects(value.get(key)))]
    return found[0] if len(found) == 1 else []


def _rows(path: Path) -> Iterator[Record]:
    """The rows of a Parquet file, with the names of classes that Hugging Face keeps in its schema."""
    table = read_parquet(path, without=_OUTLINES)
    stored = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    features = stored.get("info", {}).get("features", {})
    for row in table.to_pylist():
        for name, feature in features.items():
            inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
            classes = inner.get("names") if isinstance(inner, dict) else None
            if isinstance(classes, list) and name in row:
                row[name] = _named(row[name], classes)
        yield row


def _named(value: Any, classes: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else None


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bytes):
        return ""
    if isinstance(value, str) and is_utf8(value):
        return value
    return json.dumps(value, default=str)
