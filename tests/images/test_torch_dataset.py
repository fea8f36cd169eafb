"""The torch Dataset of a label table and an image folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import halflabel
from halflabel.errors import UserError
from halflabel.labels.table import Table

LABELS = [[1, 0], [-1, 1], [0, 0]]
TABLE = Table.from_dense(LABELS, images=["c", "a.png", "b.png"], classes=["cat", "dog"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate("abc"):
        Image.fromarray(np.full((4 + number, 5, 3), 10 * number, np.uint8)).save(tmp_path / f"{name}.png")
    return tmp_path


def test_images_and_labels_are_in_the_order_of_the_table(folder: Path) -> None:
    dataset = halflabel.dataset(TABLE, folder)
    items = [dataset[number] for number in range(len(dataset))]
    assert [tuple(image.shape) for image, _ in items] == [(3, 6, 5), (3, 4, 5), (3, 5, 5)]
    assert [int(image.max()) for image, _ in items] == [20, 0, 10]
    assert all(image.dtype == torch.uint8 and labels.dtype == torch.int8 for image, labels in items)
    assert [labels.tolist() for _, labels in items] == LABELS


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_makes_batches_with_the_index(folder: Path, workers: int) -> None:
    dataset = halflabel.dataset(TABLE, folder, _corner, with_index=True)
    images, labels, index = next(iter(DataLoader(dataset, batch_size=3, num_workers=workers)))
    assert images.shape == (3, 3, 2, 2)
    assert labels.tolist() == LABELS
    assert index.tolist() == [0, 1, 2]


def _corner(image: torch.Tensor) -> torch.Tensor:
    return image[:, :2, :2].float() / 255


def test_missing_and_damaged_images_are_named(folder: Path) -> None:
    (folder / "b.png").write_bytes(b"not an image")
    dataset = halflabel.dataset(TABLE, folder)
    with pytest.raises(UserError, match=r"b\.png cannot be read"):
        dataset[2]
    (folder / "b.png").unlink()
    with pytest.raises(UserError, match=r"1 of 3 images .* 'b\.png'"):
        halflabel.dataset(TABLE, folder)
