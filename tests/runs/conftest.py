"""A folder of images, and a finished run on it that several test files read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_examples import go, write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def first_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that tests may read, or copy and spoil."""
    out = tmp_path_factory.mktemp("runs") / "run"
    go(out, folder)
    return out


@pytest.fixture
def copied(first_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first_run, tmp_path / "run"))
