"""Test mAP of the frozen recipe (training.crossfit) on VOC 2012, by method and label regime.

    python benchmarks/strong_base.py FEATURES.npy LABELS.csv SINGLE_POSITIVE.csv [--classifier FILE.npz] [--seeds 3]
        [--methods bce,an,em] [--regimes all,single,2of20] [--out FILE.json]

FEATURES.npy holds pooled backbone features (11540, D) in the order of LABELS.csv; FILE.npz the weights `W` and `b` of
the classifier that the backbone was pretrained with. Trained on all `train` photos, tested on `val`; "difficult"
objects count as absent. Strength and similar images are chosen on known labels. F1 values decide at a score of 0.5.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel import metrics
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.training.crossfit import crossfit
from halflabel.training.solver import can_solve

REGIMES: dict[str, Callable[[LabelTable, int], LabelTable]] = {
    "all": lambda table, seed: table,
    "2of20": lambda table, seed: drop.partial(table, 0.1, seed=seed, exact=True),
    "30%": lambda table, seed: drop.partial(table, 0.3, seed=seed),
    "50%": lambda table, seed: drop.partial(table, 0.5, seed=seed),
}


def read_labels(path: Path) -> tuple[LabelTable, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the labels of all photos, and which are for training."""
    rows = list(csv.DictReader(path.open()))
    classes = list(rows[0])[2:]
    dense = np.array([[int(row[name]) or -1 for name in classes] for row in rows], np.int8)
    table = LabelTable.from_dense(dense, images=[row["id"] for row in rows], classes=classes)
    return table, np.array([row["split"] == "train" for row in rows])


def read_single(path: Path, table: LabelTable) -> LabelTable:
    """Return the published choice of one positive per photo."""
    place = {name: number for number, name in enumerate(table.images)}
    dense = np.zeros(table.shape, np.int8)
    for row in csv.DictReader(path.open()):
        dense[place[row["id"]], int(row["class_index"])] = 1
    return LabelTable.from_dense(dense, images=list(table.images), classes=list(table.classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("features", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("single", type=Path)
    parser.add_argument("--classifier", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="bce,an,em,wan,an-ls,asl,focal")
    parser.add_argument("--regimes", default="all,single,2of20")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "strong_base.json")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table, training = read_labels(options.labels)
    features = torch.from_numpy(np.load(options.features).astype(np.float32))
    classifier = None
    if options.classifier:
        loaded = np.load(options.classifier)
        classifier = (torch.from_numpy(loaded["W"].astype(np.float32)), torch.from_numpy(loaded["b"]))
    known_all, truth = table.subset(np.flatnonzero(training)), table.subset(np.flatnonzero(~training)).dense()
    train, test = features[torch.from_numpy(training)], features[torch.from_numpy(~training)]
    lines = []
    for regime in options.regimes.split(","):
        for seed in range(options.seeds):
            known = read_single(options.single, known_all) if regime == "single" else REGIMES[regime](known_all, seed)
            for name in options.methods.split(","):
                how = recipe(name)
                if known.stats().regime not in how.serves or not can_solve(how.make()):
                    continue
                for use_similar in (False, True):
                    begun = time.perf_counter()
                    fitted = crossfit(
                        train,
                        known,
                        lambda: seeded(seed, how.make),  # noqa: B023
                        classifier=classifier,
                        use_similar=use_similar,
                        seed=seed,
                        device=device,
                    )
                    seconds = time.perf_counter() - begun
                    with torch.no_grad():
                        head = fitted.head.to(device)
                        logits = torch.cat([head(part.to(device)).logits.cpu() for part in test.split(1024)])
                    f1 = metrics.precision_recall_f1(torch.sigmoid(logits), truth, 0.5)
                    line = {
                        "regime": regime,
                        "seed": seed,
                        "method": name,
                        "similar": str(fitted.similar) if use_similar else "off",
                        "mAP": round(100 * float(metrics.mean_average_precision(logits, truth)), 2),
                        "out_of_fold": round(100 * fitted.quality, 2),
                        "strength": fitted.strength,
                        "labels_per_photo": round(float((logits > 0).sum(1).float().mean()), 2),
                        "CF1": round(100 * f1.CF1, 1),
                        "OF1": round(100 * f1.OF1, 1),
                        "seconds": round(seconds, 1),
                    }
                    print(json.dumps(line), flush=True)
                    lines.append(line)
            if regime in ("all", "single"):
                break  # these labels do not depend on a seed
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
