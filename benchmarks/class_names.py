"""What class names add beside labels: test mAP of what `train` fits, with and without names.

python benchmarks/class_names.py FEATURES LABELS.csv [--backbone efficientnet-lite2] [--images 300,1000,0]
    [--protocols partial,single-positive,all] [--draws 5] [--method imcl]

FEATURES is a folder of `halflabel embed`. Labels are complete; without a column `split`, of which `train` is trained
on, 30 % of the images are the test. A draw takes other images and hides other labels, and both columns have the same
draws; `partial` leaves a tenth, 0 images are all of them. Needs the extra `names`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from halflabel import metrics
from halflabel.features.backbones import build_backbone
from halflabel.features.embed import checked_features
from halflabel.features.names import likeness_for
from halflabel.fitting.assembly import pooled_features
from halflabel.fitting.auto import choose
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import Features
from halflabel.images.stored_features import StoredFeatures
from halflabel.labels import drop, formats
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy
from halflabel.labels.table import Table
from halflabel.runs.new_run import make_config


def read(labels: Path) -> tuple[Table, Table]:
    """Return all labels of the images to train on, and of the test images."""
    fields = {"minus_one": "absent", "zero": "absent"}
    if "tags" in labels.read_text().partition("\n")[0]:
        fields = {"unlisted": "absent"}
    if "split" not in labels.read_text().partition("\n")[0]:
        table = formats.read(labels, Policy(**fields)).table()
        order = np.random.default_rng(0).permutation(len(table))
        return table.subset(order[int(0.3 * len(table)) :]), table.subset(order[: int(0.3 * len(table))])
    parts = ("train", next(part for part in ("val", "test") if f",{part}," in labels.read_text()))
    train, test = (formats.read(labels, Policy(**fields, where={"split": part})).table() for part in parts)
    return train, test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--backbone", default="efficientnet-lite2")
    parser.add_argument("--images", default="300,1000,0")
    parser.add_argument("--protocols", default="partial,single-positive,all")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--method", help="by default that of --method auto")
    args = parser.parse_args()
    full, test = read(args.labels)
    names = [name for name in full.classes if name in set(test.classes)]
    full, test = (table.subset(classes=[list(table.classes).index(name) for name in names]) for table in (full, test))
    backbone, truth = build_backbone(args.backbone), torch.from_numpy(test.dense())
    views = Config(backbone=args.backbone).views(backbone)
    values, held = (
        pooled_features(checked_features(StoredFeatures(table.images, args.features, views), backbone))
        for table in (full, test)
    )
    likeness = likeness_for(names, backbone, "on")
    for images in map(int, args.images.split(",")):
        for protocol in args.protocols.split(","):
            results, seconds = [], []
            for seed in range(args.draws):
                rows = np.random.default_rng(seed).permutation(len(full))[: images or len(full)]
                table = full.subset(rows)
                options = {"partial": {"share": 0.1}}.get(protocol, {})
                table = table if protocol == "all" else drop.apply(protocol, table, seed=seed, **options)
                config = make_config(choose(table.stats, method=args.method), {"backbone": args.backbone}, {})
                features = Features(values[torch.from_numpy(rows)].float(), table.images)
                for each in (None, likeness):
                    begun = time.process_time()
                    inputs = Inputs(lambda features=features: features, backbone, likeness=each)
                    head = fit(Labels.of(table), inputs, config).model.head
                    seconds.append(time.process_time() - begun)
                    with torch.no_grad():
                        logits = torch.cat([head(part.float()).logits for part in held.split(1024)])
                    results.append(100 * metrics.mean_average_precision(logits, truth))
            without, with_names = np.reshape(results, (-1, 2)).T
            gains, cpu = with_names - without, np.reshape(seconds, (-1, 2)).mean(0)
            print(
                f"{len(rows):5} {protocol:15} {config.method:10} {without.mean():.1f} → {with_names.mean():.1f}  "
                f"gain {gains.mean():+.2f} (least {gains.min():+.2f})  CPU {cpu[0]:.1f} → {cpu[1]:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
