"""Open Images, image-level labels.

<split>/annotations-human.csv                V1 to V3
<split>-annotations-human-imagelabels.csv    V4 and later, also with oidv6- before the name
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from halflabel.errors import LabelError
from halflabel.labels.audit import Audit
from halflabel.labels.formats import open_images as reader
from halflabel.labels.formats._csv import existing_path, read_lines
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.papers.datasets.base import Dataset, Layout, Split

_SPLITS = ("train", "validation", "test")
_TRAINABLE = ("classes-trainable.txt", "oidv6-classes-trainable.txt")


def layout() -> Layout:
    tree = (
        "train/annotations-human.csv",
        "train/<image>.jpg",
        "the same for validation and test",
        "classes-trainable.txt",
        "class-descriptions.csv",
    )
    files = "images_2017_11.tar.gz, annotations_human_2017_11.tar.gz and classes_2017_11.tar.gz for V3"
    return Layout("Open Images", tree, f"https://storage.googleapis.com/openimages/web/download.html ({files})")


def read(folder: Path, *, classes: str | None = None) -> Dataset:
    """Open the splits train, validation and test with the labels verified by people; all others are unknown.

    classes: a file in the folder that lists the ids of the classes to keep, one per line or in the first column, in
    that order (default: classes-trainable.txt, the classes that S1 and S4 evaluate; without that file, all classes of
    the training labels).
    """
    expected = layout()
    tables, images = {}, {}
    for split in _SPLITS:
        later = f"{split}-annotations-human-imagelabels.csv"
        places = (folder / split / "annotations-human.csv", folder / later, folder / f"oidv6-{later}")
        tables[split] = reader.read(expected.require(*places), Policy()).table()
        images[split] = expected.require(folder / "images" / split, folder / split)
    ids = _class_list(folder, classes, expected)
    notes = ["the images are those with an annotation, including those deleted from the web"]
    if ids is None:
        ids = list(tables["train"].classes)
        notes.append("no list of classes: all classes of the training labels")
    # Class names are in the descriptions beside the labels, or in the folder above.
    names = reader.display_names(folder / "labels", pa.array(ids, pa.string()), Audit("open-images", []))
    splits = {name: Split(_select_classes(table, ids, names), images[name]) for name, table in tables.items()}
    return Dataset.build("open-images", splits, tuple(notes))


def _class_list(folder: Path, wanted: str | None, expected: Layout) -> list[str] | None:
    if wanted is not None:
        file = expected.require(folder / wanted)
    elif not (lists := [folder / name for name in _TRAINABLE if (folder / name).is_file()]):
        return None
    else:
        file = lists[0]
    ids = [line.split(",")[0].strip() for line in read_lines(existing_path(file))]
    ids = [name for name in ids if name and name != "LabelName"]
    if (duplicate := first_duplicate(ids)) is not None:
        raise LabelError(f"class {duplicate!r} is listed twice", "leave one line per class", file)
    return ids


def _select_classes(table: Table, ids: list[str], names: list[str]) -> Table:
    """Select the listed classes, found in the table by id or by name; a class that is missing there is unknown."""
    by_name, by_id = table.classes.index(names), table.classes.index(ids)
    old = np.where(by_name >= 0, by_name, by_id)
    new_column = np.full(len(table.classes), -1)
    new_column[old[old >= 0]] = np.flatnonzero(old >= 0)
    image, column, value = table.entries()
    listed = new_column[column] >= 0
    return Table.from_entries(table.images, Names(names), image[listed], new_column[column[listed]], value[listed])
