"""`group-consistency` on the frozen recipe, VOC 2012, which has no groups: three kinds of made-up ones.

    python benchmarks/group_consistency.py FEATURES.npy LABELS.csv SINGLE_POSITIVE.csv --classifier FILE.npz
        --other-features OTHER.npy [--regimes single,2of20] [--seeds 3]

Groups have three training photos each: `same`: photos with the same classes (an oracle: groups that always agree);
`alike`: the nearest in other features (Lite2), as photos of one burst look alike; `random`. Folds keep groups together.
`none` is the method without trust in groups, with the same folds as `alike`.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from halflabel import metrics
from halflabel.fitting.crossfit import crossfit
from halflabel.methods.base import Method, recipe
from strong_base import Bench, make_parser

SIZE = 3


def in_order(order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the group of each photo (N,): the first three of an order, the next three, …"""
    group = np.empty(len(order), np.int64)
    group[order] = np.arange(len(order)) // SIZE
    return group


def alike(features: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return groups of a photo and its two nearest among those that have no group yet."""
    unit = torch.nn.functional.normalize(features - features.mean(0), dim=1)
    group, free = np.full(len(unit), -1), torch.ones(len(unit), dtype=torch.bool)
    for number, row in enumerate(unit):
        if bool(free[number]):
            members = (unit @ row).masked_fill(~free, -2).topk(min(SIZE, int(free.sum()))).indices
            group[members.numpy()], free[members] = number, False
    return group


def main() -> None:
    parser = make_parser(__doc__, regimes="single,2of20", seeds=3)
    parser.add_argument("--other-features", type=Path, required=True)
    parser.add_argument("--kinds", default="none,same,alike,random")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options)
    other = Bench(argparse.Namespace(**{**vars(options), "features": options.other_features, "classifier": None}))
    near = alike(other.train)
    truth = bench.known.dense()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "groups.csv"
        for seed in range(options.seeds):
            random = np.random.default_rng(seed).permutation(len(truth))
            by_classes = random[np.lexsort(truth[random].T)]
            kinds = {"none": near, "same": in_order(by_classes), "alike": near, "random": in_order(random)}
            for regime in options.regimes.split(","):
                known = bench.labels(regime, seed)
                for kind in options.kinds.split(","):
                    groups = kinds[kind]
                    with file.open("w", newline="") as rows:
                        writer = csv.writer(rows)
                        writer.writerows([("image", "group"), *zip(known.images, groups, strict=True)])

                    def make(trust: float | None = 0.0 if kind == "none" else None) -> Method:
                        method = recipe("group-consistency").make(**({} if trust is None else {"trust": trust}))
                        method.relabel.group = str(file)
                        return method

                    fitted = crossfit(
                        bench.train,
                        known,
                        make,
                        classifier=bench.classifier,
                        use_similar=bench.use_similar,
                        groups=groups.tolist(),
                        seed=seed,
                    )
                    with torch.no_grad():
                        value = 100 * metrics.mean_average_precision(fitted.head(bench.test).logits, bench.truth)
                    line = {"regime": regime, "seed": seed, "groups": kind, "mAP": round(value, 2)}
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
