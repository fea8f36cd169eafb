"""One small trained run for all tests of exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train

CLASSES = ["red", "green", "büé|x"]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures whose red, green and blue are bright or not, of another shape than the network's input."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("pictures")
    for number, label in enumerate(labels()):
        pixels = np.clip(128 + 80 * label[None, None, :] + rng.normal(0, 40, (44, 52, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def labels() -> np.ndarray:
    actual = np.random.default_rng(1).choice([-1, 1], size=(24, 3))
    actual[:3] = 2 * np.eye(3, dtype=int) - 1
    return actual


@pytest.fixture(scope="session")
def table() -> Table:
    return Table.from_dense(labels(), [f"{number:02d}.png" for number in range(24)], CLASSES)


@pytest.fixture(scope="session")
def run(pictures: Path, table: Table, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run with held-out measurements; read only."""
    config = Config(
        method="bn-bce",
        backbone="tiny",
        size=32,
        resize="crop",
        held_out=0.4,
        images=str(pictures),
        epochs=3,
        batch_size=8,
        lr=0.05,
        device="cpu",
    )
    actual = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    train(table, pictures, config, actual)
    return actual


@pytest.fixture(scope="session")
def exported(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as an ONNX file; read only."""
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    result = CliRunner().invoke(app, ["export", "onnx", str(run.folder), "--out", str(path)])
    assert result.exit_code == 0, result.output
    assert "Checked against PyTorch on 8 images" in result.output
    return path


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)
