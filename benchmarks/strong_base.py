"""Every method on the frozen recipe (training.crossfit), VOC 2012: ranking and decisions by method and label regime.

    python benchmarks/strong_base.py FEATURES.npy LABELS.csv SINGLE_POSITIVE.csv [--classifier FILE.npz] [--seeds 3]
        [--methods bce,an,em] [--regimes all,single,2of20] [--no-similar] [--sgd] [--jobs 8] [--out FILE.jsonl]

FEATURES.npy holds pooled backbone features (11540, D) in the order of LABELS.csv; FILE.npz the weights `W` and `b` of
the classifier that the backbone was pretrained with. Trained on all `train` photos, tested on `val`; "difficult"
objects count as absent. Strength, similar images, calibration and threshold are chosen on known labels, by
`fit_decisions` as `halflabel train` does. Methods that the solver cannot fit are left out, and so are those that do
not serve a regime. `--sgd` trains all methods in batches instead, on the same normalised features: 20 epochs, the
epoch chosen by the known labels of 20 % of the photos. Regime wrongNN: all labels known, those of NN % of the photos
exchanged. Regime positivesNN: NN % of the positives and no negative. Regime tenth: all labels of one photo in ten, none
of the others. Seed 0 of `single` is the published choice, the others are drawn.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel import metrics
from halflabel.evaluation.decisions import fit_decisions
from halflabel.evaluation.evaluate import ValidationMetric
from halflabel.features.feature_transform import FeatureTransform
from halflabel.features.heads import Model
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import crossfit
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features, Subset
from halflabel.labels import drop
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, recipes, seeded


def _tenth(table: Table, seed: int) -> Table:
    dense = table.dense()
    dense[np.random.default_rng(seed).permutation(len(dense))[len(dense) // 10 :]] = 0
    return Table.from_dense(dense, images=list(table.images), classes=list(table.classes))


REGIMES: dict[str, Callable[[Table, int], Table]] = {
    "all": lambda table, seed: table,
    "1P": lambda table, seed: drop.one_positive_all_negatives(table, seed=seed),
    "2of20": lambda table, seed: drop.partial(table, 0.1, seed=seed, exact=True),
    "30%": lambda table, seed: drop.partial(table, 0.3, seed=seed),
    "50%": lambda table, seed: drop.partial(table, 0.5, seed=seed),
    "tenth": _tenth,
    **{
        f"positives{share}": lambda table, seed, share=share: drop.positives(table, share=share / 100, seed=seed)
        for share in (30, 50)
    },
    **{
        f"wrong{share}": lambda table, seed, share=share: drop.corrupt(table, share / 100, seed=seed)
        for share in (10, 20, 30, 40, 50)
    },
}


def read_labels(path: Path) -> tuple[Table, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the labels of all photos, and which are for training."""
    rows = list(csv.DictReader(path.open()))
    classes = list(rows[0])[2:]
    dense = np.array([[int(row[name]) or -1 for name in classes] for row in rows], np.int8)
    table = Table.from_dense(dense, images=[row["id"] for row in rows], classes=classes)
    return table, np.array([row["split"] == "train" for row in rows])


def read_single(path: Path, table: Table) -> Table:
    """Return the published choice of one positive per photo."""
    place = {name: number for number, name in enumerate(table.images)}
    dense = np.zeros(table.shape, np.int8)
    for row in csv.DictReader(path.open()):
        dense[place[row["id"]], int(row["class_index"])] = 1
    return Table.from_dense(dense, images=list(table.images), classes=list(table.classes))


def expected_calibration_error(p: np.ndarray[Any, Any], present: np.ndarray[Any, Any], bins: int = 15) -> float:
    """Return the mean distance of probability and share present, over equally wide bins."""
    cell = np.minimum((p * bins).astype(int), bins - 1).ravel()
    sums = [np.bincount(cell, weights, bins) for weights in (p.ravel(), present.ravel().astype(float))]
    return float(np.abs(sums[0] - sums[1]).sum() / p.size)


