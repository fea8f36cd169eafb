"""Public data sets in the layout they are published in: a folder in, labels for training and test out.

dataset.py   Dataset, Split, Pixels, and the errors that say what a folder should hold
one module per layout, each with a function that opens it
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from halflabel.data.datasets.base import Dataset, Layout, Pixels, Split
from halflabel.errors import LabelError, UserError

__all__ = ["DATASETS", "Dataset", "Layout", "Pixels", "Split", "dataset_layout", "dataset_options", "open_dataset"]


class _Entry(NamedTuple):
    """Where a data set's function is, and what it is called with besides the folder and the user's options."""

    title: str
    module: str
    fixed: dict[str, Any]


DATASETS = {
    "voc2007": _Entry("Pascal VOC 2007, 20 classes", "voc", {"year": 2007}),
    "voc2012": _Entry("Pascal VOC 2012, 20 classes", "voc", {"year": 2012}),
    "coco2014": _Entry("MS COCO, split of 2014, 80 classes", "coco", {"year": 2014}),
    "coco2017": _Entry("MS COCO, split of 2017, 80 classes", "coco", {"year": 2017}),
    "nus-wide": _Entry("NUS-WIDE, 81 concepts", "nus_wide", {}),
    "cub": _Entry("CUB-200-2011, 312 attributes", "cub", {}),
    "open-images": _Entry("Open Images, image-level labels", "open_images", {}),
    "vg200": _Entry("Visual Genome, the 200 most frequent categories", "vg200", {}),
    "cifar10": _Entry("CIFAR-10, binary version, one class per image", "cifar10", {}),
    "stl10": _Entry("STL-10, binary version, one class per image", "stl10", {}),
}


def open_dataset(name: str, folder: str | Path, **options: Any) -> Dataset:
    """Open a data set by name; `options` are those of its function, such as `difficult` for Pascal VOC.

    The labels are read at once, pixels only when they are asked for. A file that is missing is named in the error,
    with where to get it and what the folder should look like.
    """
    entry, takes = _entry(name), dataset_options(name)
    for option in options:
        if option not in takes:
            raise UserError(f"the data set {name} has no option {option!r}", f"its options: {', '.join(takes)}")
    if not Path(folder).is_dir():
        raise LabelError("there is no such folder", dataset_layout(name).fix(), folder)
    opened: Dataset = _opener(name)(Path(folder), **entry.fixed, **options)
    return opened


def dataset_options(name: str) -> list[str]:
    """The options that `open_dataset` takes for a data set."""
    fixed = _entry(name).fixed
    return [option for option in inspect.signature(_opener(name)).parameters if option not in ("folder", *fixed)]


def dataset_layout(name: str) -> Layout:
    """What the folder of a data set looks like, and where the files come from."""
    entry = _entry(name)
    make = import_module(f"halflabel.data.datasets.{entry.module}").layout
    found: Layout = make(**entry.fixed)
    return found


def _entry(name: str) -> _Entry:
    if name not in DATASETS:
        raise UserError(f"no data set is called {name!r}", f"use one of: {', '.join(DATASETS)}")
    return DATASETS[name]


def _opener(name: str) -> Callable[..., Dataset]:
    opener: Callable[..., Dataset] = import_module(f"halflabel.data.datasets.{DATASETS[name].module}").read
    return opener
