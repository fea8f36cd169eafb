"""The option --engine ray: every command that has it writes what it writes without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY

from halflabel.data.datasets.digits import write_folder

pytest.importorskip("ray")


def halflabel(folder: Path, *words: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "halflabel", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_commands_write_the_same_on_ray(tmp_path: Path) -> None:
    write_folder(tmp_path, 120, size=32)
    labels = ["train.csv", "images", "--zero", "absent"]
    for engine in ("local", "ray"):
        (tmp_path / engine).mkdir()
        chosen = ["--engine", engine]
        halflabel(tmp_path, "train", *labels, "--method", "bce", *TINY, "--out", f"{engine}/run", *chosen)
        run = f"{engine}/run"
        halflabel(tmp_path, "predict", run, "images", "--all", "--out", f"{engine}/scores", *chosen)
        halflabel(tmp_path, "evaluate", run, *labels, "--out", f"{engine}/metrics.json", *chosen)
        text = halflabel(tmp_path, "predict", run, "images", "--format", "csv", *chosen)
        (tmp_path / engine / "scores.csv").write_text(text)
    names = [
        "run/best.safetensors",
        "run/out_of_fold.parquet",
        "scores/part-00000.parquet",
        "metrics.json",
        "scores.csv",
    ]
    for name in names:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
