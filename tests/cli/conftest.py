"""Fixtures of the command tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import BATCHES, TINY, done
from digit_scenes import write_folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_folder(folder, 48)
    write_folder(folder / "test", 12, split="test")
    return folder


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    done("train", data / "train.csv", data / "images", "--out", out, *BATCHES, "2", *TINY)
    return out
