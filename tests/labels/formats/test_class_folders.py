"""Folders of images, one per class."""

from __future__ import annotations

from pathlib import Path

import pytest
from label_files import GOLDEN_FILES, label_error

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats.class_folders import class_folders
from halflabel.labels.policy import Policy

GOLDEN = GOLDEN_FILES / "class_folders" / "photos"
IMAGES = ["cat/a.jpg", "cat/b.JPG", "dog/c.png", "dog/more/d.jpg"]


def test_the_folder_is_the_class() -> None:
    table = formats.read(GOLDEN, Policy(unlisted="unknown")).table()
    assert (list(table.images), list(table.classes)) == (IMAGES, ["cat", "dog"])
    assert table.dense().tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    table = formats.read(GOLDEN, Policy(unlisted="absent")).table()
    assert table.dense().tolist() == [[1, -1], [1, -1], [-1, 1], [-1, 1]]
    assert list(
        formats.read(GOLDEN, Policy(unlisted="absent", ignore=("cat",)), format="class-folders").table().classes
    ) == ["dog"]


def test_what_the_other_classes_mean_must_be_stated() -> None:
    error = label_error(class_folders.read, GOLDEN, Policy())
    assert "may be absent or unknown" in error.message
    assert "‹unlisted=absent› (each image shows nothing else of these classes)" in error.fix


@pytest.mark.parametrize("name", ["train", "Test", "images"])
def test_folders_that_may_be_splits_are_not_taken_for_classes(tmp_path: Path, name: str) -> None:
    for folder in (name, "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").touch()
    with pytest.raises(LabelError, match="may be classes, splits or parts") as caught:
        formats.read(tmp_path)
    assert "‹format=class-folders›" in caught.value.fix
    stated = formats.read(tmp_path, Policy(unlisted="unknown"), format="class-folders")
    assert sorted(stated.table().classes) == sorted([name, "b"])


def test_nothing_to_read_and_nothing_to_write(tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    assert not class_folders.sniff(tmp_path)
    assert "no folder with images" in label_error(class_folders.read, tmp_path, Policy()).message
    with pytest.raises(UserError, match="only read"):
        formats.write(formats.read(GOLDEN, Policy(unlisted="unknown")).rows, tmp_path / "x", format="class-folders")
