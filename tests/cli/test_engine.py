"""The option --engine ray: every command that has it writes what it writes without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY
from digit_scenes import write_folder

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
    labelled = (tmp_path / "train.csv").read_text().splitlines(keepends=True)[:81]
    (tmp_path / "labelled.csv").write_text("".join(labelled))
    halflabel(tmp_path, "drop", "labelled.csv", "part.csv", "partial:share=0.5", "--zero", "absent")
    for engine in ("local", "ray"):
        folder = tmp_path / engine
        folder.mkdir()
        chosen = ["--engine", engine]
        halflabel(folder, "train", "../part.csv", "../images", "--method", "bce", *TINY, "--out", "run", *chosen)
        halflabel(folder, "embed", "../images", "features", *TINY, *chosen)
        halflabel(folder, "predict", "run", "../images", "--all", "--out", "scores", *chosen)
        halflabel(
            folder, "evaluate", "run", "../train.csv", "../images", "--zero", "absent", "--out", "metrics.json", *chosen
        )
        filling = ["--precision", "0.6", "--all-photos", "--out", "filled.csv"]
        halflabel(folder, "fill", "run", "../images", *filling, *chosen)
        (folder / "scores.csv").write_text(halflabel(folder, "predict", "run", "../images", "--format", "csv", *chosen))
    names = [
        "run/best.safetensors",
        "run/scores.parquet",
        "features/part-00000.parquet",
        "scores/part-00000.parquet",
        "metrics.json",
        "filled.csv",
        "scores.csv",
    ]
    for name in names:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
    filled = (tmp_path / "ray" / "filled.csv").read_text()
    assert "model:bce" in filled
