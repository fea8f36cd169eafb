"""Time and memory of `train` on cached features by the solver: strength, out-of-fold scores, decisions, files.

    python benchmarks/solver_speed.py [--images 50000] [--classes 1000] [--labels partial] [--method auto] [--cores 2]
    python benchmarks/solver_speed.py --features FILE.npy --table LABELS.csv [--labels full] [--method bce,asl]

FILE.npy and LABELS.csv are those of `strong_base.py`, with features of efficientnet-lite0.

Without --features the features are made up: each class has a direction, directions of related classes are alike (a
hierarchy of low rank), an image has about three classes, and features are non-negative, as those of a backbone after
pooling. --labels partial: a tenth of the entries is known; positives: all that is known are 40 % of the positives;
full: everything. Prints the seconds of the whole call, of the fit in it, and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))


def make_features(images: int, classes: int, channels: int = 1280) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    """Return features (N, D) of images and which classes they show (N, C)."""
    generator = np.random.default_rng(0)
    kinds = max(2, classes // 20)
    kind = generator.normal(size=(kinds, 64)).astype(np.float32)
    code = kind[generator.integers(0, kinds, classes)] + 0.7 * generator.normal(size=(classes, 64)).astype(np.float32)
    share = 1 / np.arange(1, classes + 1) ** 0.5  # frequent and rare classes
    present = generator.random((images, classes), dtype=np.float32) < 3 * share / share.sum()
    mixing = generator.normal(size=(64, channels)).astype(np.float32)
    features = np.empty((images, channels), np.float32)
    for start in range(0, images, 4096):
        rows = slice(start, start + 4096)
        hidden = present[rows].astype(np.float32) @ code
        hidden += 1.2 * generator.normal(size=hidden.shape).astype(np.float32)
        noise = generator.normal(size=(len(hidden), channels)).astype(np.float32)
        features[rows] = np.maximum(hidden @ mixing / 8 + 0.7 * noise, 0)
    return torch.from_numpy(features), present


def hide_labels(present: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Return the labels (N, C) of which --labels says how many are known."""
    labels = np.where(present, 1, -1).astype(np.int8)
    chance = np.random.default_rng(1).random(labels.shape, dtype=np.float32)
    if kind == "partial":
        labels[chance > 0.1] = 0
    elif kind == "positives":
        labels[(labels < 0) | (chance > 0.4)] = 0
    return labels


def read_voc(options: argparse.Namespace) -> tuple[torch.Tensor, Any]:
    """Return the features and the labels of the training photos, as `strong_base.py` does; single: one positive."""
    from halflabel.labels import drop
    from strong_base import REGIMES, read_labels

    table, training = read_labels(options.table)
    known = table.subset(np.flatnonzero(training))
    regime = {"partial": "2of20", "full": "all"}.get(options.labels)
    known = REGIMES[regime](known, 0) if regime else drop.single_positive(known, seed=0)
    return torch.from_numpy(np.load(options.features).astype(np.float32))[torch.from_numpy(training)], known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--labels", choices=("partial", "positives", "full"), default="partial")
    parser.add_argument("--method", default="auto", help="methods, separated by commas; auto")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-options.cores :]))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(options.cores)

    import halflabel
    from halflabel.fitting.assembly import Assembly
    from halflabel.images.sources import Features
    from halflabel.labels.table import Table
    from halflabel.system.reporter import Reporter

    if options.features:
        features, table = read_voc(options)
    else:
        features, present = make_features(options.images, options.classes)
        table = Table.from_dense(hide_labels(present, options.labels))
        del present
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    images = torch.zeros(len(table), 3, 1, 1, dtype=torch.uint8)
    cached = Features(features, table.images)

    for method in options.method.split(","):
        seconds = {}
        solve = Assembly.solve

        def timed(*args: Any, seconds: dict[str, float] = seconds, solve: Any = solve, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            result = solve(*args, **kwargs)
            seconds["fit"] = time.perf_counter() - begun
            return result

        profile = cProfile.Profile()
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(Assembly, "features", lambda *args, **kwargs: cached),
            patch.object(Assembly, "solve", timed),
        ):
            if options.profile:
                profile.enable()
            begun, cpu = time.perf_counter(), time.process_time()
            run = halflabel.train(
                table, images, Path(folder) / "run", method, backbone="fast", reporter=Reporter(message=print)
            )
            total, cpu = time.perf_counter() - begun, time.process_time() - cpu
            profile.disable()
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        quality = run.metrics
        print(
            f"{len(table)} images x {features.shape[1]} features x {len(table.classes)} classes, {method}, "
            f"{options.labels}: {total:.1f} s ({seconds['fit']:.1f} s fit; {cpu:.1f} s of processor time), peak "
            f"{peak / 2**20:.2f} GiB ({before / 2**20:.2f} before), mAP {100 * quality.get('mAP', 0):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
