"""A format that is a folder: what is half written is not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table

OLD = Table.from_dense([[1, -1], [-1, 1], [1, 1]], ["a.jpg", "b.jpg", "c.jpg"], ["cat", "dog"])
NEW = Table.from_dense([[-1, 1], [1, -1], [-1, -1]], ["a.jpg", "b.jpg", "c.jpg"], ["cat", "dog"])


def read(path: Path) -> Table:
    return formats.read(path, Policy(), format="fiftyone").table()


@pytest.mark.parametrize("number", [0, 1])
def test_an_interrupted_replacement_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = tmp_path / "labels"
    formats.write(OLD, path, format="fiftyone")
    (path / "notes.txt").write_text("mine")
    replace, moved = os.replace, []

    def stop(source: Path, target: Path) -> None:
        moved.append(target)
        if len(moved) > number:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        formats.write(NEW, path, format="fiftyone")
    monkeypatch.undo()
    with pytest.raises(LabelError):
        read(path)
    formats.write(NEW, path, format="fiftyone")
    assert read(path) == NEW
    assert (path / "notes.txt").read_text() == "mine"


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        formats.write(NEW, tmp_path / "labels", format="fiftyone")
