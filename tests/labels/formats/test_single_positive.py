"""The .npy files of the single-positive literature: golden folder, and every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.labels.formats import single_positive
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "single_positive"
TRAIN, VAL = Policy(split="train"), Policy(split="val")
IMAGES = ["2008_000008.jpg", "2008_000015.jpg", "été.jpg"]


def save(folder: Path, **arrays: Any) -> Path:
    for name, array in arrays.items():
        np.save(folder / f"formatted_train_{name}.npy", array)
    return folder


def test_golden_observed() -> None:
    result = single_positive.read(GOLDEN, TRAIN)
    table = result.table()
    assert list(table.images) == IMAGES
    assert list(table.classes) == ["cat", "None", "dog"]
    assert table.dense().tolist() == [[1, 0, 0], [0, -1, 1], [0, 1, 0]]
    assert [tuple(line) for line in result.audit.value_counts] == [
        ("1", "present", 3),
        ("-1", "absent", 1),
        ("0", "unknown", 5),
    ]
    assert any("formatted_train_labels.npy are not read" in note for note in result.audit.notes)


def test_golden_complete() -> None:
    result = single_positive.read(GOLDEN, VAL)
    assert list(result.rows.images) == ["0001.jpg", "0002.jpg"]
    assert result.table().dense().tolist() == [[-1, 1, -1], [-1, -1, -1]]
    assert [tuple(line) for line in result.audit.value_counts] == [("1", "present", 1), ("0", "absent", 5)]


def test_the_complete_file_can_be_named_although_an_observed_one_is_there() -> None:
    result = single_positive.read(GOLDEN / "formatted_train_labels.npy", Policy())
    assert result.table().dense().tolist() == [[1, -1, 1], [-1, -1, 1], [1, 1, -1]]
    same = single_positive.read(GOLDEN / "formatted_train_images.npy", Policy()).table()
    assert same == single_positive.read(GOLDEN / "formatted_train_labels_obs.npy", TRAIN).table()
    assert same == single_positive.read(GOLDEN, TRAIN).table()


def test_split_must_be_chosen() -> None:
    assert label_error(single_positive.read, GOLDEN).fix == "add ‹split=train› or ‹split=val›"
    assert "one of: train, val" in label_error(single_positive.read, GOLDEN, Policy(split="test")).fix
    assert "splits val" in label_error(single_positive.read, GOLDEN / "formatted_train_labels.npy", VAL).message


def test_classes_without_names_are_numbered(tmp_path: Path) -> None:
    save(tmp_path, images=np.array([b"a", b"\xc3\xa9"]), labels=np.array([[True, False], [False, False]]))
    result = single_positive.read(tmp_path, Policy())
    assert (list(result.rows.images), list(result.rows.classes)) == (["a", "é"], ["0", "1"])
    assert any("no classes.txt" in note for note in result.audit.notes)
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")
    assert list(single_positive.read(tmp_path, Policy()).rows.classes) == ["cat", "dog"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", ">f4", "bool"])
def test_any_kind_of_number(dtype: str, tmp_path: Path) -> None:
    labels = np.asfortranarray(np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype))
    save(tmp_path, images=np.array([7, 12]), labels_obs=labels)
    table = single_positive.read(tmp_path, Policy()).table()
    assert list(table.images) == ["7", "12"]
    assert table.dense().tolist() == [[1, 0, 1], [0, 0, 1]]


def test_the_way_of_observing_may_stand_in_the_name(tmp_path: Path) -> None:
    for split in ("train", "train_extra"):
        np.save(tmp_path / f"formatted_{split}_images.npy", np.array(["a"]))
        np.save(tmp_path / f"formatted_{split}_labels.npy", np.array([[1, 0]]))
    np.save(tmp_path / "formatted_train_uniform_labels_obs.npy", np.array([[1, 0]]))
    np.save(tmp_path / "formatted_train_extra_labels_obs.npy", np.array([[0, -1]]))
    assert single_positive.read(tmp_path, TRAIN).table().dense().tolist() == [[1, 0]]
    assert single_positive.read(tmp_path, Policy(split="train_extra")).table().dense().tolist() == [[0, -1]]
    np.save(tmp_path / "formatted_train_size_labels_obs.npy", np.array([[0, 1]]))
    assert "name the file" in label_error(single_positive.read, tmp_path, TRAIN).fix
    named = single_positive.read(tmp_path / "formatted_train_size_labels_obs.npy", Policy())
    assert named.table().dense().tolist() == [[0, 1]]


class Trap:
    """Unpickling this would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    np.save(tmp_path / "formatted_train_images.npy", np.array([Trap(trap), "b"], dtype=object))
    np.save(tmp_path / "formatted_train_labels.npy", np.eye(2))
    error = label_error(single_positive.read, tmp_path)
    assert "np.array(names, dtype=str)" in error.fix
    assert not trap.exists()
    np.save(tmp_path / "formatted_train_images.npy", np.array(["a", "b"]))
    np.save(tmp_path / "formatted_train_labels.npy", np.array([[1, None]], dtype=object))
    assert "Python objects" in label_error(single_positive.read, tmp_path).message


