"""Photo sets whose labels are all known, as stored features, for the benchmarks that hide labels and draw again."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import build_backbone
from halflabel.features.names import likeness_for
from halflabel.features.scoring import score_source
from halflabel.fitting.auto import choose
from halflabel.fitting.fit import Inputs, fit
from halflabel.images.sources import Features
from halflabel.images.stored_features import _read_values, describe_features
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.new_run import make_config


class Scored(NamedTuple):
    """What was known of the drawn photos, scores by models that had not seen it, and scores of all other photos."""

    scores: Scores
    known: Labels
    others: torch.Tensor  # logits
    truth_of_others: np.ndarray


class KnownSet:
    """The photos of a set: `tags` with image,tags, or one column of 1 and -1 per class; features by `embed`."""

    def __init__(self, labels: Path, features: Path, classes: int = 0) -> None:
        with labels.open() as file:
            rows = list(csv.DictReader(file))
        first = next(iter(rows[0]))
        if "tags" in rows[0]:
            given = [set(filter(None, row["tags"].split("|"))) for row in rows]
            names = sorted(set().union(*given))
            table = np.array([[1 if name in tags else -1 for name in names] for tags in given], np.int8)
        else:
            names = [name for name in rows[0] if name not in (first, "split")]
            table = np.array([[1 if row[name] == "1" else -1 for name in names] for row in rows], np.int8)
        if classes:  # the most frequent ones
            most = np.sort(np.argsort(-(table > 0).sum(0), kind="stable")[:classes])
            names, table = [names[c] for c in most], table[:, most]
        self.truth, self.classes = table, Names(names)
        self.images = Names([row[first] for row in rows])
        config = describe_features(features)["config"]
        self.backbone = build_backbone(config["backbone"])
        suffix = "" if "." in self.images[0] else ".webp"
        stored = Names([name + suffix for name in self.images])
        self.features = _read_values(stored, features, self.backbone.width(maps=False))[0].float()
        self.likeness: np.ndarray | None = None

    def use_names(self) -> None:
        """Let the fits start from the class names, which needs the extra `names`."""
        self.likeness = likeness_for(list(self.classes), self.backbone, "on")

    def table(self, rows: np.ndarray) -> Table:
        """Return all labels of some photos."""
        return Table.from_dense(self.truth[rows], self.images.take(rows), self.classes)

    def draw(self, size: int, seed: int) -> np.ndarray:
        """Return the numbers of so many random photos, ascending."""
        return np.sort(np.random.default_rng([seed, size]).permutation(len(self.truth))[:size])

    def fit(self, rows: np.ndarray, known: Labels, seed: int = 0, *, others: bool = True) -> Scored:
        """Train as `halflabel train` does, and score the photos, and all others."""
        source = Features(self.features[rows], self.images.take(rows))
        config = make_config(choose(known.training.stats), {"seed": seed, "device": "cpu"}, {})
        fitted = fit(known, Inputs(lambda: source, self.backbone, likeness=self.likeness), config)
        assert fitted.scores is not None
        rest = np.setdiff1d(np.arange(len(self.truth)), rows) if others else rows[:1]
        new = Features(self.features[rest], self.images.take(rest))
        logits = score_source(fitted.model, new, device="cpu", batch_size=512, features=False).logits
        return Scored(fitted.scores, known, logits, self.truth[rest])


def open_sets(folder: Path, voc: Path | None = None) -> dict[str, KnownSet]:
    """Return the sets by name: a folder with corel5k and ucmerced, and VOC 2012 as labels.csv beside features."""
    sets = {
        "aerial": KnownSet(folder / "ucmerced/labels.csv", folder / "ucmerced/features"),
        "corel": KnownSet(folder / "corel5k/labels.csv", folder / "corel5k/features", classes=80),
    }
    if voc is not None:
        sets["voc"] = KnownSet(voc / "labels.csv", voc / "features")
    return sets
