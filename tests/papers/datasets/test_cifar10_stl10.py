"""CIFAR-10 and STL-10 from their binary files: labels, pixels, folds and damage."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch
from dataset_folders import CIFAR, cifar_records, opened, refusal, stl_pictures, write_cifar, write_file

from halflabel.papers.datasets import Split, open_dataset


def pixels(split: Split) -> torch.Tensor:
    pictures = split.load_images()
    assert isinstance(pictures, torch.Tensor)
    return pictures


def test_cifar10_labels_and_pixels(tmp_path: Path) -> None:
    dataset = opened("cifar10", tmp_path)
    assert list(dataset.classes) == list(CIFAR)
    assert len(dataset.train) == 20
    assert dataset.train.rows([0]).tolist() == [[-1, 1, -1]]  # the first record of batch 1 is of class 10 mod 3
    for split, first, batches in ((dataset.splits["train"], 10, 5), (dataset.splits["test"], 90, 1)):
        count = len(split) // batches
        expected = np.concatenate([cifar_records(first + 10 * batch, count)[1] for batch in range(batches)])
        assert np.array_equal(pixels(split).numpy(), expected)
    part = dataset.splits["train"].take([17, 2])
    assert np.array_equal(pixels(part).numpy(), pixels(dataset.splits["train"]).numpy()[[17, 2]])


def test_cifar10_few_labels(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    dataset = open_dataset("cifar10", tmp_path, batch=3)
    known = np.flatnonzero(np.diff(dataset.train.start))
    assert (len(dataset.train), len(known)) == (20, 4)
    assert all(dataset.train.images[number].startswith("data_batch_3/") for number in known)
    only = open_dataset("cifar10", tmp_path, batch=3, unlabelled=False)
    assert only.train == dataset.train.subset(known)
    assert pixels(only.splits["train"]).shape == (4, 3, 32, 32)
    assert "no batch 6" in refusal("cifar10", tmp_path, batch=6)


def test_cifar10_refuses_pickles_and_damage(tmp_path: Path) -> None:
    write_file(tmp_path / "py" / "cifar-10-batches-py" / "data_batch_1", pickle.dumps({"data": 1}))
    error = refusal("cifar10", tmp_path / "py")
    assert "can run code" in error
    assert "cifar-10-binary.tar.gz" in error
    write_cifar(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert "whole records of 3073" in refusal("cifar10", tmp_path)
    file.write_bytes(b"\x09" + content[1:])
    assert "a record of class 9" in refusal("cifar10", tmp_path)


def test_stl10_labels_pixels_and_folds(tmp_path: Path) -> None:
    dataset = opened("stl10", tmp_path)
    assert dataset.train.dense().tolist() == [[1, -1], [-1, 1], [-1, 1], [1, -1]]
    assert np.array_equal(pixels(dataset.splits["train"]).numpy(), stl_pictures(0, 4)[1])
    fold = open_dataset("stl10", tmp_path, fold=0, unlabelled=True)
    assert list(fold.train.images) == ["train/2", "train/0", "unlabeled/0", "unlabeled/1"]
    assert fold.train.dense().tolist() == [[-1, 1], [1, -1], [0, 0], [0, 0]]
    expected = np.concatenate([stl_pictures(0, 4)[1][[2, 0]], stl_pictures(80, 2)[1]])
    assert np.array_equal(pixels(fold.splits["train"]).numpy(), expected)
    assert "no fold 2" in refusal("stl10", tmp_path, fold=2)
    write_file(tmp_path / "stl10_binary" / "fold_indices.txt", "0 4\n")
    assert "within 0 to 3" in refusal("stl10", tmp_path, fold=0)
    write_file(tmp_path / "stl10_binary" / "train_y.bin", bytes([0, 1, 1, 2]))
    assert "outside 1 to 2" in refusal("stl10", tmp_path)
    write_file(tmp_path / "stl10_binary" / "train_y.bin", bytes([1, 1, 2]))
    assert "3 classes for 4 images" in refusal("stl10", tmp_path)
