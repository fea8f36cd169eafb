"""How true `halflabel fill` is: VOC 2012 with 10 % of the labels known, filled at a stated precision, against the rest.

python benchmarks/fill.py --labels labels.csv --photos DIR --cache DIR [--method bn-bce] [--share 0.1] [--seeds 3]
    [--precision 0.95] [--folds 5]

`labels.csv` has the columns id, split and one per class (1 present, -1 absent, 0 difficult only, taken for absent). The
split `train` keeps a random share of its labels. The head on frozen EfficientNet-Lite0 features is cross-fitted on
these, and thresholds come from them alone; the hidden labels serve for the table that is printed and nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.data.sources import Features
from halflabel.fill.plan import plan_fill
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe
from halflabel.runs.crossfit import cross_fit
from halflabel.training.config import Config, Settings
from voc_frozen import features, read


def measure(full: LabelTable, source: Features, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Fill once, and compare with the labels that were hidden."""
    known = drop.apply("partial", full, seed=seed, share=asked.share)
    how = recipe(asked.method)
    settings = Settings(epochs=20, lr=how.lr, weight_decay=how.weight_decay, seed=seed, device="cpu")
    began = time.perf_counter()
    scores = cross_fit(source, known, Config(method=asked.method, settings=settings), folds=asked.folds)
    trained = time.perf_counter()
    filling = plan_fill(scores, known, precision=asked.precision, confidence=asked.confidence)
    value = filling.rows().resolve().dense()
    ended = time.perf_counter()
    truth, before = full.dense(), known.dense()
    assert not (value[before != 0]).any(), "a known label was overwritten"
    row: dict[str, Any] = {"seed": seed, "train_s": trained - began, "decide_s": ended - trained}
    for word, sign, side in (("present", 1, filling.present), ("absent", -1, filling.absent)):
        mine = value == sign
        right = mine & (truth == sign)
        per_class = np.array([right[:, c].sum() / mine[:, c].sum() for c in np.flatnonzero(mine.sum(0) >= 20)])
        row[word] = {
            "precision": float(right.sum() / max(mine.sum(), 1)),
            "filled": float(right.sum() / ((before == 0) & (truth == sign)).sum()),
            "estimate": side.precision,
            "bound": side.bound,
            "worst_class": float(per_class.min()) if len(per_class) else float("nan"),
            "classes": int((mine.sum(0) > 0).sum()),
        }
    row["warnings"] = list(filling.warnings)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--method", default="bn-bce")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", type=float, default=0.95)
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "fill.json")
    asked = parser.parse_args()
    full = read(asked.labels, "train")
    cached = features(full, asked.photos, asked.cache, False)
    source = Features(torch.from_numpy(np.array(cached.values)).float(), cached.names)
    print(f"{asked.method}, {asked.share:g} known, asked for {asked.precision:g} at confidence {asked.confidence:g}")
    print("seed  sign     precision  filled  estimated  bound   worst class  classes  train s  decide s")
    rows = []
    for seed in range(asked.seeds):
        row = measure(full, source, seed, asked)
        rows.append(row)
        for word in ("present", "absent"):
            found = row[word]
            print(
                f"{seed:4}  {word:8} {found['precision']:8.4f} {found['filled']:8.3f} {found['estimate']:9.4f} "
                f"{found['bound']:8.4f} {found['worst_class']:10.3f} {found['classes']:8} {row['train_s']:9.1f} "
                f"{row['decide_s']:9.2f}",
                flush=True,
            )
        for warning in row["warnings"]:
            print(f"      warning: {warning}")
    asked.out.parent.mkdir(exist_ok=True)
    asked.out.write_text(json.dumps({"asked": vars(asked), "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
