"""A few of the faults of benchmarks/soak.py, which breaks training in many more places."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="broken runs are forked")
def test_a_broken_training_ends_like_the_unbroken_one_or_in_one_message(tmp_path: Path) -> None:
    few = ["--kills", "3", "--signals", "2", "--seed", "1", "--only", "damaged_checkpoint,flipped_partial"]
    done = subprocess.run(
        [sys.executable, str(SOAK), *few, "--out", str(tmp_path / "table.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "table.json").read_text())
    assert all(row["is_right"] for row in rows)
    kills = sum(row["times"] for row in rows if row["fault"].startswith("SIGKILL, "))
    signals = sum(row["times"] for row in rows if row["fault"].startswith(("SIGTERM, ", "SIGINT, ")))
    assert (kills, signals) == (3, 2)
    ends = {row["fault"]: row["end"].split(":")[0] for row in rows}
    assert ends["newest checkpoint cut in half"] == ends["a byte of the half-built cache flipped"] == "same"
    assert ends["all checkpoints cut in half"] == "refused"
