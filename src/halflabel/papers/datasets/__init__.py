"""Readers of public data sets in their published layout: a folder in, labels for training and test out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, NamedTuple

from halflabel.errors import LabelError, UserError
from halflabel.papers.datasets import photo_folders, records
from halflabel.papers.datasets.base import Dataset, Layout, RawImages, Split

__all__ = ["DATASETS", "Dataset", "Layout", "RawImages", "Split", "dataset_layout", "dataset_options", "open_dataset"]


class _Entry(NamedTuple):
    """A reader's name and fixed arguments; `published`: training and test images, where no option changes them."""

    title: str
    reader: str
    fixed: dict[str, Any]
    published: tuple[int, int] | None = None


DATASETS = {
    "voc2007": _Entry("Pascal VOC 2007, 20 classes", "voc", {"year": 2007}, (5011, 4952)),
    "voc2012": _Entry("Pascal VOC 2012, 20 classes", "voc", {"year": 2012}, (5717, 5823)),
    "coco2014": _Entry("MS COCO, split of 2014, 80 classes", "coco", {"year": 2014}, (82_783, 40_504)),
    "coco2017": _Entry("MS COCO, split of 2017, 80 classes", "coco", {"year": 2017}, (118_287, 5000)),
    "nus-wide": _Entry("NUS-WIDE, 81 concepts", "nus_wide", {}),
    "cub": _Entry("CUB-200-2011, 312 attributes", "cub", {}, (5994, 5794)),
    "open-images": _Entry("Open Images, image-level labels", "open_images", {}),
    "vg200": _Entry("Visual Genome, the 200 most frequent categories", "vg200", {}),
    "cifar10": _Entry("CIFAR-10, binary version, one class per image", "cifar10", {}),
    "stl10": _Entry("STL-10, binary version, one class per image", "stl10", {}),
}
_READERS = {**photo_folders.READERS, **records.READERS}


def open_dataset(name: str, folder: str | Path, **options: Any) -> Dataset:
    """Open a data set by name; `options` are those of its `read` function, such as `difficult` for Pascal VOC."""
    entry, allowed = _entry(name), dataset_options(name)
    for option in options:
        if option not in allowed:
            raise UserError(f"the data set {name} has no option {option!r}", f"its options: {', '.join(allowed)}")
    if not Path(folder).is_dir():
        raise LabelError("there is no such folder", dataset_layout(name, **options).fix(), folder)
    return _READERS[entry.reader][0](Path(folder), **entry.fixed, **options)


def dataset_options(name: str) -> list[str]:
    """Return the options that `open_dataset` takes for a data set."""
    entry = _entry(name)
    parameters = inspect.signature(_READERS[entry.reader][0]).parameters
    return [option for option in parameters if option not in ("folder", *entry.fixed)]


def dataset_layout(name: str, **options: Any) -> Layout:
    """Return what the folder of a data set contains for these options of `open_dataset`, and where to get the files."""
    entry = _entry(name)
    layout = _READERS[entry.reader][1]
    accepted = inspect.signature(layout).parameters
    return layout(**entry.fixed, **{option: value for option, value in options.items() if option in accepted})


def _entry(name: str) -> _Entry:
    if name not in DATASETS:
        raise UserError(f"there is no data set {name!r}", f"use one of: {', '.join(DATASETS)}")
    return DATASETS[name]
