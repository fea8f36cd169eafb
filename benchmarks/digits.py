"""Methods side by side on digit scenes, over seeds, with the learning rate chosen per method.

python benchmarks/digits.py [--protocol single-positive|partial|corrupt] [--methods an,em,...] [--seeds 3] [--network]

A head on frozen EfficientNet-Lite0 maps (96 px, 3 × 3 places; two cached strong views for methods that want them), or
with --network a small convolutional network trained from scratch on the scenes themselves (64 px; strong views do not
mirror digits). The rate is the one with the best mAP on 500 further scenes with all
labels, chosen with the first seed; the test scenes use other handwriting. Seeds change scenes, what is hidden and the
head's first weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from halflabel import metrics
from halflabel.features.backbones import build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.device_views import DeviceViews
from halflabel.images.sources import Arrays, Source, Subset
from halflabel.images.views import Plain, Strong, Weak, make_views
from halflabel.labels import drop
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.system.memory import keep_freed_memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "papers" / "datasets"))
from digit_scenes import scenes

SIZE = 96  # pixels of the enlarged scenes: enough for the digits, and three times as fast as 160
OPTIONS = {
    "partial": {"share": 0.1},
    "corrupt": {"share": 0.3},
    "noisy": {"share": 0.3},
    "semi-supervised": {"share": 0.9},
}


def load(images: int, seed: int, cache: Path, network: bool) -> tuple[Table, Source, Source, torch.Tensor]:
    made, test = scenes(images + 500, seed=seed), scenes(1000, seed=seed, split="test")
    table, truth = Table.from_dense(made.labels, made.names, made.classes), torch.from_numpy(test.labels)
    if network:
        size = made.images.shape[-1]
        views = {"plain": Plain(size), "weak": Weak(size, least=1.0, flip=0.0), "strong": Strong(size, flip=0.0)}
        kept = [
            DeviceViews(Arrays(s.images, Names(s.names), views), s.images.device, held=s.images) for s in (made, test)
        ]
        return table, kept[0], kept[1], truth
    backbone = build_backbone("fast")
    usual = make_views(SIZE, "squash", backbone.preprocess.interpolation, backbone.preprocess.crop_pct) | {
        "strong": Strong(SIZE, flip=0.0)
    }
    found = [
        cache_features(backbone, Arrays(s.images, Names(s.names), usual), cache / str(seed), maps=True, copies=copies)
        for s, copies in ((made, 2), (test, 0))
    ]
    return table, found[0], found[1], truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", default="single-positive")
    parser.add_argument("--methods", default="an,wan,em,em-apl:apl_to=20,role")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lrs", default="3e-4,1e-3,3e-3,1e-2")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "halflabel-digits")
    asked = parser.parse_args()
    keep_freed_memory()
    data = [load(asked.images, seed, asked.cache, asked.network) for seed in range(asked.seeds)]

    def run(item: str, lr: float, seed: int) -> tuple[float, float]:
        """(mAP on the scenes the rate is chosen by, test mAP)."""
        name, _, text = item.partition(":")
        how = recipe(name)
        method = how.make(**how.parse(dict(pair.split("=") for pair in text.split(";") if pair)))
        full, source, test, truth = data[seed]
        train = full.subset(np.arange(asked.images))
        if asked.protocol != "all":
            train = drop.apply(asked.protocol, train, seed=seed, **OPTIONS.get(asked.protocol, {}))
        backbone = build_backbone("tiny") if asked.network else None
        head = seeded(seed, lambda: method.head(backbone.channels if backbone else 1280, len(full.classes)))
        model = Model(backbone, head)
        inside = Subset(source, np.arange(asked.images))
        settings = Config(epochs=asked.epochs, lr=lr, weight_decay=how.weight_decay, seed=seed, backbone_lr=1.0)
        settings = replace(settings, device=asked.device, batch_size=asked.batch_size)
        fit(model, method, inside, train, settings)
        more = Subset(source, np.arange(asked.images, asked.images + 500))
        chosen_by = metrics.mean_average_precision(
            score_source(model, more, device=asked.device).logits, full.rows(np.arange(500) + asked.images)
        )
        return chosen_by, metrics.mean_average_precision(score_source(model, test, device=asked.device).logits, truth)

    rows = []
    print(f"{asked.protocol}, {asked.images} scenes, {asked.seeds} seeds")
    for item in asked.methods.split(","):
        found = {lr: run(item, lr, 0) for lr in map(float, asked.lrs.split(","))}
        lr = max(found, key=lambda rate: found[rate][0])
        values = 100 * np.array([found[lr][1], *(run(item, lr, seed)[1] for seed in range(1, asked.seeds))])
        rows.append({"method": item, "lr": lr, "mAP": values.mean(), "seeds": values.tolist()})
        each = "  ".join(f"{value:.2f}" for value in values)
        print(f"{item:24} {values.mean():6.2f}   ({each})   lr {lr:g}", flush=True)
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / f"digits-{asked.protocol}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
