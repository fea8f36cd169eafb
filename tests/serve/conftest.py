"""One small trained run for all tests of the server."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "serve.py"


@pytest.fixture(scope="session")
def bench() -> Any:
    """The benchmark's module: it makes hostile files, and starts a real server."""
    spec = importlib.util.spec_from_file_location("bench_serve", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def model(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run; read only."""
    folder: Path = bench.small_model(tmp_path_factory.mktemp("model"), "tiny")
    return folder
