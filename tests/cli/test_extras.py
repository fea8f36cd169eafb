"""The core needs no optional package: web servers and matplotlib are extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halflabel.data.datasets.digits import write_folder

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"No module named {{name!r}}")
sys.meta_path.insert(0, Block())
sys.argv = {words!r}
from halflabel.cli import main
main()
"""


def run_without(blocked: tuple[str, ...], *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command where the `blocked` packages cannot be imported."""
    code = BLOCK.format(blocked=set(blocked), words=["halflabel", *map(str, words)])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained without any extra."""
    folder = tmp_path_factory.mktemp("extras")
    write_folder(folder, 40, size=32)
    words = [
        "train",
        folder / "train.csv",
        folder / "images",
        "--out",
        folder / "run",
        "--epochs",
        1,
        "--zero",
        "absent",
    ]
    words += ["--backbone", "tiny", "--size", 32, "--workers", 0, "--device", "cpu", "--method", "bce"]
    result = run_without(("matplotlib", "fastapi", "uvicorn", "python_multipart"), *words)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_training_needs_no_extra(trained: Path) -> None:
    assert (trained / "run" / "best.safetensors").exists()


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("fastapi", "web", ("review", "run", "images")),
        ("uvicorn", "web", ("review", "run", "images")),
        ("fastapi", "web", ("serve", "run", "--port", "0")),
        ("uvicorn", "web", ("serve", "run", "--port", "0")),
        ("python_multipart", "web", ("serve", "run", "--port", "0")),
        ("matplotlib", "figures", ("figures", "run", "--out", "out")),
    ],
)
def test_a_missing_extra_is_named(trained: Path, package: str, extra: str, words: tuple[str, ...]) -> None:
    places = [trained / word if word in ("run", "images", "out") else word for word in words]
    result = run_without((package,), *places)
    assert result.returncode == 2, result.stdout + result.stderr
    assert package in result.stderr
    assert f"pip install 'halflabel[{extra}]'" in " ".join(result.stderr.split())
