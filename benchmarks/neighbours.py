"""Nearest neighbours: time against scikit-learn's brute force and plain NumPy, and whether all agree.

    python benchmarks/neighbours.py [--queries 20000] [--references 5000] [--channels 1280]

Contestants take turns, so that other work on the machine hits all alike; the best of the repeats counts. On a busy
machine look at the seconds of processor time, summed over threads. Prints a table and writes
benchmarks/out/neighbours.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.neighbors import NearestNeighbors

from halflabel.methods.rml import nearest

OUT = Path(__file__).parent / "out" / "neighbours.json"
Found = tuple[np.ndarray, np.ndarray]  # distance, index, each (Q,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--references", type=int, default=5_000)
    parser.add_argument("--channels", type=int, default=1_280)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    # Like pooled features: not negative, and of a low effective dimension.
    basis = rng.normal(size=(64, options.channels)).astype(np.float32)
    queries, references = (
        np.maximum(rng.normal(size=(count, 64)).astype(np.float32) @ basis / 8, 0)
        for count in (options.queries, options.references)
    )
    contestants: dict[str, Callable[[], Found]] = {
        "halflabel": lambda: ours(queries, references),
        "scikit-learn": lambda: by_sklearn(queries, references),
        "numpy": lambda: by_numpy(queries, references),
    }
    seconds: dict[str, float] = {}
    processor: dict[str, float] = {}
    values: dict[str, Found] = {}
    for _ in range(options.repeats):
        for name, run in contestants.items():
            start, busy = time.perf_counter(), time.process_time()
            values[name] = run()
            seconds[name] = min(seconds.get(name, np.inf), time.perf_counter() - start)
            processor[name] = min(processor.get(name, np.inf), time.process_time() - busy)

    shape = f"{options.queries:,} queries x {options.references:,} references x {options.channels:,} channels"
    print(f"{shape}, {torch.get_num_threads()} threads")
    print(f"{'':16}{'seconds':>10}{'processor':>12}{'ours is':>12}{'same neighbour':>18}{'distance off by':>18}")
    rows = []
    for name, best in seconds.items():
        ratio = best / seconds["halflabel"]
        same = float((values[name][1] == values["halflabel"][1]).mean())
        off = float(np.abs(values[name][0] - values["halflabel"][0]).max())
        print(f"{name:16}{best:10.2f}{processor[name]:12.2f}{ratio:10.1f} x{same:18.4%}{off:18.1e}")
        row = {"name": name, "seconds": best, "processor_seconds": processor[name], "ratio": ratio}
        rows.append({**row, "same": same, "distance_difference": off})
    result = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "sklearn": sklearn.__version__},
        **{name: getattr(options, name) for name in ("queries", "references", "channels", "repeats")},
        "rows": rows,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {OUT}")


def ours(queries: np.ndarray, references: np.ndarray) -> Found:
    skip = torch.full((len(queries),), -1)
    distance, index = nearest(torch.from_numpy(queries), torch.from_numpy(references), skip)
    return distance.numpy(), index.numpy()


def by_sklearn(queries: np.ndarray, references: np.ndarray) -> Found:
    distance, index = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(references).kneighbors(queries)
    return distance[:, 0], index[:, 0]


def by_numpy(queries: np.ndarray, references: np.ndarray) -> Found:
    """The textbook form, a thousand queries at a time."""
    distances, numbers = [], []
    for at in range(0, len(queries), 1_000):
        part = queries[at : at + 1_000]
        square = (part**2).sum(1)[:, None] - 2 * part @ references.T + (references**2).sum(1)
        numbers.append(square.argmin(1))
        distances.append(np.sqrt(np.maximum(square.min(1), 0)))
    return np.concatenate(distances), np.concatenate(numbers)


if __name__ == "__main__":
    main()
