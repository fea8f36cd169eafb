"""Wrong labels: how fast each method loses accuracy when a growing share of the images have another image's labels.

    python benchmarks/noise.py [--features FILE.npz] [--shares 0 0.1 0.2 0.3 0.4 0.5] [--methods bce warp rml]

The protocol of Cevikalp 2019, §3.3, as `halflabel.labels.drop.corrupt` reads it: label rows change places among a
random subset of the training images, which keeps every class count, and the subset at 10 % is contained in that at 20
%. Test labels stay true. A linear head on frozen features, each method with its own default rate, no tuning on the test
set and the weights of the last epoch. Measures are those of the paper: precision, recall and F1 of the three highest
scores per class (CP, CR, CF1) and overall (OP, OR, OF1), and mAP; the mean and standard deviation over seeds, which
change the choice of wrong labels and the order of training.

By default on scenes of handwritten digits, of which EfficientNet-Lite0 computes the features; or on given arrays:
FILE.npz with `features` (N, D), `labels` (N, C) in {−1, 0, +1} and the same of the test set, `test_features` and
`test_labels`. Prints a table and writes benchmarks/out/noise.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from halflabel import metrics
from halflabel.features.heads import Linear, Model
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Arrays, Features
from halflabel.labels import drop
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded

OUT = Path(__file__).parent / "out" / "noise.json"
MEASURES = ("CP", "CR", "CF1", "OP", "OR", "OF1", "mAP")


class Data(NamedTuple):
    """Training features and true labels, and the test set."""

    train: Features
    table: Table
    test: Features
    test_labels: np.ndarray
    name: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help="arrays to use instead of the digit scenes")
    parser.add_argument("--images", type=int, default=1_500, help="digit scenes to train on; half as many to test on")
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.1, 0.2, 0.3, 0.4, 0.5])
    parser.add_argument("--methods", nargs="+", default=["bce", "warp", "rml"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()

    started = time.perf_counter()
    data = given(options.features) if options.features else digits(options.images, options.out.parent / "cache")
    print(f"{data.name}; {options.epochs} epochs, {options.seeds} seeds, in percent\n")
    print(f"{'wrong':>6}  {'method':10}" + "".join(f"{name:>14}" for name in MEASURES))
    rows = []
    for share in options.shares:
        for method in options.methods:
            runs = [measure(data, share, method, options.epochs, seed) for seed in range(options.seeds)]
            values = {name: [run[name] for run in runs] for name in MEASURES}
            cells = "".join(f"{100 * np.mean(v):8.1f} ± {100 * np.std(v):3.1f}" for v in values.values())
            print(f"{share:6.0%}  {method:10}{cells}", flush=True)
            rows.append({"share": share, "method": method, **values})
    result: dict[str, Any] = {
        "data": data.name,
        "protocol": "drop.corrupt; linear head; last epoch; top 3 and mAP on true test labels; one value per seed",
        "epochs": options.epochs,
        "seconds": time.perf_counter() - started,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written: {options.out}")


def measure(data: Data, share: float, method: str, epochs: int, seed: int) -> dict[str, float]:
    """Train on labels of which a share is wrong; measure on true ones."""
    table = drop.corrupt(data.table, share, seed=seed)
    chosen = recipe(method)
    chosen.check_regime(table.stats.regime)
    settings = Config(epochs=epochs, lr=chosen.lr, weight_decay=chosen.weight_decay, seed=seed, device="cpu")
    head = seeded(seed, partial(Linear, data.train.values.shape[1], len(table.classes)))
    model = Model(None, head)
    fit(model, chosen.make(), data.train, table, settings)
    logits = score_source(model, data.test).logits
    top = metrics.precision_recall_f1(logits, data.test_labels, top_k=3)
    found = {name: float(getattr(top, name)) for name in MEASURES if name != "mAP"}
    return {**found, "mAP": metrics.mean_average_precision(logits, data.test_labels)}


def digits(images: int, cache: Path) -> Data:
    """Features of digit scenes, computed once."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "papers" / "datasets"))
    from digit_scenes import CLASSES, scenes

    from halflabel.features.backbones import build_backbone
    from halflabel.features.feature_cache import cache_features
    from halflabel.images.views import make_views

    backbone = build_backbone("fast")
    made, other = scenes(images), scenes(max(images // 2, 1), split="test")
    preprocess = backbone.preprocess
    views = make_views(96, "squash", preprocess.interpolation, preprocess.crop_pct)
    train, test = (cache_features(backbone, Arrays(x.images, Names(x.names), views), cache) for x in (made, other))
    table = Table.from_dense(made.labels, made.names, CLASSES)
    return Data(train, table, test, other.labels, f"digit scenes, {images} to train and {len(other.names)} to test")


def given(path: Path) -> Data:
    """The arrays of a file."""
    with np.load(path) as arrays:
        features, labels = arrays["features"], arrays["labels"]
        test_features, test_labels = arrays["test_features"], arrays["test_labels"]
    table = Table.from_dense(labels)
    test = Features(torch.from_numpy(test_features), Names.numbered(len(test_features)))
    name = f"{path.name}, {len(labels)} to train and {len(test_labels)} to test"
    return Data(Features(torch.from_numpy(features), table.images), table, test, test_labels, name)


if __name__ == "__main__":
    main()
