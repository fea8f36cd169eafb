"""Methods side by side on VOC 2012 photos: a linear head on frozen EfficientNet-Lite0 features, learning rate chosen.

python benchmarks/voc_frozen.py --labels labels.csv --photos DIR --cache DIR [--single single_positive.csv]
    [--protocol single-positive|partial] [--methods an,em,...] [--seeds 3] [--lrs 3e-4,1e-3,3e-3] [--select clean|known]

`labels.csv` has the columns id, split and one per class (1 present, -1 absent, 0 difficult only). Training uses the
split `train` with labels hidden by the protocol, 20 % of it held out; the learning rate and the epoch are chosen there,
on its full labels (`--select clean`, as the single-positive literature does) or on what the protocol leaves known. The
test is the split `val` with all labels. Difficult-only objects count as absent, as in that literature.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from halflabel import metrics
from halflabel.data.sources import Features, Subset
from halflabel.labels import drop, formats
from halflabel.labels.policy import Policy
from halflabel.labels.split import assign_parts
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipe, seeded
from halflabel.models.backbones import build_backbone
from halflabel.models.feature_cache import cache_features
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.runs.evaluate import ValidationMetric
from halflabel.system.reporter import Reporter
from halflabel.training.config import Config, Settings, make_views, open_images
from halflabel.training.loop import fit


def read(labels: Path, split: str) -> LabelTable:
    stated = Policy(minus_one="absent", zero="absent", where={"split": split})
    return formats.read(labels, stated, format="wide").table()


def features(table: LabelTable, photos: Path, cache: Path, maps: bool, copies: int = 0) -> Features:
    backbone = build_backbone()
    views = make_views(backbone.preprocess.size, "squash", backbone)
    source = open_images(table.images, photos, views, Config(workers=0))

    def show(done: int, total: int) -> None:
        print(f"\rfeatures {done}/{total}", end="" if done < total else "\n", flush=True)

    return cache_features(backbone, source, cache, maps=maps, copies=copies, reporter=Reporter(show))


def hide(full: LabelTable, protocol: str, single: Path | None, seed: int) -> LabelTable:
    if protocol == "all":
        return full
    if protocol == "single-positive" and single is not None:
        with open(single, newline="") as file:
            chosen = {row["id"]: int(row["class_index"]) for row in csv.DictReader(file)}
        column = np.array([chosen[name] for name in full.images])
        ones = np.ones(len(column), np.int8)
        return LabelTable.from_entries(full.images, full.classes, np.arange(len(column)), column, ones)
    options = {
        "partial": {"share": 0.1},
        "noisy": {"share": 0.3},
        "corrupt": {"share": 0.3},
        "semi-supervised": {"share": 0.9},
    }.get(protocol, {})
    return drop.apply(protocol, full, seed=seed, **options)


def train_once(
    name: str, options: dict[str, object], lr: float, seed: int, known: LabelTable, full: LabelTable,
    train: Features, test: Features, truth: torch.Tensor, asked: argparse.Namespace,
) -> tuple[float, float, int]:  # fmt: skip
    """(what the held-out part says, test mAP, best epoch)."""
    how = recipe(name)
    method = how.make(**options)
    part = assign_parts(full, (0.8, 0.2), seed=seed)
    inside, outside = np.flatnonzero(part == 0), np.flatnonzero(part == 1)
    judged = (full if asked.select == "clean" else known).subset(outside)
    channels = int(train.values.shape[1])
    head = seeded(seed, lambda: method.head(channels, len(full.classes)))
    model = Model(None, head)
    settings = Settings(epochs=asked.epochs, lr=lr, weight_decay=how.weight_decay, seed=seed, device="cpu")
    settings = replace(settings, optimizer=asked.optimizer, batch_size=asked.batch_size)
    fitted = fit(
        model,
        method,
        Subset(train, inside),
        known.subset(inside),
        settings,
        validation=Subset(train, outside),
        judge=ValidationMetric(torch.from_numpy(judged.dense())),
    )
    best = max(line["select"] for line in fitted.log)
    logits = score_source(model, test, batch_size=512).logits
    return best, metrics.mean_average_precision(logits, truth), fitted.best_epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--single", type=Path)
    parser.add_argument("--protocol", default="single-positive")
    parser.add_argument("--methods", default="an")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lrs", default="3e-4,1e-3,3e-3")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--select", choices=["clean", "known"], default="clean")
    parser.add_argument("--copies", type=int, default=0, help="cached strong views, for methods that want two views")
    parser.add_argument("--maps", action="store_true", help="cache maps, for heads that score places")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "voc_frozen.json")
    asked = parser.parse_args()

    full, whole_test = read(asked.labels, "train"), read(asked.labels, "val")
    train = features(full, asked.photos, asked.cache, asked.maps, asked.copies)
    test = features(whole_test, asked.photos, asked.cache, asked.maps)
    if not asked.maps:  # small enough to keep in memory
        train, test = (Features(torch.from_numpy(np.array(f.values)).float(), f.names) for f in (train, test))
    truth = torch.from_numpy(whole_test.dense())
    rows = []
    print(
        f"{asked.protocol}, {asked.epochs} epochs, selection on {asked.select} labels, test: {len(whole_test)} images"
    )
    for item in asked.methods.split(","):
        name, _, text = item.partition(":")
        options = recipe(name).parse(dict(pair.split("=") for pair in text.split(";") if pair))
        known = [hide(full, asked.protocol, asked.single, seed) for seed in range(asked.seeds)]
        began = time.perf_counter()
        # The learning rate is chosen with the first seed and kept for the others.
        found = {}
        for lr in map(float, asked.lrs.split(",")):
            found[lr] = train_once(name, options, lr, 0, known[0], full, train, test, truth, asked)
        lr = max(found, key=lambda rate: found[rate][0])
        results = [found[lr]]
        for seed in range(1, asked.seeds):
            results.append(train_once(name, options, lr, seed, known[seed], full, train, test, truth, asked))
        values = 100 * np.array([result[1] for result in results])
        seconds = (time.perf_counter() - began) / (len(found) + asked.seeds - 1)
        rows.append(
            {"method": item, "lr": lr, "mAP": values.mean(), "std": values.std(), "seeds": values.tolist(),
             "by_lr": {str(rate): 100 * value[1] for rate, value in found.items()}, "seconds": seconds}
        )  # fmt: skip
        tried = "  ".join(f"{rate:g}: {100 * value[1]:.2f}" for rate, value in found.items())
        print(
            f"{item:24} {values.mean():6.2f} ± {values.std():.2f}   lr {lr:g}   {seconds:5.1f} s   ({tried})",
            flush=True,
        )
    asked.out.parent.mkdir(exist_ok=True)
    asked.out.write_text(json.dumps({"protocol": vars(asked) | {}, "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
