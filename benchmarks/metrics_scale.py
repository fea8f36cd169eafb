"""Metrics of 125,000 × 5,000 scores that lie in a file: time and peak memory, block by block.

    python benchmarks/metrics_scale.py [--images 125000] [--classes 5000] [--known 0.5] [--kind float32]

Scores and labels are drawn and written to a temporary folder; a process of its own evaluates them, so that the peak is
its own. Prints a line and writes benchmarks/out/metrics_scale.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()


def write(folder: Path, images: int, classes: int, known: float, kind: str) -> None:
    """Scores, and labels of which a share `known` is known and about 5 % of these are positive."""
    rng = np.random.default_rng(0)
    scores = np.lib.format.open_memmap(folder / "scores.npy", "w+", kind, (images, classes))
    labels = np.lib.format.open_memmap(folder / "labels.npy", "w+", np.int8, (images, classes))
    for start in range(0, images, 1000):
        rows = slice(start, start + 1000)
        shape = scores[rows].shape
        drawn = rng.random(shape, dtype=np.float32)
        present = rng.random(shape, dtype=np.float32) < 0.05
        labels[rows] = np.where(present, 1, -1) * (rng.random(shape, dtype=np.float32) < known)
        scores[rows] = (drawn + 0.3 * present) / 1.3


def evaluate(folder: Path) -> dict[str, float]:
    from halflabel.metrics import blockwise

    scores, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("scores", "labels"))
    began = time.perf_counter()
    found = blockwise(scores, labels)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_seconds": time.process_time(), "peak_gib": peak_gib(), **found.overall}


def peak_gib() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says also counts the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 30 if sys.platform == "darwin" else 1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=125_000)
    parser.add_argument("--classes", type=int, default=5_000)
    parser.add_argument("--known", type=float, default=0.5)
    parser.add_argument("--kind", default="float32", choices=("float16", "float32"))
    parser.add_argument("--evaluate", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.evaluate:
        print(json.dumps(evaluate(asked.evaluate)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), asked.images, asked.classes, asked.known, asked.kind)
        command = [sys.executable, str(HERE), "--evaluate", folder]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    result = {"images": asked.images, "classes": asked.classes, "known": asked.known, "kind": asked.kind, **found}
    print(
        f"{asked.images:,} × {asked.classes:,} {asked.kind}, {asked.known:.0%} known: {found['seconds']:.1f} s "
        f"({found['cpu_seconds']:.1f} s of processor time), "
        f"peak {found['peak_gib']:.2f} GiB, mAP {found['mAP']:.6f}, OF1 {found['OF1']:.6f}"
    )
    out = HERE.parent / "out"
    out.mkdir(exist_ok=True)
    (out / "metrics_scale.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
