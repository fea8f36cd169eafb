"""Fixtures for small comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from digit_scenes import scenes

from halflabel.comparison.bench import Bench, Trained
from halflabel.comparison.compare import compare
from halflabel.comparison.grid import Task
from halflabel.comparison.result import Trials
from halflabel.fitting.config import Config
from halflabel.labels.table import Table


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Digits(NamedTuple):
    images: torch.Tensor
    table: Table


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Sixty scenes with all their labels."""
    samples = scenes(60, size=32)
    return Digits(samples.images, Table.from_dense(samples.labels, samples.names, samples.classes))


@pytest.fixture(scope="session")
def config() -> Config:
    return Config(backbone="tiny", size=32, epochs=2, batch_size=16, device="cpu")


@pytest.fixture
def go(digits: Digits, config: Config, cache: Path, tmp_path: Path) -> Callable[..., Trials]:
    """Compare methods in the folder `out`; by default two of them, without a search, with two seeds."""

    def call(out: str = "out", names: Any = ("bn-bce", "em"), **more: Any) -> Trials:
        options = {
            **digits._asdict(),
            "config": config,
            "search": "none",
            "seeds": 2,
            "references": False,
            "cache": cache,
            **more,
        }
        return compare(options.pop("table"), options.pop("images"), names, out=tmp_path / out, **options)

    return call


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that are trained, in order."""
    tasks: list[Task] = []
    original = Bench.train

    def train(self: Bench, task: Task, **more: Any) -> Trained:
        tasks.append(task)
        return original(self, task, **more)

    monkeypatch.setattr(Bench, "train", train)
    return tasks
