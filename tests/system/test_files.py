"""Atomic writes leave the old file or the new one, never a part; JSON values."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.system.files import atomic_write, read_json, to_json_value, write_json


def test_a_new_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "labels.csv"
    with atomic_write(target) as temporary:
        assert temporary.parent == target.parent
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "labels.csv"
    target.write_text("old")

    def fail() -> None:
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_replaced_file_keeps_its_mode_and_a_new_one_has_the_default(tmp_path: Path) -> None:
    old, new, usual = (tmp_path / name for name in ("old", "new", "usual"))
    old.write_text("x")
    old.chmod(0o640)
    usual.write_text("x")
    for path in (old, new):
        with atomic_write(path) as temporary:
            temporary.write_text("y")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert old.read_text() == "y"
    assert new.stat().st_mode == usual.stat().st_mode


def test_the_file_is_synced_before_and_the_folder_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths))[1])
    with atomic_write(tmp_path / "x") as temporary:
        temporary.write_text("y")
    assert calls == ["sync", "replace", "sync"]


@pytest.mark.parametrize("place", [".", "file/x", "y" * 300])
def test_unwritable_paths_are_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="Fix: "), atomic_write(tmp_path / place):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_written_json_is_standard_json(tmp_path: Path) -> None:
    content = {"é": np.float32(0.5), 1: [np.int64(2), float("nan")], "deep": ({"inf": np.inf},), "path": Path("a/b")}
    write_json(tmp_path / "x.json", content)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert "é" in text
    assert text.endswith("\n")
    expected = {"é": 0.5, "1": [2, None], "deep": [{"inf": None}], "path": "a/b"}
    assert json.loads(text, parse_constant=pytest.fail) == expected == to_json_value(content)


def test_json_keeps_unicode_and_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    odd = b"ph\xff".decode(errors="surrogateescape")
    write_json(tmp_path / "x.json", {"ä": odd})
    assert (tmp_path / "x.json").read_bytes() == '{\n "ä": "ph\\udcff"\n}\n'.encode()
    assert read_json(tmp_path / "x.json", "again") == {"ä": odd}


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe or a device"), atomic_write(pipe):
        pass
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("new", "newer"):
        with atomic_write(tmp_path / "link") as temporary:
            temporary.write_text(text)
        assert (tmp_path / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()
