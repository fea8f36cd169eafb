"""The demo: train methods on generated images of handwritten digits with most labels hidden."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import NamedTuple

import torch

from halflabel import metrics
from halflabel.data.datasets.digits import CLASSES, scenes
from halflabel.data.sources import Arrays
from halflabel.data.views import make_views
from halflabel.labels import drop
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.methods.base import recipes
from halflabel.models.backbones import build_backbone
from halflabel.models.feature_cache import cache_features
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.runs.train import train
from halflabel.system.files import atomic_write
from halflabel.system.format import points
from halflabel.system.reporter import SILENT, Reporter
from halflabel.training.config import Config, Settings

__all__ = ["Row", "run_demo"]

SIZE = 96  # pixels of the enlarged images: enough for the digits, and three times as fast as 160
ALL, TENTH, SINGLE = "all", "10 % of all", "one positive each"

# One method of each kind; `every_method` trains the others too.
SELECTION = ("an", "bce", "bn-bce", "wan", "asl", "em", "em-apl", "role", "rml", "gr")


class Row(NamedTuple):
    """One row of the table; `gap` is the closed share of the gap in mAP between `an` and full labels."""

    known: str
    method: str
    mAP: float
    gap: float | None
    seconds: float


def run_demo(
    out: Path,
    *,
    images: int = 1500,
    every_method: bool = False,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> list[Row]:
    """Generate images, hide labels, train the methods that suit them, and evaluate on images of other digits."""
    reporter.message(
        f"Making {images} training scenes and {images // 2} test scenes from scikit-learn's handwritten digits"
    )
    train_scenes, test_scenes = scenes(images, seed=seed), scenes(images // 2, seed=seed, split="test")
    truth = LabelTable.from_dense(train_scenes.labels, train_scenes.names, CLASSES)

    reporter.message("Computing the features of EfficientNet-Lite0 once: every method trains its head on them")
    backbone = build_backbone()
    preprocess = backbone.preprocess
    views = make_views(SIZE, "squash", preprocess.interpolation, preprocess.crop_pct)
    source = Arrays(test_scenes.images, Names(test_scenes.names), views)
    test = cache_features(backbone, source, out / "cache", reporter=reporter)
    test_labels = torch.from_numpy(test_scenes.labels)

    def measure(known: str, table: LabelTable, method: str) -> Row:
        started = time.perf_counter()
        run = RunFolder.create(out / f"{known.replace(' ', '-').replace('%', 'percent')}-{method}", force=True)
        recipe = recipes()[method]
        settings = Settings(epochs=20, lr=recipe.lr, weight_decay=recipe.weight_decay, seed=seed)
        config = Config(method=method, size=SIZE, held_out=0, settings=settings)
        train(table, train_scenes.images, config, run, cache=out / "cache", reporter=reporter)
        logits = score_source(Model(None, Predictor.from_run(run).model.head), test).logits
        value = metrics.mean_average_precision(logits, test_labels)
        row = Row(known, method, value, None, time.perf_counter() - started)
        reporter.message(f"  {known}, {method}: test mAP {points(value)}")
        return row

    reporter.message("Training with all labels known (the oracle), then with most of them hidden")
    oracle = measure(ALL, truth, "bce")
    rows = [oracle]
    for known, table in (
        (TENTH, drop.partial(truth, 0.1, seed=seed)),
        (SINGLE, drop.single_positive(truth, seed=seed)),
    ):
        regime = table.stats().regime
        suitable = [
            name
            for name, recipe in recipes().items()
            if regime in recipe.serves and (every_method or name in SELECTION)
        ]
        measured = [measure(known, table, name) for name in suitable]
        base = next(row.mAP for row in measured if row.method == "an")
        rows += [row._replace(gap=(row.mAP - base) / (oracle.mAP - base)) for row in measured]
    with atomic_write(out / "demo.csv") as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    return rows
