"""BigEarthNet: metadata.parquet with the lists of land-cover classes of each patch, or a folder of patches with JSON.

Version 2 has one Parquet file (patch_id, labels, split, …), version 1 a file PATCH_labels_metadata.json in the folder
of each patch. The lists are complete: a class that is not listed is absent, unless `unlisted` states otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import choose_split
from halflabel.labels.formats._json import Node, load_json
from halflabel.labels.formats._records import ImageRecord, Label, Note, record_format
from halflabel.labels.formats._sheets import parquet_columns, parquet_files, read_parquet
from halflabel.labels.policy import Policy

_JSON = "*/*_labels_metadata.json"
_COLUMNS = {"patch_id", "labels"}


def _is_bigearthnet(path: Path) -> bool:
    if path.is_dir() and next(path.glob(_JSON), None) is not None:
        return True
    return set(parquet_columns(path)) >= _COLUMNS


@record_format(("unlisted", "split"), _is_bigearthnet, default="absent")
def bigearthnet(path: Path, policy: Policy) -> Iterator[ImageRecord | Note | str]:
    lists = _read_table(path, policy) if parquet_files(path) else _read_folder(path, policy)
    yield from sorted(set().union(*lists.values()))
    yield Note(len(lists), "patches: neighbours look alike, train with ‹group=^(.*)_[0-9]+_[0-9]+$›, which is the tile")
    for patch, labels in lists.items():
        yield ImageRecord(Node(patch, path), [Label(name, "listed") for name in labels])


def _read_table(path: Path, policy: Policy) -> dict[str, list[str]]:
    table = read_parquet(path)
    if missing := sorted(_COLUMNS - set(table.column_names)):
        raise LabelError(f"there is no column {missing[0]!r}", "name the metadata.parquet of BigEarthNet", path)
    if policy.split is not None:
        splits = table.column("split").to_pylist() if "split" in table.column_names else []
        choose_split(sorted({name for name in splits if isinstance(name, str)}), policy.split, path)
        table = table.filter(pa.array([name == policy.split for name in splits]))
    lists: dict[str, list[str]] = {}
    columns = (table.column(name).to_pylist() for name in ("patch_id", "labels"))
    for row, (patch, labels) in enumerate(zip(*columns, strict=True), 1):
        names = _check(labels, path, patch, line=row)
        if lists.setdefault(patch, names) is not names:
            raise LabelError(f"the patch {patch!r:.60} is there twice", "list each patch once", path, line=row)
    return lists


def _read_folder(path: Path, policy: Policy) -> dict[str, list[str]]:
    policy.check({"unlisted"}, "bigearthnet, as a folder of patches")
    files = {file.parent.name: file for file in sorted(path.glob(_JSON))}
    labels = {patch: [node.name() for node in load_json(file)["labels"].list()] for patch, file in files.items()}
    return {patch: _check(names, files[patch], patch) for patch, names in labels.items()}


def _check(labels: Any, path: Path, patch: object, line: int | None = None) -> list[str]:
    is_list = isinstance(labels, list) and all(isinstance(name, str) and name for name in labels)
    if not is_list or not isinstance(patch, str) or not patch:
        raise LabelError(f"the labels of {patch!r:.60} are not a list of names", "check the file", path, line=line)
    if len(set(labels)) < len(labels):
        raise LabelError(f"the patch {patch!r:.60} has a label twice", "list each label once", path, line=line)
    return list(labels)
