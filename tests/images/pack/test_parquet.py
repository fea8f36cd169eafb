"""Hugging Face datasets are packed with their labels, and the package datasets reads packs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pack_examples import N, encoded, image_of, pixels
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.images.pack.read import open_pack
from halflabel.labels import formats

NAMES = ["dog", "cat", "bär"]
TAGS = [[number % 3, (number + 1) % 3] if number % 4 else [] for number in range(N)]


def write_parquet(folder: Path, column: str, labels: list[Any], feature: Any) -> None:
    """Two files as the package datasets writes them."""
    folder.mkdir()
    features = {"image": {"_type": "Image"}, column: feature}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for part, rows in enumerate((range(7), range(7, N))):
        images = [{"bytes": encoded(number), "path": None} for number in rows]
        table = pa.table({"image": images, column: [labels[number] for number in rows]})
        pq.write_table(table.replace_schema_metadata(metadata), folder / f"train-{part:05d}-of-00002.parquet")


CLASS = {"names": NAMES, "_type": "ClassLabel"}


@pytest.mark.parametrize(
    ("column", "labels", "feature"),
    [
        ("labels", TAGS, {"feature": CLASS, "_type": "List"}),
        ("tags", [[NAMES[tag] for tag in tags] for tags in TAGS], {"feature": {"_type": "Value"}, "_type": "List"}),
        ("label", [tags[0] if tags else None for tags in TAGS], CLASS),
    ],
)
def test_parquet_files_are_packed_with_their_labels(
    tmp_path: Path, column: str, labels: list[Any], feature: Any
) -> None:
    write_parquet(tmp_path / "hf", column, labels, feature)
    words = ["pack", str(tmp_path / "hf"), str(tmp_path / "p"), "--workers", "0"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    pack = open_pack(tmp_path / "p")
    numbers = [7 * int(name[6:11]) + int(Path(name).stem) for name in pack.names.to_pylist()]
    assert sorted(numbers) == list(range(N))
    for place, number in enumerate(numbers):
        assert np.array_equal(image_of(pack, place).permute(1, 2, 0).numpy(), pixels(number))
    table = formats.read(tmp_path / "p").rows.training
    assert list(table.images) == pack.names.to_pylist()
    for place, number in enumerate(numbers):
        known = TAGS[number][:1] if column == "label" else TAGS[number]
        present = {name for name, value in zip(table.classes, table.dense()[place], strict=True) if value == 1}
        assert present == {NAMES[tag] for tag in known}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "p"]


def test_damaged_parquet_files_are_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "hf", "labels", TAGS, {"feature": CLASS, "_type": "List"})
    path = tmp_path / "hf" / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    result = CliRunner().invoke(app, ["pack", str(tmp_path / "hf"), str(tmp_path / "p"), "--workers", "0"])
    assert result.exit_code == 2
    assert "download it again" in result.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_package_datasets_reads_a_pack(tmp_path: Path) -> None:
    loading = pytest.importorskip("datasets.load", reason="datasets is not installed")
    write_parquet(tmp_path / "hf", "labels", TAGS, {"feature": CLASS, "_type": "List"})
    words = ["pack", str(tmp_path / "hf"), str(tmp_path / "p"), "--workers", "0"]
    assert CliRunner().invoke(app, words).exit_code == 0
    files = [str(path) for path in sorted((tmp_path / "p").glob("*.tar"))]
    data = loading.load_dataset("webdataset", data_files={"train": files}, cache_dir=str(tmp_path / "cache"))["train"]
    assert len(data) == N
    for sample in data:
        number = 7 * int(sample["__key__"][6:11]) + int(Path(sample["__key__"]).name)
        assert np.array_equal(np.asarray(sample["jpg"]), pixels(number))
        assert sorted(sample["json"]["labels"]) == sorted(NAMES[tag] for tag in TAGS[number])


def test_the_number_minus_one_is_no_label(tmp_path: Path) -> None:
    labels = [-1, 2, None] + [0] * (N - 3)
    write_parquet(tmp_path / "hf", "label", labels, CLASS)
    pack_words = ["pack", str(tmp_path / "hf"), str(tmp_path / "p"), "--workers", "0"]
    assert CliRunner().invoke(app, pack_words).exit_code == 0
    table = formats.read(tmp_path / "p", unlisted="absent").rows.training
    assert set(table.classes) == {"dog", "bär"}
    rows = table.dense()
    assert not rows.sum(1).any()  # one of two classes, or nothing known
    assert (~rows.any(1)).sum() == 2
