"""Features and scores on a local Ray cluster: equal to those of one process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("ray")

IMAGES = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        pixels = generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:03d}.png")
    (folder / "images" / "007.png").write_bytes(b"not an image")
    run_job(folder, "local")
    return folder


def run_job(folder: Path, job: str, code: int = 0) -> list[int]:
    """Run a job; return the number of images after each step of its progress."""
    process = subprocess.run(
        [sys.executable, Path(__file__).with_name("ray_job.py"), folder, job],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == code, process.stderr
    return [int(line) for line in process.stdout.split()]


def result(folder: Path, job: str) -> list[bytes]:
    files = sorted(
        path for path in (folder / job).rglob("*") if path.name in ("values.npy", "about.json", "logits.npy")
    )
    assert [path.name for path in files] == ["logits.npy", "about.json", "values.npy"]
    return [path.read_bytes() for path in files]


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(folder: Path) -> None:
    assert run_job(folder, "kill-worker")[-1] == IMAGES
    assert result(folder, "kill-worker") == result(folder, "local")


@pytest.mark.slow
def test_a_build_whose_driver_was_killed_twice_is_continued(folder: Path) -> None:
    first = run_job(folder, "kill-driver", -signal.SIGKILL)
    second = run_job(folder, "kill-driver", -signal.SIGKILL)
    last = run_job(folder, "ray")
    assert first[0] < second[0] < last[0] < IMAGES
    assert result(folder, "ray") == result(folder, "local")
