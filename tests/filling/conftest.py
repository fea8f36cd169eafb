"""Small trained runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from digit_scenes import write_folder

from halflabel.fitting.config import Config
from halflabel.labels import formats
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write_folder(folder, 60)
    return folder


@pytest.fixture(scope="session")
def digits(pictures: Path) -> Table:
    """Labels of 60 scenes, half of them known."""
    from halflabel.labels import drop

    return drop.partial(formats.read(pictures / "train.csv").table(), 0.5, seed=0)


def train_run(folder: Path, pictures: Path, table: Table, tune: str) -> RunFolder:
    settings = Config(epochs=2, batch_size=16, lr=0.01, device="cpu")
    shape = {"backbone": "tiny", "size": 32, "held_out": 0.4, "images": str(pictures / "images")}
    run = RunFolder(folder)
    train(table, pictures / "images", dataclasses.replace(settings, method="bn-bce", tune=tune, **shape), run)
    return run


@pytest.fixture(scope="session")
def frozen(pictures: Path, digits: Table, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_run(tmp_path_factory.mktemp("runs") / "frozen", pictures, digits, "head")


@pytest.fixture(scope="session")
def tuned(pictures: Path, digits: Table, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_run(tmp_path_factory.mktemp("runs") / "tuned", pictures, digits, "all")