FAULTS: dict[str, dict[str, Any]] = {
    "3 rows of labels for the 2 images": {"labels": np.eye(3)},
    "with 1 dimensions": {"labels": np.ones(2)},
    "array of complex128": {"labels": np.eye(2) * 1j},
    "-1.0 is not a label": {"labels": np.array([[1.0, 0.0], [-1.0, 0.0]])},
    "2 is not a label": {"labels_obs": np.array([[1, 2], [0, 0]])},
    "nan is not a label": {"labels_obs": np.array([[1, np.nan], [0, 0]])},
    "no classes": {"labels": np.zeros((2, 0))},
    "two images are called 'a'": {"images": np.array(["a", "a"])},
    "an image has no name": {"images": np.array(["a", ""])},
    "with 2 dimensions": {"images": np.array([["a"], ["b"]])},
    "array of float64": {"images": np.array([1.0, 2.0])},
    "no images": {"images": np.array([], dtype=str)},
    "not Unicode text": {"images": np.array([b"\xff", b"a"])},
    "a name is not Unicode": {"images": np.array(["a", "\ud800"])},
}


@pytest.mark.parametrize("message", FAULTS)
def test_fault(message: str, tmp_path: Path) -> None:
    save(tmp_path, **{"images": np.array(["a", "b"]), "labels": np.eye(2), **FAULTS[message]})
    assert message in label_error(single_positive.read, tmp_path).message


def test_faults_of_files(tmp_path: Path) -> None:
    assert "no such file" in label_error(single_positive.read, tmp_path / "not there").message
    assert "no formatted_<split>_images.npy" in label_error(single_positive.read, tmp_path).message
    save(tmp_path, images=np.array(["a", "b"]))
    assert "no such file" in label_error(single_positive.read, tmp_path).message
    labels = save(tmp_path, labels=np.eye(2)) / "formatted_train_labels.npy"
    (tmp_path / "classes.txt").write_text("cat\n")
    assert "1 names for 2 classes" in label_error(single_positive.read, tmp_path).message
    (tmp_path / "classes.txt").write_text("cat\ncat\n")
    assert "'cat' is already on line 1" in label_error(single_positive.read, tmp_path).message
    (tmp_path / "classes.txt").write_bytes(b"\xff\n\xfe\n")
    assert "not UTF-8" in label_error(single_positive.read, tmp_path).message
    labels.write_bytes(labels.read_bytes()[:-1])
    assert "greater than file size" in label_error(single_positive.read, tmp_path).message
    labels.write_bytes(b"")
    assert "empty" in label_error(single_positive.read, tmp_path).message
    np.savez(tmp_path / "a.npz", np.eye(2))
    labels.write_bytes((tmp_path / "a.npz").read_bytes())
    assert "cannot be read as .npy" in label_error(single_positive.read, tmp_path).message
    np.save(tmp_path / "formatted_val_labels.npy", np.eye(2))
    assert (
        "none of the splits train" in label_error(single_positive.read, tmp_path / "formatted_val_labels.npy").message
    )
