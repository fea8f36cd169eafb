"""Folders for FiftyOne, read and written by the package fiftyone itself; its database is not needed for that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halflabel.labels import formats
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

data = pytest.importorskip("fiftyone.utils.data")

LABELS = np.array([[1, -1, 0], [0, 1, 1], [-1, -1, 0]], np.int8)
CLASSES = ["cat", "dog", "cow"]


def test_fiftyone_reads_what_is_written_and_its_export_is_read(tmp_path: Path) -> None:
    folder, exported = tmp_path / "ours", tmp_path / "theirs"
    table = Table.from_dense(LABELS, ["a.jpg", "b.jpg", "c.jpg"], CLASSES)
    formats.write(table, folder, format="fiftyone")
    (folder / "data").mkdir()
    for name in table.images:
        Image.new("RGB", (8, 8)).save(folder / "data" / name)
    importer = data.FiftyOneImageClassificationDatasetImporter(dataset_dir=str(folder))
    with importer:
        assert importer.get_dataset_info()["classes"] == CLASSES
        samples = [(path, label) for path, _, label in importer]
    present = {Path(path).name: {each.label for each in label.classifications} for path, label in samples}
    assert present == {"a.jpg": {"cat"}, "b.jpg": {"dog", "cow"}, "c.jpg": set()}
    exporter = data.FiftyOneImageClassificationDatasetExporter(export_dir=str(exported), classes=CLASSES)
    with exporter:
        for path, label in samples:
            exporter.export_sample(path, label)
    read = formats.read(exported, Policy(unlisted="unknown")).table()
    assert list(read.classes) == CLASSES
    known = LABELS[[("a", "b", "c").index(Path(name).stem) for name in read.images]]
    np.testing.assert_array_equal(read.dense(), np.where(known > 0, 1, 0))  # FiftyOne holds no absent labels
