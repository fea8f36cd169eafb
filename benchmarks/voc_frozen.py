"""Compare methods on VOC 2012: a linear head on frozen EfficientNet-Lite0 features, with a learning-rate search.

python benchmarks/voc_frozen.py --labels labels.csv --photos DIR --cache DIR [--single single_positive.csv]
    [--protocol single-positive|partial] [--methods an,em,...] [--seeds 3] [--lrs 3e-4,1e-3,3e-3] [--select clean|known]
    [--limit 1500]

`labels.csv` has the columns id, split and one per class (1 present, -1 absent, 0 only difficult objects). Training uses
the split `train` with labels hidden by the protocol; 20 % of it is held out. The learning rate and the epoch are chosen
there, by its full labels (`--select clean`, as in the single-positive literature) or by the labels that the protocol
leaves known. The test set is the split `val` with all labels. Difficult objects count as absent, as in that literature.
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
from halflabel.evaluation.evaluate import ValidationMetric
from halflabel.features.backbones import build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features, Subset, open_images
from halflabel.images.views import make_views
from halflabel.labels import drop, formats
from halflabel.labels.policy import Policy
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.system.reporter import Reporter


def read_labels(labels: Path, split: str) -> Table:
    policy = Policy(minus_one="absent", zero="absent", where={"split": split})
    return formats.read(labels, policy, format="wide").table()


def load_features(table: Table, photos: Path, cache: Path, maps: bool, copies: int = 0) -> Features:
    backbone = build_backbone("fast")
    preprocess = backbone.preprocess
    views = make_views(preprocess.size, "squash", preprocess.interpolation, preprocess.crop_pct)
    source = open_images(table.images, photos, views)

    def show(done: int, total: int) -> None:
        print(f"\rfeatures {done}/{total}", end="" if done < total else "\n", flush=True)

    return cache_features(backbone, source, cache, maps=maps, copies=copies, reporter=Reporter(show))


def in_memory(features: Features) -> Features:
    views = [features.values, *(features.strong or ())]
    plain, *strong = (torch.from_numpy(np.array(values)).float() for values in views)
    return Features(plain, features.names, strong=strong or None)


def hide_labels(full: Table, protocol: str, single: Path | None, seed: int) -> Table:
    if protocol == "all":
        return full
    if protocol == "single-positive" and single is not None:
        with open(single, newline="") as file:
            positive = {row["id"]: int(row["class_index"]) for row in csv.DictReader(file)}
        column = np.array([positive[name] for name in full.images])
        ones = np.ones(len(column), np.int8)
        return Table.from_entries(full.images, full.classes, np.arange(len(column)), column, ones)
    options = {
        "partial": {"share": 0.1},
        "noisy": {"share": 0.3},
        "corrupt": {"share": 0.3},
        "semi-supervised": {"share": 0.9},
    }.get(protocol, {})
    return drop.apply(protocol, full, seed=seed, **options)


def train_once(
    name: str, options: dict[str, object], lr: float, seed: int, known: Table, full: Table,
    train: Features, test: Features, truth: torch.Tensor, args: argparse.Namespace,
) -> tuple[float, float, int]:  # fmt: skip
    """(selection metric on the held-out images, test mAP, best epoch)."""
    method_recipe = recipe(name)
    method = method_recipe.make(**options)
    part = assign_parts(full, (0.8, 0.2), seed=seed)
    inside, outside = np.flatnonzero(part == 0), np.flatnonzero(part == 1)
    validation = (full if args.select == "clean" else known).subset(outside)
    channels = int(train.values.shape[1])
    head = seeded(seed, lambda: method.head(channels, len(full.classes)))
    model = Model(None, head)
    settings = Config(epochs=args.epochs, lr=lr, weight_decay=method_recipe.weight_decay, seed=seed, device="cpu")
    settings = replace(settings, optimizer=args.optimizer, batch_size=args.batch_size)
    fitted = fit(
        model,
        method,
        Subset(train, inside),
        known.subset(inside),
        settings,
        validation=Subset(train, outside),
        judge=ValidationMetric(torch.from_numpy(validation.dense())),
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
    parser.add_argument(
        "--copies", type=int, default=0, help="cached strong views per image, for methods with two views"
    )
    parser.add_argument("--maps", action="store_true", help="cache feature maps, for heads that score each place")
    parser.add_argument("--limit", type=int, help="use only so many photos of each split")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "voc_frozen.json")
    args = parser.parse_args()

    full, whole_test = (read_labels(args.labels, split) for split in ("train", "val"))
    if args.limit:
        full, whole_test = (table.subset(np.arange(min(args.limit, len(table)))) for table in (full, whole_test))
    train = load_features(full, args.photos, args.cache, args.maps, args.copies)
    test = load_features(whole_test, args.photos, args.cache, args.maps)
    if not args.maps:  # small enough to keep in memory
        train, test = (in_memory(features) for features in (train, test))
    truth = torch.from_numpy(whole_test.dense())
    rows = []
    print(f"{args.protocol}, {args.epochs} epochs, selection on {args.select} labels, test: {len(whole_test)} images")
    for item in args.methods.split(","):
        name, _, text = item.partition(":")
        options = recipe(name).parse(dict(pair.split("=") for pair in text.split(";") if pair))
        known = [hide_labels(full, args.protocol, args.single, seed) for seed in range(args.seeds)]
        started = time.perf_counter()
        # The learning rate is chosen with the first seed and used for the others.
        by_lr = {}
        for lr in map(float, args.lrs.split(",")):
            by_lr[lr] = train_once(name, options, lr, 0, known[0], full, train, test, truth, args)
        lr = max(by_lr, key=lambda rate: by_lr[rate][0])
        results = [by_lr[lr]]
        for seed in range(1, args.seeds):
            results.append(train_once(name, options, lr, seed, known[seed], full, train, test, truth, args))
        values = 100 * np.array([result[1] for result in results])
        seconds = (time.perf_counter() - started) / (len(by_lr) + args.seeds - 1)
        rows.append(
            {"method": item, "lr": lr, "mAP": values.mean(), "std": values.std(), "seeds": values.tolist(),
             "by_lr": {str(rate): 100 * value[1] for rate, value in by_lr.items()}, "seconds": seconds}
        )  # fmt: skip
        tried = "  ".join(f"{rate:g}: {100 * value[1]:.2f}" for rate, value in by_lr.items())
        print(
            f"{item:24} {values.mean():6.2f} ± {values.std():.2f}   lr {lr:g}   {seconds:5.1f} s   ({tried})",
            flush=True,
        )
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"protocol": vars(args) | {}, "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
