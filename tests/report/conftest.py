"""Fixtures of the report tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from digit_scenes import write_folder
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.labels import drop, formats


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on digit scenes with a third of the labels hidden, and the folder of its photos."""
    folder = tmp_path_factory.mktemp("report")
    write_folder(folder, 60)
    from halflabel.labels.policy import Policy

    table = formats.read(folder / "train.csv", Policy(zero="absent")).table()
    formats.write(drop.partial(table, 0.66, seed=0), folder / "labels.csv")
    words = [
        "train",
        folder / "labels.csv",
        folder / "images",
        "--out",
        folder / "run",
        "--fit",
        "batches",
        "--epochs",
        "3",
        "--lr",
        "0.05",
    ]
    words += ["--method", "bce", "--backbone", "tiny", "--size", "32", "--workers", "0", "--set", "device=cpu"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return folder / "run", folder / "images"
