"""BigEarthNet: metadata.parquet with the complete list of classes of each patch, or a folder of patches with JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
    is_folder = path.is_dir() and next(path.glob(_JSON), None) is not None
    return is_folder or set(parquet_columns(path)) >= _COLUMNS


@record_format(("unlisted", "split"), _is_bigearthnet, default="absent", has_paths=False)
def bigearthnet(path: Path, policy: Policy) -> Iterator[ImageRecord | Note | str]:
    if parquet_files(path):
        patches = _rows(path, policy)
    else:
        policy.check({"unlisted"}, "bigearthnet, as a folder of patches")
        patches = [(Node(file.parent.name, file), load_json(file)["labels"]) for file in sorted(path.glob(_JSON))]
    lists = [(patch, [name.name() for name in labels.list()]) for patch, labels in patches]
    yield from sorted({name for _, names in lists for name in names})
    yield Note(len(lists), "patches: neighbours look alike, train with ‹group=^(.*)_[0-9]+_[0-9]+$›, which is the tile")
    for patch, names in lists:
        yield ImageRecord(patch, [Label(name, "listed") for name in names])


def _rows(path: Path, policy: Policy) -> list[tuple[Node, Node]]:
    """The patch and the list of each row of a table."""
    table = read_parquet(path)
    if missing := sorted(_COLUMNS - set(table.column_names)):
        raise LabelError(f"there is no column {missing[0]!r}", "name the metadata.parquet of BigEarthNet", path)
    if policy.split is not None:
        splits = table.column("split").to_pylist() if "split" in table.column_names else []
        choose_split(sorted({name for name in splits if isinstance(name, str)}), policy.split, path)
        table = table.filter(pa.array([name == policy.split for name in splits]))
    rows = (Node(row, path, key=number) for number, row in enumerate(table.select(sorted(_COLUMNS)).to_pylist(), 1))
    return [(row["patch_id"], row["labels"]) for row in rows]
