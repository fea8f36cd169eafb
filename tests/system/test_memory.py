"""Scratch tables: equal in memory and in a file, without a file name, and refused without disk space."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Linear, Model
from halflabel.features.scoring import score_source
from halflabel.images.sources import Features
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.parts.relabel import check_size
from halflabel.system import distributed, memory

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder in which every table goes to a scratch file."""
    monkeypatch.setattr(memory, "_SCRATCH_BYTES", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # wanted there, whatever kind of disk it is
    return tmp_path


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


def nothing_known(images: int, classes: int) -> Table:
    nothing = np.zeros(0, np.int64)
    return Table.from_entries(Names.numbered(images), Names.numbered(classes), nothing, nothing, nothing)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_scratch_file_is_unnamed_and_removed_with_its_tensor(folder: Path, dtype: torch.dtype) -> None:
    table = memory.scratch_zeros((7, 5), dtype)
    assert table.shape == (7, 5)
    assert table.dtype == dtype
    assert not table.any()
    table[3] = torch.arange(5)
    part = table[2:4]
    assert not list(folder.iterdir())
    assert len(open_files(folder)) == 1
    del table
    gc.collect()
    assert part.tolist() == [[0] * 5, [0, 1, 2, 3, 4]]
    del part
    gc.collect()
    assert not open_files(folder)


def test_disk_space_is_reserved_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = []
    original = os.posix_fallocate
    monkeypatch.setattr(
        os, "posix_fallocate", lambda *arguments: reserved.append(arguments[1:]) or original(*arguments)
    )
    table = memory.scratch_zeros((1000, 3))
    assert reserved == [(0, 12_000)]
    assert table.nbytes == 12_000


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_refused_with_a_message(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)  # other processes were faster, or a quota
        with pytest.raises(
            UserError, match=r"^x would remember 0\.0 GB in scratch files in .*TMPDIR.*such as em or wan"
        ):
            memory.scratch_zeros((5, 3), what="x would remember")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12 - 10**9, 10**9))
    with pytest.raises(UserError, match=r"^x would remember 1\.2 GB .* where 1\.0 GB are free"):
        memory.scratch_zeros((300_000_000,), what="x would remember")


def test_scores_are_the_same_in_a_file_and_unread_images_are_nan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Model(None, Linear(4, 3, dropout=0.5))
    values = torch.randn(23, 4)
    bad = [0, 1, 2, 3, 4, 9, 22]  # the whole first batch among them
    source = Features(values, Names.numbered(23), bad)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_SCRATCH_BYTES", 1 << 28)
        expected = score_source(model, source, batch_size=5, passes=3, seed=1)
        assert not open_files(folder)
    scored = score_source(model, source, batch_size=5, passes=3, seed=1)
    assert len(open_files(folder)) == 4
    for actual, expected_values in zip(scored, expected, strict=True):
        torch.testing.assert_close(actual, expected_values, rtol=0, atol=0, equal_nan=True)
        assert actual.isnan().all(1).nonzero().squeeze(1).tolist() == bad
        assert actual.isnan().any(1).sum() == len(bad)
    plain = score_source(model, source, batch_size=5, features=False)
    assert torch.equal(plain.logits.nan_to_num(7), scored.logits.nan_to_num(7))
    assert plain.features.shape == (23, 0)


def test_sweeps_are_refused_without_disk_space(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10**10
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12 - free, free))
    check_size(nothing_known(500_000, 5000), 0, "x", sweeps=1)  # just so
    with pytest.raises(UserError, match=r"x would score 500001 images × 5000 classes at once: 10\.0 GB .*TMPDIR"):
        check_size(nothing_known(500_001, 5000), 0, "x", sweeps=1)
    with pytest.raises(UserError, match=r"10\.6 GB"):
        check_size(nothing_known(500_000, 5000), 0, "x", sweeps=1, stored=0.25)
    with pytest.raises(UserError, match=r"30\.0 GB"):
        check_size(nothing_known(500_000, 5000), 0, "x", sweeps=3)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "all_gather", lambda value: [None, value])
    with pytest.raises(UserError, match=r"20\.0 GB"):  # each of two processes on this machine has a table
        check_size(nothing_known(500_000, 5000), 0, "x", sweeps=1)
    free = 0
    check_size(nothing_known(1000, 5000), 1, "x", sweeps=3, stored=1)  # in memory
    with pytest.raises(UserError, match=r"x would store 2\.5 GB about"):
        check_size(nothing_known(500_000, 5000), 1, "x")


def test_scratch_files_are_on_a_disk_unless_a_folder_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # which may be in memory
    monkeypatch.delenv("TMPDIR", raising=False)
    assert memory._scratch_folder() == "/var/tmp"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    assert memory._scratch_folder() == "/var/tmp"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert memory._scratch_folder() == str(tmp_path)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/var/tmp")
    assert memory._scratch_folder() == str(tmp_path)
