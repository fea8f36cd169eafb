"""NUS-WIDE: Groundtruth/TrainTestLabels, ImageList and the photos in Flickr, or a split in .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from halflabel.labels.formats import nus_wide as reader
from halflabel.labels.formats import single_positive
from halflabel.labels.policy import Policy
from halflabel.papers.datasets.base import Dataset, Layout, Split
from halflabel.system.validate import one_of

_FORMATTED = (
    "formatted_train_images.npy",
    "formatted_train_labels.npy",
    "formatted_val_images.npy",
    "formatted_val_labels.npy",
    "Flickr/<image>.jpg",
)
_AUTHORS = "the data page of github.com/elijahcole/single-positive-multi-label"


def layout() -> Layout:
    tree = (
        "Groundtruth/TrainTestLabels/Labels_<concept>_Train.txt",
        "ImageList/TrainImagelist.txt",
        "the same for Test",
        "Flickr/<folder>/<image>.jpg",
    )
    site = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html"
    return Layout("NUS-WIDE", tree, site)


def read(folder: Path, *, lists: Literal["official", "formatted"] = "official") -> Dataset:
    """Open the official split (161,789 training and 107,859 test images), or a split in .npy files.

    lists: "formatted" reads formatted_train_labels.npy and formatted_val_labels.npy, the split of the single-positive
    literature, which cannot be derived from the official files. Its classes have numbers unless a classes.txt names
    them. The labels include photos that Flickr has deleted: see `Split.on_disk`.
    """
    one_of(("official", "formatted"), lists=lists)
    expected = layout() if lists == "official" else Layout("the split of NUS-WIDE in .npy files", _FORMATTED, _AUTHORS)
    images = expected.require(folder / "Flickr", folder / "images")
    splits = {}
    for role, official, formatted in (("train", "Train", "train"), ("test", "Test", "val")):
        if lists == "official":
            expected.require(folder / "Groundtruth", folder / "GroundTruth", folder / "groundtruth")
            labels = reader.read(folder, Policy(split=official)).table()
        else:
            file = expected.require(folder / f"formatted_{formatted}_labels.npy")
            labels = single_positive.read(file, Policy()).table()
        splits[role] = Split(labels, images)
    return Dataset.build("nus-wide", splits, (f"{lists} split",))
