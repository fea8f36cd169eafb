"""CUB-200-2011 with its 312 attributes per image: the folder CUB_200_2011 of the archive, attributes.txt beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from halflabel.labels.formats import cub as reader
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.papers.datasets.base import Dataset, Layout, Split
from halflabel.system.validate import one_of


def layout() -> Layout:
    files = ("images.txt", "train_test_split.txt", "attributes/image_attribute_labels.txt", "images/<species>/<image>")
    tree = ("attributes.txt", *(f"CUB_200_2011/{file}" for file in files))
    return Layout("CUB-200-2011", tree, "https://www.vision.caltech.edu/datasets/cub_200_2011 (CUB_200_2011.tgz)")


def read(folder: Path, *, certainty: Literal["used", "ignored"] = "used") -> Dataset:
    """Open the official split: 5,994 training and 5,794 test images.

    certainty: with "used", attributes that the annotator marked as not visible are unknown. With "ignored", is_present
    counts for any certainty, as in the released code of the single-positive literature.
    """
    one_of(("used", "ignored"), certainty=certainty)
    expected = layout()
    base = expected.require(folder / "CUB_200_2011" / "images.txt", folder / "images.txt").parent
    for name in ("train_test_split.txt", "attributes/image_attribute_labels.txt"):
        expected.require(base / name)
    expected.require(base / "attributes" / "attributes.txt", base / "attributes.txt", base.parent / "attributes.txt")
    images = expected.require(base / "images")
    tables = {role: reader.read(base, Policy(split=role)).table() for role in ("train", "test")}
    if certainty == "ignored":
        invisible = _not_visible(base)
        for role, table in tables.items():
            others = invisible.subset(invisible.images.index(table.images.array))
            tables[role] = Labels.of(others).append(Labels.of(table)).training
    splits = {role: Split(table, images) for role, table in tables.items()}
    return Dataset.build("cub", splits, (f"certainties are {certainty}",))


def _not_visible(base: Path) -> Table:
    """Read the labels of the lines marked as not visible; the reader has already checked the files."""
    archive = reader.load(base)
    image, column, present, _ = archive.lines[archive.lines[:, 3] == 1].T
    return Table.from_entries(Names(archive.images), Names(archive.classes), image, column, 2 * present - 1)
