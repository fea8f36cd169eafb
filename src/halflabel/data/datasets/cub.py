"""CUB-200-2011 with its 312 attributes per image: the folder CUB_200_2011 of the archive, attributes.txt beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from halflabel.data.datasets.base import Dataset, Layout, Split, check_choice
from halflabel.labels.formats import cub as reader
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.table import LabelTable

__all__ = ["layout", "read"]


def layout() -> Layout:
    files = ("images.txt", "train_test_split.txt", "attributes/image_attribute_labels.txt", "images/<species>/<image>")
    tree = ("attributes.txt", *(f"CUB_200_2011/{file}" for file in files))
    return Layout("CUB-200-2011", tree, "https://www.vision.caltech.edu/datasets/cub_200_2011 (CUB_200_2011.tgz)")


def read(folder: Path, *, certainty: Literal["used", "ignored"] = "used") -> Dataset:
    """Open the official split: 5,994 training and 5,794 test images.

    certainty: "used" takes attributes that the annotator marked as not visible as unknown. "ignored" takes is_present
    as written, whatever the certainty, as the released code of the single-positive literature does.
    """
    check_choice("certainty", certainty, ("used", "ignored"))
    there = layout()
    base = there.need(folder / "CUB_200_2011" / "images.txt", folder / "images.txt").parent
    for name in ("train_test_split.txt", "attributes/image_attribute_labels.txt"):
        there.need(base / name)
    there.need(base / "attributes" / "attributes.txt", base / "attributes.txt", base.parent / "attributes.txt")
    images = there.need(base / "images")
    tables = {role: reader.read(base, Policy(split=role)).table() for role in ("train", "test")}
    if certainty == "ignored":
        unseen = _not_visible(base)
        tables = {role: _filled(table, unseen) for role, table in tables.items()}
    splits = {role: Split(table, images) for role, table in tables.items()}
    return Dataset.build("cub", splits, (f"certainties are {certainty}",))


def _not_visible(base: Path) -> LabelTable:
    """What the lines that are marked as not visible say nevertheless; the reader has checked the files by now."""
    image_ids, images = reader.read_numbered_names(base / "images.txt")
    class_ids, classes = reader.read_numbered_names(reader.find_attributes_file(base))
    fields, _, _ = reader.parse_labels(base / "attributes" / "image_attribute_labels.txt")
    fields = fields[fields[:, 3] == 1]
    image, column = reader.find_positions(fields[:, 0], image_ids), reader.find_positions(fields[:, 1], class_ids)
    return LabelTable.from_entries(Names(images), Names(classes), image, column, 2 * fields[:, 2] - 1)


def _filled(table: LabelTable, unseen: LabelTable) -> LabelTable:
    """The labels of a table, and of its images those of `unseen` where it has none."""
    mine = unseen.subset(unseen.images.index(table.images.array))
    image, column, value = mine.entries()
    own_image, own_column, own_value = table.entries()
    return LabelTable.from_entries(
        table.images,
        table.classes,
        np.concatenate([image, own_image]),
        np.concatenate([column, own_column]),
        np.concatenate([value, own_value]),
    )
