"""Formats that are folders: written as a whole, or marked as a mixture."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.system.files import WRITING_MARK

OLD = Table.from_dense([[1, -1], [-1, 1], [1, 1]], ["a.jpg", "b.jpg", "c.jpg"], ["cat", "dog"])
NEW = Table.from_dense([[-1, 1], [1, -1], [-1, -1]], ["a.jpg", "b.jpg", "c.jpg"], ["cat", "dog"])


def read(path: Path) -> Table:
    return formats.read(path, Policy(), format="fiftyone").table()


def test_a_failure_leaves_no_part_of_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):  # the failure comes at each of the first writes
        calls = []

        def fail(handle: int, calls: list[int] = calls, number: int = number) -> None:
            calls.append(handle)
            if len(calls) > number:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises((UserError, OSError)):
            formats.write(NEW, tmp_path / "new", format="fiftyone")
        assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    formats.write(NEW, tmp_path / "new", format="fiftyone")
    assert read(tmp_path / "new") == NEW
    assert (tmp_path / "new").stat().st_mode & 0o111


def test_an_interrupted_replacement_is_not_read_as_a_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "labels"
    formats.write(OLD, path, format="fiftyone")
    (path / "notes.txt").write_text("mine")
    replace, moved = os.replace, []

    def stop(source: Path, target: Path) -> None:
        if path in Path(target).parents:
            moved.append(target)
        if len(moved) == 2:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        formats.write(NEW, path, format="fiftyone")
    monkeypatch.undo()
    for form in ("fiftyone", "auto"):
        with pytest.raises(LabelError, match="mixture"):
            formats.read(path, format=form)
    formats.write(NEW, path, format="fiftyone")
    assert read(path) == NEW
    assert (path / "notes.txt").read_text() == "mine"
    assert not (path / WRITING_MARK).exists()
    assert list(tmp_path.iterdir()) == [path]