class Bench:
    """The features and labels, loaded once per process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.use_similar, self.use_sgd = not options.no_similar, getattr(options, "sgd", False)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.single = options.single
        table, training = read_labels(options.labels)
        features = torch.from_numpy(np.load(options.features).astype(np.float32))
        self.classifier = None
        if options.classifier:
            loaded = np.load(options.classifier)
            self.classifier = (torch.from_numpy(loaded["W"].astype(np.float32)), torch.from_numpy(loaded["b"]))
        self.known, self.truth = table.subset(np.flatnonzero(training)), table.subset(np.flatnonzero(~training)).dense()
        self.train, self.test = features[torch.from_numpy(training)], features[torch.from_numpy(~training)]

    def labels(self, regime: str, seed: int) -> Table:
        if regime == "single":
            return read_single(self.single, self.known) if seed == 0 else drop.single_positive(self.known, seed=seed)
        return REGIMES[regime](self.known, seed)

    def run(self, regime: str, seed: int, name: str) -> dict[str, Any] | None:
        """Return the measurements of one method, or None if it cannot be fitted to these labels."""
        if self.use_sgd:
            return self.run_sgd(regime, seed, name)
        known, how = self.labels(regime, seed), recipe(name)
        if known.stats.regime not in how.serves or not how.make().is_linear_loss:
            return None
        begun = time.perf_counter()
        fitted = crossfit(
            self.train,
            known,
            lambda: seeded(seed, how.make),
            classifier=self.classifier,
            use_similar=self.use_similar,
            seed=seed,
            device=self.device,
        )
        calibration, thresholds = fit_decisions(torch.from_numpy(fitted.logits), torch.from_numpy(known.dense()))
        seconds = time.perf_counter() - begun
        with torch.no_grad():
            head = fitted.head.to(self.device)
            logits = torch.cat([head(part.to(self.device)).logits.cpu() for part in self.test.split(1024)])
        scores = calibration.scores(logits)
        f1 = metrics.precision_recall_f1(scores, self.truth, float(thresholds[0]))
        return {
            "regime": regime,
            "seed": seed,
            "method": name,
            "similar": fitted.head.similar is not None,
            "strength": fitted.strength,
            "mAP": round(100 * float(metrics.mean_average_precision(logits, self.truth)), 2),
            "out_of_fold": round(100 * fitted.quality, 2),
            "CF1": round(100 * f1.CF1, 1),
            "OF1": round(100 * f1.OF1, 1),
            "ECE": round(expected_calibration_error(scores.numpy(), self.truth > 0), 4),
            "threshold": round(float(thresholds[0]), 3),
            "called_present": round(float((scores >= thresholds).sum(1).float().mean()), 2),
            "seconds": round(seconds, 1),
        }

    def run_sgd(self, regime: str, seed: int, name: str) -> dict[str, Any] | None:
        """Train a method in batches, with its defaults: for methods that the solver cannot fit, and to compare."""
        known, how = self.labels(regime, seed), recipe(name)
        if known.stats.regime not in how.serves:
            return None
        begun = time.perf_counter()
        transform = FeatureTransform.fit(self.train, self.classifier)
        source = Features(transform(self.train), known.images)
        method = seeded(seed, how.make)
        model = Model(None, seeded(seed, lambda: method.head(transform.out_channels, len(known.classes))))
        inside, outside = (np.flatnonzero(assign_parts(known, (0.8, 0.2), seed=seed) == part) for part in (0, 1))
        fitted = fit(
            model,
            method,
            Subset(source, inside),
            known.subset(inside),
            Config(epochs=20, lr=how.lr, weight_decay=how.weight_decay, seed=seed, device=self.device),
            validation=Subset(source, outside),
            judge=ValidationMetric(torch.from_numpy(known.subset(outside).dense())),
        )
        with torch.no_grad():
            logits = model.cpu().eval()(transform(self.test)).logits
        quality = round(100 * float(metrics.mean_average_precision(logits, self.truth)), 2)
        seconds = round(time.perf_counter() - begun, 1)
        row = {"regime": regime, "seed": seed, "method": name, "fit": "batches", "mAP": quality}
        return row | {"epoch": fitted.best_epoch, "seconds": seconds}


_bench: Bench | None = None


def _start(options: argparse.Namespace) -> None:
    global _bench
    torch.set_num_threads(1)
    _bench = Bench(options)


def _run(task: tuple[str, int, str]) -> dict[str, Any] | None:
    assert _bench is not None
    try:
        return _bench.run(*task)
    except (ArithmeticError, RuntimeError) as error:  # one method must not end the table
        return {"regime": task[0], "seed": task[1], "method": task[2], "error": str(error)[:200]}


def make_parser(description: str | None, *, seeds: int, regimes: str = "") -> argparse.ArgumentParser:
    """The arguments that all benchmarks on these files take; `regimes` are the default ones, if there are several."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "labels", "single"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--classifier", type=Path)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--no-similar", action="store_true", help="without similar images, which is quicker")
    if regimes:
        parser.add_argument("--regimes", default=regimes)
    return parser


def main() -> None:
    parser = make_parser(__doc__, regimes="single,1P,2of20,30%,50%,all", seeds=3)
    parser.add_argument("--methods", default="", help="all that the solver can fit, if empty")
    parser.add_argument("--sgd", action="store_true", help="train in batches")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "strong_base.jsonl")
    options = parser.parse_args()
    methods = options.methods.split(",") if options.methods else list(recipes())
    tasks = [
        (regime, seed, name)
        for seed in range(options.seeds)
        for regime in options.regimes.split(",")
        for name in methods
        if not (regime == "all" and seed)  # all labels: nothing is drawn
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    context = get_context("spawn")
    with (
        options.out.open("w") as file,
        ProcessPoolExecutor(options.jobs, context, initializer=_start, initargs=(options,)) as pool,
    ):
        for line in pool.map(_run, tasks):
            if line is not None:
                print(json.dumps(line), flush=True)
                file.write(json.dumps(line) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
