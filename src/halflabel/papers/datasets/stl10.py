"""STL-10, binary version: train_X.bin, train_y.bin, test_X.bin, test_y.bin, unlabeled_X.bin, fold_indices.txt.

An image is 96 × 96 bytes each of red, green and blue, column by column. Classes are numbered from 1, in the order of
class_names.txt. Each line of fold_indices.txt lists the numbers, from 0, of the 1,000 training images of a fold.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._csv import existing_path, read_lines
from halflabel.labels.names import Names
from halflabel.papers.datasets.base import Dataset, Layout, RawImages, Split, read_records, single_label

_SIDE = 96
_BYTES = 3 * _SIDE * _SIDE
_FOLDER = "stl10_binary"
_FIX = "download and unpack stl10_binary.tar.gz again"


def layout() -> Layout:
    files = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin", "class_names.txt")
    tree = tuple(f"{_FOLDER}/{file}" for file in (*files, "fold_indices.txt"))
    return Layout("STL-10", tree, "https://cs.stanford.edu/~acoates/stl10 (stl10_binary.tar.gz)")


def read(folder: Path, *, fold: int | None = None, unlabelled: bool = False) -> Dataset:
    """Open the 5,000 training and 8,000 test images; each shows one of ten classes.

    fold: only the 1,000 training images of this fold, 0 to 9. unlabelled: add the 100,000 images of unlabeled_X.bin,
    some of them of none of the classes, as training images with unknown labels.
    """
    expected = layout()
    base = expected.require(folder / _FOLDER / "train_X.bin", folder / "train_X.bin").parent
    classes = Names([line.strip() for line in read_lines(expected.require(base / "class_names.txt")) if line.strip()])
    splits = {}
    for role in ("train", "test"):
        parts = [_open_images(expected.require(base / f"{role}_X.bin"))]
        labelled = len(parts[0])
        column = _classes(expected.require(base / f"{role}_y.bin"), labelled, len(classes))
        index = np.arange(labelled)
        if role == "train" and fold is not None:
            index = _fold(expected.require(base / "fold_indices.txt"), fold, labelled)
        names = [f"{role}/{number}" for number in index]
        column = column[index]
        if role == "train" and unlabelled:
            parts.append(_open_images(expected.require(base / "unlabeled_X.bin")))
            added = np.arange(len(parts[1]))
            names += [f"unlabeled/{number}" for number in added]
            index, column = np.append(index, labelled + added), np.append(column, np.full(len(added), -1))
        images = RawImages(Names(names), partial(_read_images, parts, index))
        splits[role] = Split(single_label(images.names, classes, column), images)
    return Dataset.build("stl10", splits, (f"fold {fold}",) if fold is not None else ())


def _read_images(
    parts: list[NDArray[np.uint8]], index: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.uint8]:
    return read_records(parts, index[numbers]).reshape(-1, 3, _SIDE, _SIDE).transpose(0, 1, 3, 2)


def _open_images(file: Path) -> NDArray[np.uint8]:
    size = existing_path(file).stat().st_size
    if size % _BYTES:
        raise LabelError(f"{size} bytes are not a number of whole images of {_BYTES}", _FIX, file)
    return np.memmap(file, np.uint8, "r").reshape(-1, _BYTES)


def _classes(file: Path, images: int, classes: int) -> NDArray[np.int64]:
    columns = np.fromfile(existing_path(file), np.uint8).astype(np.int64)
    if len(columns) != images:
        raise LabelError(f"{len(columns)} classes for {images} images", _FIX, file)
    if not (columns.min() >= 1 and columns.max() <= classes):
        raise LabelError(f"a class is outside 1 to {classes}", _FIX, file)
    return columns - 1


def _fold(file: Path, fold: int, images: int) -> NDArray[np.int64]:
    folds = [line.split() for line in read_lines(existing_path(file)) if line.strip()]
    if not 0 <= fold < len(folds):
        raise UserError(f"STL-10 has no fold {fold}", f"use 0 to {len(folds) - 1}")
    try:
        index = np.array([int(text) for text in folds[fold]])
    except ValueError:
        raise LabelError("an index is not a number", _FIX, file, line=fold + 1) from None
    if index.min() < 0 or index.max() >= images or len(np.unique(index)) < len(index):
        raise LabelError(f"indices must be different and within 0 to {images - 1}", _FIX, file, line=fold + 1)
    return index
