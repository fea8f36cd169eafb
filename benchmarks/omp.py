"""Joint non-negative OMP: time against algorithm 2 run image by image in NumPy, and whether both agree.

    python benchmarks/omp.py [--images 128] [--items 2048] [--channels 2048] [--classes 1000] [--k 5]

Contestants take turns, so that other work on the machine hits all alike; the best of the repeats counts. On a busy
machine look at the seconds of processor time, summed over threads. Prints a table and writes benchmarks/out/omp.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from halflabel.methods.parts.matching_pursuit import Part, joint_omp
from halflabel.system.memory import keep_freed_memory

OUT = Path(__file__).parent / "out" / "omp.json"
LAMBDA_Y, LAMBDA_F = 1.0, 0.5
Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # index, c, c̄, each (B, k)


class Data:
    """Images and a dictionary like pooled features and imputed labels; A y is the labels, a little mixed."""

    def __init__(self, images: int, items: int, channels: int, classes: int) -> None:
        rng = np.random.default_rng(0)
        basis = rng.normal(size=(64, channels)).astype(np.float32)
        hidden = rng.normal(size=(images + items, 64)).astype(np.float32)
        features = np.maximum(hidden @ basis / 8, 0)
        scores = 1 / (1 + np.exp(2 - hidden @ rng.normal(size=(64, classes)).astype(np.float32) / 4))
        labels = (1.5 * scores - 0.5).astype(np.float32)
        self.features, self.item_features = features[:images], features[images:]
        self.labels, self.item_labels = labels[:images], labels[images:]
        self.said = 0.7 * self.item_labels + 0.3 * np.roll(self.item_labels, 1, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--items", type=int, default=2048)
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()

    data = Data(options.images, options.items, options.channels, options.classes)
    contestants: dict[str, Callable[[], Found]] = {
        "halflabel": lambda: ours(data, options.k),
        "numpy as printed": lambda: by_numpy(data, options.k, norms_once=False),
        "numpy norms once": lambda: by_numpy(data, options.k, norms_once=True),
    }
    seconds: dict[str, float] = {}
    processor: dict[str, float] = {}
    values: dict[str, Found] = {}
    for _ in range(options.repeats):
        for name, run in contestants.items():
            time.sleep(0.3)  # NumPy's threads go on spinning for a while, on cores that the next one needs
            start, busy = time.perf_counter(), time.process_time()
            values[name] = run()
            seconds[name] = min(seconds.get(name, np.inf), time.perf_counter() - start)
            processor[name] = min(processor.get(name, np.inf), time.process_time() - busy)

    shape = (
        f"{options.images} images, {options.items:,} items, {options.channels:,} features, {options.classes:,} labels"
    )
    chosen = float((values["halflabel"][0] >= 0).sum(1).mean())
    print(f"{shape}, k = {options.k} ({chosen:.2f} chosen), {torch.get_num_threads()} threads")
    print(f"{'':18}{'seconds':>10}{'processor':>12}{'ours is':>12}{'same items':>14}{'c off by':>12}")
    rows = []
    for name, best in seconds.items():
        ratio = best / seconds["halflabel"]
        same = values[name][0] == values["halflabel"][0]
        off = float(np.abs(values[name][1] - values["halflabel"][1])[same.all(1)].max(initial=0))
        print(f"{name:18}{best:10.3f}{processor[name]:12.3f}{ratio:10.1f} x{float(same.mean()):14.2%}{off:12.1e}")
        row = {"name": name, "seconds": best, "processor_seconds": processor[name], "ratio": ratio}
        rows.append({**row, "same": float(same.mean()), "coefficient_difference": off})
    result = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        **{name: getattr(options, name) for name in ("images", "items", "channels", "classes", "k", "repeats")},
        "chosen_per_image": chosen,
        "rows": rows,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {OUT}")


def ours(data: Data, k: int) -> Found:
    labels, said, plain, features, items = map(
        torch.from_numpy, (data.labels, data.said, data.item_labels, data.features, data.item_features)
    )
    found = joint_omp([Part(labels, said, LAMBDA_Y, plain), Part(features, items, LAMBDA_F)], k)
    return found.index.numpy(), found.weights[0].numpy(), found.weights[1].numpy()


def by_numpy(data: Data, k: int, norms_once: bool) -> Found:
    """Algorithm 2 one image after the other, each step with matrix-vector products.

    As it is printed, norms are part of each step; computing them once is what a careful loop would do.
    """
    index = np.full((len(data.labels), k), -1)
    c, c_bar = np.zeros(index.shape), np.zeros(index.shape)
    squares = norms(data)
    for i, (y, f) in enumerate(zip(data.labels, data.features, strict=True)):
        left_y, left_f, chosen = y, f, []
        for _ in range(k):
            said_square, item_square = squares if norms_once else norms(data)
            score = LAMBDA_Y * (data.said @ left_y) ** 2 / said_square
            score += LAMBDA_F * (data.item_features @ left_f) ** 2 / item_square
            s = int(score.argmax())
            if s in chosen or left_y @ data.item_labels[s] <= 0 or left_f @ data.item_features[s] <= 0:
                break
            chosen.append(s)
            found_y = np.maximum(0, np.linalg.lstsq(data.said[chosen].T, y, rcond=None)[0])
            found_f = np.maximum(0, np.linalg.lstsq(data.item_features[chosen].T, f, rcond=None)[0])
            left_y, left_f = y - found_y @ data.said[chosen], f - found_f @ data.item_features[chosen]
        if chosen:
            index[i, : len(chosen)], c[i, : len(chosen)], c_bar[i, : len(chosen)] = chosen, found_y, found_f
    return index, c, c_bar


def norms(data: Data) -> tuple[np.ndarray, np.ndarray]:
    return (data.said**2).sum(1), (data.item_features**2).sum(1)


if __name__ == "__main__":
    main()
