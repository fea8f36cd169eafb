"""Mean average precision: speed against torchmetrics and a scikit-learn loop, and memory on a large table.

    python benchmarks/map_speed.py [--torchmetrics DIR] [--large]

torchmetrics is not a dependency of halflabel: if it is not installed, `--torchmetrics` names a folder that contains it
(`pip install --no-deps --target DIR torchmetrics lightning-utilities`). The implementations are timed alternately, so
that other work on the machine affects all alike; the best of the repeats counts. Prints a table and writes
benchmarks/out/map_speed.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from halflabel.evaluation.ranking import average_precision

OUT = Path(__file__).parent / "out" / "map_speed.json"
IGNORED = -5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="threads of all implementations; default: torch's")
    parser.add_argument("--torchmetrics", help="folder that contains torchmetrics, if it is not installed")
    parser.add_argument("--large", action="store_true", help="measure memory on 125,000 x 5,000 scores instead")
    options = parser.parse_args()
    if options.torchmetrics:
        sys.path.append(options.torchmetrics)
    if options.threads:
        torch.set_num_threads(options.threads)

    result = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }
    if options.large:
        result["large"] = large()
    else:
        result["speed"] = [speed(options.images, options.classes, unknown, options.repeats) for unknown in (0.0, 0.5)]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    out = OUT.with_stem("map_memory") if options.large else OUT
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {out}")


def speed(images: int, classes: int, unknown: float, repeats: int) -> dict[str, object]:
    """Time every implementation on one table of scores; about 5 % of the entries are positive."""
    rng = np.random.default_rng(0)
    scores = rng.random((images, classes), dtype=np.float32)
    labels = np.where(rng.random((images, classes)) < 0.05, 1, -1).astype(np.int8)
    labels[rng.random((images, classes)) < unknown] = 0

    implementations: dict[str, Callable[[], np.ndarray]] = {
        "halflabel": lambda: average_precision(scores, labels).numpy(),
        "scikit-learn loop": lambda: sklearn_loop(scores, labels),
    }
    if importlib.util.find_spec("torchmetrics"):
        implementations["torchmetrics"] = torchmetrics_ap(scores, labels)
    else:
        print("torchmetrics is missing: not compared (see --torchmetrics)")

    seconds: dict[str, float] = {}
    values = {}
    for _ in range(repeats):
        for name, run in implementations.items():
            start = time.perf_counter()
            values[name] = run()
            seconds[name] = min(seconds.get(name, np.inf), time.perf_counter() - start)

    print(f"\n{images:,} images x {classes:,} classes, {unknown:.0%} unknown, {torch.get_num_threads()} threads")
    print(f"{'':20}{'seconds':>10}{'ratio':>12}{'mAP':>12}{'largest difference of AP':>28}")
    rows = []
    for name, best in seconds.items():
        ratio = best / seconds["halflabel"]
        difference = float(np.abs(values[name] - values["halflabel"]).max())
        print(f"{name:20}{best:10.3f}{ratio:10.1f} x{values[name].mean():12.6f}{difference:28.1e}")
        rows.append({"name": name, "seconds": best, "ratio": ratio, "difference": difference})
    return {"images": images, "classes": classes, "unknown": unknown, "repeats": repeats, "rows": rows}


def sklearn_loop(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    values = []
    for column, truth in zip(scores.T, labels.T, strict=True):
        known = truth != 0
        values.append(average_precision_score(truth[known] > 0, column[known]))
    return np.array(values)


def torchmetrics_ap(scores: np.ndarray, labels: np.ndarray) -> Callable[[], np.ndarray]:
    """The function of torchmetrics on inputs in its form; the conversion is not timed."""
    from torchmetrics.functional.classification import multilabel_average_precision

    preds = torch.from_numpy(scores)
    target = torch.from_numpy(np.where(labels == 0, IGNORED, labels > 0).astype(np.int64))
    ignored = IGNORED if (labels == 0).any() else None
    return lambda: multilabel_average_precision(
        preds, target, num_labels=scores.shape[1], average=None, ignore_index=ignored
    ).numpy()


def large(images: int = 125_000, classes: int = 5_000) -> dict[str, float]:
    """Time and peak memory beyond the inputs on a table of the size of Open Images' test set."""
    rng = np.random.default_rng(0)
    scores = np.empty((images, classes), dtype=np.float32)
    labels = np.empty((images, classes), dtype=np.int8)
    for start in range(0, images, 1_000):
        rows = slice(start, start + 1_000)
        rng.random(dtype=np.float32, out=scores[rows])
        labels[rows] = np.where(rng.random(scores[rows].shape, dtype=np.float32) < 0.05, 1, -1)
        labels[rows][rng.random(scores[rows].shape, dtype=np.float32) < 0.5] = 0
    before = peak_gib()
    start_time = time.perf_counter()
    value = float(average_precision(scores, labels).nanmean())
    seconds = time.perf_counter() - start_time
    extra = peak_gib() - before
    print(f"{images:,} x {classes:,}: {seconds:.1f} s, {extra:.2f} GiB beyond the inputs, mAP {value:.6f}")
    return {"images": images, "classes": classes, "seconds": seconds, "extra_gib": extra}


def peak_gib() -> float:
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib / (1 << 30 if sys.platform == "darwin" else 1 << 20)


if __name__ == "__main__":
    main()
