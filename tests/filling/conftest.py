"""Scores and labels made up so that the truth is known, and one small trained run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from digit_scenes import write_folder

from halflabel.fitting.config import Config, Settings
from halflabel.labels import formats
from halflabel.labels.table import Table
from halflabel.runs.crossfit import Scores
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train


class World(NamedTuple):
    """Logits that a model gave, what is true, and what is known of it."""

    scores: Scores
    truth: np.ndarray
    table: Table


def make_world(
    seed: int = 0, images: int = 4000, classes: int = 6, known: float = 0.15, sharp: float = 1.6, bias: float = 1.0
) -> World:
    """Truth is drawn from σ(z); the model reports a distorted z. Positives are known `bias` times as often."""
    rng = np.random.default_rng(seed)
    z = sharp * rng.normal(0, 2.2, (images, classes)) + np.linspace(-3.5, -0.5, classes)
    truth = np.where(rng.random(z.shape) < 1 / (1 + np.exp(-z)), 1, -1).astype(np.int8)
    chance = known * np.where(truth > 0, bias, 1.0)
    labels = truth * (rng.random(z.shape) < chance)
    part = rng.integers(0, 5, images).astype(np.int8)
    return World(Scores((0.5 * z + 1).astype(np.float32), part, "made up"), truth, Table.from_dense(labels))


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
    settings = Settings(epochs=2, batch_size=16, lr=0.01, device="cpu")
    shape = {"backbone": "tiny", "size": 32, "held_out": 0.4, "images": str(pictures / "images")}
    run = RunFolder(folder)
    train(table, pictures / "images", Config(method="bn-bce", tune=tune, settings=settings, **shape), run)
    return run


@pytest.fixture(scope="session")
def frozen(pictures: Path, digits: Table, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_run(tmp_path_factory.mktemp("runs") / "frozen", pictures, digits, "head")


@pytest.fixture(scope="session")
def tuned(pictures: Path, digits: Table, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_run(tmp_path_factory.mktemp("runs") / "tuned", pictures, digits, "all")
