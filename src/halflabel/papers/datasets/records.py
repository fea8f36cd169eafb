"""Data sets of small images with one class each, stored as records of bytes: CIFAR-10 and STL-10, binary versions.

The Python version of CIFAR-10 is pickled and refused: unpickling a file runs any code that it contains.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.formats._csv import existing_path, read_lines
from halflabel.labels.names import Names
from halflabel.papers.datasets.base import Dataset, Layout, RawImages, Reader, Split, read_records, single_label

_CIFAR_BATCHES = 5
_CIFAR_SIDE = 32
_CIFAR_RECORD = 1 + 3 * _CIFAR_SIDE * _CIFAR_SIDE
_CIFAR_FIX = "download and unpack cifar-10-binary.tar.gz again"
_CIFAR_FOLDER = "cifar-10-batches-bin"


def layout_cifar10() -> Layout:
    """Return the layout; a record is one byte for the class and 1,024 each for red, green and blue, row by row."""
    files = ("data_batch_1.bin to data_batch_5.bin", "test_batch.bin", "batches.meta.txt")
    tree = tuple(f"{_CIFAR_FOLDER}/{file}" for file in files)
    return Layout("CIFAR-10", tree, "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-binary.tar.gz)")


def read_cifar10(folder: Path, *, batch: int | None = None, unlabelled: bool = True) -> Dataset:
    """Open the 50,000 training and 10,000 test images; each shows one of ten classes.

    batch: only the labels of this training batch, 1 to 5, are known. unlabelled: whether images without labels stay,
    with all labels unknown.
    """
    expected = layout_cifar10()
    if not any((path / "data_batch_1.bin").exists() for path in (folder / _CIFAR_FOLDER, folder)):
        _refuse_pickles(folder, expected)
    first = expected.require(folder / _CIFAR_FOLDER / "data_batch_1.bin", folder / "data_batch_1.bin")
    base = first.parent
    classes = Names([line.strip() for line in read_lines(expected.require(base / "batches.meta.txt")) if line.strip()])
    splits = {}
    for role, stems in (
        ("train", [f"data_batch_{k}" for k in range(1, _CIFAR_BATCHES + 1)]),
        ("test", ["test_batch"]),
    ):
        parts = [_open_cifar(expected.require(base / f"{stem}.bin"), len(classes)) for stem in stems]
        names = Names(f"{stem}/{n}" for stem, part in zip(stems, parts, strict=True) for n in range(len(part)))
        column = np.concatenate([part[:, 0] for part in parts]).astype(np.int64)
        splits[role] = Split(single_label(names, classes, column), RawImages(names, partial(_read_cifar, parts)))
    splits["train"] = _keep_labelled(splits["train"], batch, unlabelled)
    known = int(np.count_nonzero(np.diff(splits["train"].labels.start)))
    return Dataset.build("cifar10", splits, (f"{known} of {len(splits['train'])} training images are labelled",))


def _read_cifar(parts: list[NDArray[np.uint8]], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    return read_records(parts, numbers)[:, 1:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)


def _open_cifar(file: Path, classes: int) -> NDArray[np.uint8]:
    records = _map_records(file, _CIFAR_RECORD, "records", _CIFAR_FIX)
    if (worst := int(records[:, 0].max())) >= classes:
        message = f"there is a record of class {worst}, but batches.meta.txt names {classes}"
        raise LabelError(message, _CIFAR_FIX, file)
    return records


def _map_records(file: Path, length: int, what: str, fix: str) -> NDArray[np.uint8]:
    """Map a file of records of so many bytes into memory: (n, length)."""
    size = existing_path(file).stat().st_size
    if size % length:
        raise LabelError(f"{size} bytes are not a number of whole {what} of {length}", fix, file)
    return np.memmap(file, np.uint8, "r").reshape(-1, length)


def _keep_labelled(split: Split, batch: int | None, unlabelled: bool) -> Split:
    table = split.labels
    image, _, _ = table.entries()
    if batch is not None:
        if not 1 <= batch <= _CIFAR_BATCHES:
            raise UserError(f"CIFAR-10 has no batch {batch}", f"use 1 to {_CIFAR_BATCHES}")
        inside = np.array([name.startswith(f"data_batch_{batch}/") for name in table.images])
        table = table.keep(inside[image])
    if not unlabelled:
        table = table.subset(np.flatnonzero(np.diff(table.start)))
    return Split(table, split.images)


def _refuse_pickles(folder: Path, expected: Layout) -> None:
    for path in (folder, folder / "cifar-10-batches-py"):
        for name in ("batches.meta", "data_batch_1"):
            if (path / name).exists():
                message = "this is the Python version, whose pickled files can run code when they are read_cifar10"
                raise LabelError(message, expected.fix(), path / name)


_STL_SIDE = 96
_STL_BYTES = 3 * _STL_SIDE * _STL_SIDE
_STL_FOLDER = "stl10_binary"
_STL_FIX = "download and unpack stl10_binary.tar.gz again"


def layout_stl10() -> Layout:
    """Return the layout; an image is 96 × 96 bytes each of red, green and blue, column by column.

    Classes are numbered from 1, in the order of class_names.txt. Each line of fold_indices.txt lists the numbers, from
    0, of the 1,000 training images of a fold.
    """
    files = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin", "class_names.txt")
    tree = tuple(f"{_STL_FOLDER}/{file}" for file in (*files, "fold_indices.txt"))
    return Layout("STL-10", tree, "https://cs.stanford.edu/~acoates/stl10 (stl10_binary.tar.gz)")


def read_stl10(folder: Path, *, fold: int | None = None, unlabelled: bool = False) -> Dataset:
    """Open the 5,000 training and 8,000 test images; each shows one of ten classes.

    fold: only the 1,000 training images of this fold, 0 to 9. unlabelled: add the 100,000 images of unlabeled_X.bin,
    some of them of none of the classes, as training images with unknown labels.
    """
    expected = layout_stl10()
    base = expected.require(folder / _STL_FOLDER / "train_X.bin", folder / "train_X.bin").parent
    classes = Names([line.strip() for line in read_lines(expected.require(base / "class_names.txt")) if line.strip()])
    splits = {}
    for role in ("train", "test"):
        parts = [_map_records(expected.require(base / f"{role}_X.bin"), _STL_BYTES, "images", _STL_FIX)]
        labelled = len(parts[0])
        column = _read_classes(expected.require(base / f"{role}_y.bin"), labelled, len(classes))
        index = np.arange(labelled)
        if role == "train" and fold is not None:
            index = _read_fold(expected.require(base / "fold_indices.txt"), fold, labelled)
        names = [f"{role}/{number}" for number in index]
        column = column[index]
        if role == "train" and unlabelled:
            parts.append(_map_records(expected.require(base / "unlabeled_X.bin"), _STL_BYTES, "images", _STL_FIX))
            added = np.arange(len(parts[1]))
            names += [f"unlabeled/{number}" for number in added]
            index, column = np.append(index, labelled + added), np.append(column, np.full(len(added), -1))
        images = RawImages(Names(names), partial(_read_stl, parts, index))
        splits[role] = Split(single_label(images.names, classes, column), images)
    return Dataset.build("stl10", splits, (f"fold {fold}",) if fold is not None else ())


def _read_stl(
    parts: list[NDArray[np.uint8]], index: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.uint8]:
    return read_records(parts, index[numbers]).reshape(-1, 3, _STL_SIDE, _STL_SIDE).transpose(0, 1, 3, 2)


def _read_classes(file: Path, images: int, classes: int) -> NDArray[np.int64]:
    columns = np.fromfile(existing_path(file), np.uint8).astype(np.int64)
    if len(columns) != images:
        raise LabelError(f"{len(columns)} classes for {images} images", _STL_FIX, file)
    if not (columns.min() >= 1 and columns.max() <= classes):
        raise LabelError(f"a class is outside 1 to {classes}", _STL_FIX, file)
    return columns - 1


def _read_fold(file: Path, fold: int, images: int) -> NDArray[np.int64]:
    folds = [line.split() for line in read_lines(existing_path(file)) if line.strip()]
    if not 0 <= fold < len(folds):
        raise UserError(f"STL-10 has no fold {fold}", f"use 0 to {len(folds) - 1}")
    try:
        index = np.array([int(text) for text in folds[fold]])
    except ValueError:
        raise LabelError("an index is not a number", _STL_FIX, file, line=fold + 1) from None
    if index.min() < 0 or index.max() >= images or len(np.unique(index)) < len(index):
        raise LabelError(f"indices must be different and within 0 to {images - 1}", _STL_FIX, file, line=fold + 1)
    return index


READERS: dict[str, Reader] = {"cifar10": (read_cifar10, layout_cifar10), "stl10": (read_stl10, layout_stl10)}
