"""Label tables in folders of Parquet files, as Spark, Dask and Arrow write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats._sheets import read_parquet
from halflabel.labels.groups import column_group, image_groups
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

DENSE = np.random.default_rng(0).integers(-1, 2, (30, 4)).astype(np.int8)
TABLE = Table.from_dense(DENSE, [f"{n:02d}.jpg" for n in range(30)], ["a b", "dog/cat", "c", "d"])


@pytest.fixture
def whole(tmp_path: Path) -> pa.Table:
    formats.write(TABLE, tmp_path / "whole.parquet")
    return pq.read_table(tmp_path / "whole.parquet")


def labels_of(path: Path) -> dict[tuple[str, str], int]:
    table = formats.read(path).table()
    image, column, value = table.entries()
    images, classes = list(table.images), list(table.classes)
    return {(images[i], classes[c]): v for i, c, v in zip(image, column, value.tolist(), strict=True)}


def test_part_files_are_one_table(tmp_path: Path, whole: pa.Table) -> None:
    folder = tmp_path / "labels"
    folder.mkdir()
    for number, first in enumerate(range(0, len(whole), 20)):
        pq.write_table(whole.slice(first, 20), folder / f"part-{number:05d}.snappy.parquet")
    (folder / "_SUCCESS").touch()
    (folder / "_metadata.parquet").write_bytes(b"not a table")
    assert formats.detect_format(folder) == "long"
    assert formats.read(folder).table().digest() == TABLE.digest()


def test_folders_hold_columns(tmp_path: Path, whole: pa.Table) -> None:
    pq.write_to_dataset(whole, tmp_path / "labels", partition_cols=["class", "value"])
    assert labels_of(tmp_path / "labels") == labels_of(tmp_path / "whole.parquet")
    assert any("%2F" in path.name for path in (tmp_path / "labels").iterdir())


def test_a_column_of_such_a_table_groups_images(tmp_path: Path, whole: pa.Table) -> None:
    patients = [f"p{int(name[:2] or 0) // 3}" for name in whole.column("image").to_pylist()]
    pq.write_to_dataset(whole.append_column("patient", pa.array(patients)), tmp_path / "labels")
    stated = column_group("patient", tmp_path / "labels")
    groups = image_groups(stated, TABLE.images, required=True)
    assert groups == [f"p{number // 3}" for number in range(30)]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"image": ["a"], "class": ["cat"], "valve": [1]}, "not all files have the column 'value'"),
        ({"image": [["a"]], "class": ["cat"], "value": [1]}, "do not fit together"),
        (None, "cannot be read as Parquet"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, second: dict[str, Any] | None, message: str) -> None:
    pq.write_table(pa.table({"image": ["a"], "class": ["dog"], "value": [1]}), tmp_path / "part-0.parquet")
    if second is None:
        (tmp_path / "part-1.parquet").write_bytes(b"PAR1 no table PAR1")
    else:
        pq.write_table(pa.table(second), tmp_path / "part-1.parquet")
    with pytest.raises(LabelError, match=message):
        formats.read(tmp_path)


def test_images_in_parquet_files_are_not_a_label_table(tmp_path: Path) -> None:
    image = pa.array([{"bytes": b"jpeg", "path": "a.jpg"}])
    pq.write_table(pa.table({"image": image, "label": [3]}), tmp_path / "train-0.parquet")
    with pytest.raises(LabelError, match="not recognized"):
        formats.read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize("name", ["labels.parquet", "labels/part-0.parquet"])
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(LabelError):
        read_parquet(tmp_path / name.partition("/")[0])
    with pytest.raises(UserError):
        formats.read(tmp_path / name.partition("/")[0], Policy())
