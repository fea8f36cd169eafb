"""MS COCO: annotations/instances_train2014.json and instances_val2014.json beside the folders train2014 and val2014."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from halflabel.data.datasets.base import Dataset, Layout, Split, check_choice
from halflabel.labels.formats import coco as reader
from halflabel.labels.policy import Policy

__all__ = ["layout", "read"]


def layout(year: int) -> Layout:
    tree = tuple(f"annotations/instances_{part}{year}.json" for part in ("train", "val"))
    tree += tuple(f"{part}{year}/<image>.jpg" for part in ("train", "val"))
    archives = f"train{year}.zip, val{year}.zip and annotations_trainval{year}.zip"
    return Layout(f"MS COCO {year}", tree, f"https://cocodataset.org/#download ({archives})")


def read(folder: Path, *, year: int, unannotated: Literal["keep", "drop"] = "keep") -> Dataset:
    """Open the training images as "train" and the validation images as "test"; a class without annotation is absent.

    unannotated: whether to keep images without any annotation, which show none of the 80 classes. Papers on partial
    labels keep them; the released code of the single-positive literature drops them.
    """
    check_choice("unannotated", unannotated, ("keep", "drop"))
    expected = layout(year)
    splits, notes = {}, []
    for role, part in (("train", f"train{year}"), ("test", f"val{year}")):
        file = expected.require(folder / "annotations" / f"instances_{part}.json")
        images = expected.require(folder / part, folder / "images" / part)
        split = Split(reader.read(file, Policy(unlisted="absent")).table(), images)
        used = split.with_positives() if unannotated == "drop" else split
        if dropped := len(split) - len(used):
            notes.append(f"{role}: {dropped} images without annotation are dropped")
        splits[role] = used
    return Dataset.build(f"coco{year}", splits, tuple(notes))
