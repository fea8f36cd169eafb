"""VG-200, the 200 most frequent categories of Visual Genome: two lists of images and one JSON file of their labels.

    train_list_500.txt, test_list_500.txt    one image file per line, such as 2407890.jpg
    vg_category_200_labels_index.json        {"2407890.jpg": [0, 17, 133], …}: the categories present, from 0 to 199

This is the layout of the released code of SSGRL, SST and SARB (github.com/HCPLab-SYSU/HCP-MLR-PL). The files do not
name the categories. A category that is not listed is absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import existing_path, read_lines
from halflabel.labels.formats._json import load_json
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.table import Table
from halflabel.papers.datasets.base import Dataset, Layout, Split

_CLASSES = 200
_LABELS = f"vg_category_{_CLASSES}_labels_index.json"


def layout() -> Layout:
    tree = ("train_list_500.txt", "test_list_500.txt", _LABELS, "VG_100K/<image>.jpg", "VG_100K_2/<image>.jpg")
    source = (
        "https://github.com/HCPLab-SYSU/HCP-MLR-PL (lists) and https://homes.cs.washington.edu/~ranjay/visualgenome"
    )
    return Layout("VG-200", tree, f"{source} (photos)")


def read(folder: Path) -> Dataset:
    """Open the two lists; the photos are in VG_100K, or in VG_100K and VG_100K_2."""
    expected = layout()
    file = expected.require(folder / _LABELS)
    expected.require(folder / "VG_100K")
    present = load_json(file).object()
    splits = {
        role: Split(_table(expected.require(folder / f"{role}_list_500.txt"), present, file), folder)
        for role in ("train", "test")
    }
    return Dataset.build("vg200", splits, ("the categories are named by their numbers: the files do not name them",))


def _table(listing: Path, present: dict[str, Any], file: Path) -> Table:
    names = [line.strip() for line in read_lines(existing_path(listing)) if line.strip()]
    labels = np.full((len(names), _CLASSES), -1, np.int8)
    for number, name in enumerate(names):
        categories = present.get(name)
        if categories is None:
            raise LabelError(
                f"{listing.name} lists {name!r}, which has no entry", "use both files from the same release", file
            )
        valid = isinstance(categories, list) and all(type(k) is int and 0 <= k < _CLASSES for k in categories)
        if not valid:
            message = f"the entry is not a list of numbers from 0 to {_CLASSES - 1}"
            raise LabelError(message, "download the file again", file, column=name)
        labels[number, categories] = 1
    if (duplicate := first_duplicate(names)) is not None:
        raise LabelError(f"image {duplicate!r} is listed twice", "download the file again", listing)
    return Table.from_dense(labels, names, Names.numbered(_CLASSES))
