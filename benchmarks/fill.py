"""Precision of `halflabel fill`: VOC 2012 with 10 % of the labels known, compared with the hidden labels.

python benchmarks/fill.py --labels labels.csv --photos DIR --cache DIR [--method bn-bce] [--share 0.1] [--seeds 3]
    [--precision 0.95] [--folds 5]

`labels.csv` has the columns id, split and one per class (1 present, -1 absent, 0 only difficult objects, counted as
absent). The split `train` keeps a random share of its labels. The head on frozen EfficientNet-Lite0 features is
cross-fitted on these labels by the solver of `halflabel train`, and the thresholds use only these labels. The hidden
labels are used only for the printed table.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.features.backbones import build_backbone
from halflabel.filling.plan import FillOptions, plan_fill
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import Features
from halflabel.labels import drop
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from voc_frozen import load_features, read_labels


def measure_fill(full: Table, source: Features, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Fill once and compare with the hidden labels."""
    known = drop.apply("partial", full, seed=seed, share=args.share)
    config = Config(method=args.method, fit="linear", seed=seed, device="cpu")
    started = time.perf_counter()
    inputs = Inputs(lambda: source, build_backbone("efficientnet-lite0"))
    scores = fit(Labels.of(known), inputs, config, folds=args.folds).scores
    assert scores is not None
    trained = time.perf_counter()
    filling = plan_fill(scores, known, FillOptions(precision=args.precision, confidence=args.confidence))
    value = filling.rows().training.dense()
    ended = time.perf_counter()
    truth, before = full.dense(), known.dense()
    assert not (value[before != 0]).any(), "a known label was overwritten"
    row: dict[str, Any] = {"seed": seed, "train_s": trained - started, "decide_s": ended - trained}
    for word, sign, side in (("present", 1, filling.present), ("absent", -1, filling.absent)):
        filled = value == sign
        correct = filled & (truth == sign)
        per_class = np.array([correct[:, c].sum() / filled[:, c].sum() for c in np.flatnonzero(filled.sum(0) >= 20)])
        row[word] = {
            "precision": float(correct.sum() / max(filled.sum(), 1)),
            "filled": float(correct.sum() / ((before == 0) & (truth == sign)).sum()),
            "estimate": side.precision,
            "bound": side.bound,
            "worst_class": float(per_class.min()) if len(per_class) else float("nan"),
            "classes": int((filled.sum(0) > 0).sum()),
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
    args = parser.parse_args()
    full = read_labels(args.labels, "train")
    cached = load_features(full, args.photos, args.cache, False)
    source = Features(torch.from_numpy(np.array(cached.values)).float(), cached.names)
    print(
        f"{args.method}, {args.share:g} known, requested precision {args.precision:g} at confidence {args.confidence:g}"
    )
    print("seed  sign     precision  filled  estimated  bound   worst class  classes  train s  decide s")
    rows = []
    for seed in range(args.seeds):
        row = measure_fill(full, source, seed, args)
        rows.append(row)
        for word in ("present", "absent"):
            side = row[word]
            print(
                f"{seed:4}  {word:8} {side['precision']:8.4f} {side['filled']:8.3f} {side['estimate']:9.4f} "
                f"{side['bound']:8.4f} {side['worst_class']:10.3f} {side['classes']:8} {row['train_s']:9.1f} "
                f"{row['decide_s']:9.2f}",
                flush=True,
            )
        for warning in row["warnings"]:
            print(f"      warning: {warning}")
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"arguments": vars(args), "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
