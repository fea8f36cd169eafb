"""The semantic methods from image files to a run, and back from it without the labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from halflabel.features.heads import Model as Network
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

SMALL = {"vector_size": 4}
HEAD = {**SMALL, "width": 8, "rank": 4}
LATER = {**HEAD, "warm": 1, "bank": 4}
OPTIONS = {"gcn-ml": {**SMALL, "hidden": 8}, "ssgrl": HEAD} | dict.fromkeys(("sst", "hst", "sarb", "sarb*"), LATER)
each_method = pytest.mark.parametrize("name", OPTIONS)


def paint(folder: Path, n: int = 16) -> Table:
    """Pictures whose red, green and blue are bright or not, a third of the labels unknown."""
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], size=(n, 3))
    pictures = np.clip(128 + 80 * labels[:, None, None] + rng.normal(0, 40, (n, 32, 32, 3)), 0, 255).astype(np.uint8)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number:02d}.png")
    hidden = labels * (rng.random(labels.shape) < 0.7)
    return Table.from_dense(hidden, [f"{i:02d}.png" for i in range(n)], ["red", "green", "blue"])


@each_method
def test_a_trained_run_is_loaded_with_vectors_and_graph(name: str, tmp_path: Path) -> None:
    table = paint(tmp_path)
    config = Config(
        method=name,
        options=OPTIONS[name],
        backbone="tiny",
        size=32,
        tune="all",
        held_out=0.25,
        epochs=3,
        batch_size=8,
        lr=0.01,
        device="cpu",
    )
    run = RunFolder(tmp_path / "run")
    evaluation = train(table, tmp_path, config, run)
    predictor = Model.open(run)
    head = predictor.network.head
    assert bool(head.vectors.any())  # as it was told in training
    assert bool((head.graph != torch.eye(3)).any())
    loaded_evaluation = predictor.evaluate(table.subset(np.flatnonzero(run.split_of(table.images))), tmp_path)
    assert loaded_evaluation.overall["mAP"] == pytest.approx(evaluation.overall["mAP"])


def blocks(images: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Maps of 3 × 3 places, each label present shown in one of them by features of its own; labels come in pairs."""
    rng = np.random.default_rng(seed)
    kinds = rng.random((images, 2)) < 0.4
    labels = np.where(np.repeat(kinds, 2, 1), 1, -1)
    maps = rng.normal(0, 0.3, (images, 8, 3, 3))
    for image, label in zip(*np.nonzero(labels > 0), strict=True):
        maps[image, 2 * label : 2 * label + 2, *rng.integers(0, 3, 2)] += 2
    return torch.from_numpy(maps).float(), labels


@each_method
def test_unseen_images_are_ranked_well(name: str) -> None:
    """mAP well above chance (0.4) on images it has not seen, from a third of the labels."""
    from halflabel.evaluation.ranking import mean_average_precision

    maps, labels = blocks(160, 0)
    known = labels * (np.random.default_rng(2).random(labels.shape) < 0.35)
    table = Table.from_dense(known)
    method = recipe(name).make(**{**OPTIONS[name], **({"warm": 6} if "warm" in OPTIONS[name] else {})})
    model = Network(None, seeded(0, lambda: method.head(8, 4)))
    fit(model, method, Features(maps, table.images), table, Config(epochs=12, batch_size=16, lr=0.01, device="cpu"))
    test_maps, truth = blocks(160, 1)
    logits = score_source(model, Features(test_maps, table.images)).logits
    assert mean_average_precision(logits, torch.from_numpy(truth)) > 0.8
