"""CIFAR-10, binary version: data_batch_1.bin … data_batch_5.bin and test_batch.bin, records of 3,073 bytes.

A record is one byte for the class and 1,024 each for red, green and blue, row by row. The Python version is pickled and
refused: unpickling a file runs any code that it contains.
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

_BATCHES = 5
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_FOLDER = "cifar-10-batches-bin"


def layout() -> Layout:
    files = ("data_batch_1.bin to data_batch_5.bin", "test_batch.bin", "batches.meta.txt")
    tree = tuple(f"{_FOLDER}/{file}" for file in files)
    return Layout("CIFAR-10", tree, "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-binary.tar.gz)")


def read(folder: Path, *, batch: int | None = None, unlabelled: bool = True) -> Dataset:
    """Open the 50,000 training and 10,000 test images; each shows one of ten classes.

    batch: only the labels of this training batch, 1 to 5, are known. unlabelled: whether images without labels stay,
    with all labels unknown.
    """
    expected = layout()
    if not any((path / "data_batch_1.bin").exists() for path in (folder / _FOLDER, folder)):
        _refuse_pickles(folder, expected)
    first = expected.require(folder / _FOLDER / "data_batch_1.bin", folder / "data_batch_1.bin")
    base = first.parent
    classes = Names([line.strip() for line in read_lines(expected.require(base / "batches.meta.txt")) if line.strip()])
    splits = {}
    for role, stems in (("train", [f"data_batch_{k}" for k in range(1, _BATCHES + 1)]), ("test", ["test_batch"])):
        parts = [_records(expected.require(base / f"{stem}.bin"), len(classes)) for stem in stems]
        names = Names(f"{stem}/{n}" for stem, part in zip(stems, parts, strict=True) for n in range(len(part)))
        column = np.concatenate([part[:, 0] for part in parts]).astype(np.int64)
        splits[role] = Split(single_label(names, classes, column), RawImages(names, partial(_read_images, parts)))
    splits["train"] = _labelled(splits["train"], batch, unlabelled)
    known = int(np.count_nonzero(np.diff(splits["train"].labels.start)))
    return Dataset.build("cifar10", splits, (f"{known} of {len(splits['train'])} training images are labelled",))


def _read_images(parts: list[NDArray[np.uint8]], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    return read_records(parts, numbers)[:, 1:].reshape(-1, 3, _SIDE, _SIDE)


def _records(file: Path, classes: int) -> NDArray[np.uint8]:
    size = existing_path(file).stat().st_size
    if size % _RECORD:
        message = f"{size} bytes are not a number of whole records of {_RECORD}"
        raise LabelError(message, "download and unpack cifar-10-binary.tar.gz again", file)
    records = np.memmap(file, np.uint8, "r").reshape(-1, _RECORD)
    if (worst := int(records[:, 0].max())) >= classes:
        message = f"there is a record of class {worst}, but batches.meta.txt names {classes}"
        raise LabelError(message, "download and unpack cifar-10-binary.tar.gz again", file)
    return records


def _labelled(split: Split, batch: int | None, unlabelled: bool) -> Split:
    table = split.labels
    image, _, _ = table.entries()
    if batch is not None:
        if not 1 <= batch <= _BATCHES:
            raise UserError(f"CIFAR-10 has no batch {batch}", f"use 1 to {_BATCHES}")
        inside = np.array([name.startswith(f"data_batch_{batch}/") for name in table.images])
        table = table.keep(inside[image])
    if not unlabelled:
        table = table.subset(np.flatnonzero(np.diff(table.start)))
    return Split(table, split.images)


def _refuse_pickles(folder: Path, expected: Layout) -> None:
    for path in (folder, folder / "cifar-10-batches-py"):
        for name in ("batches.meta", "data_batch_1"):
            if (path / name).exists():
                message = "this is the Python version, whose pickled files can run code when they are read"
                raise LabelError(message, expected.fix(), path / name)
