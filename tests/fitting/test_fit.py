"""`fit`: the linear start of systems in batches, the choice of the learning rate, and the epoch that is kept."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

from halflabel import metrics
from halflabel.features.heads import NormalisedHead
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Fit, Inputs, Watch, fit
from halflabel.images.sources import Features
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.system.reporter import Reporter

IMAGES, CLASSES = 160, 4


def make_maps() -> tuple[np.ndarray, np.ndarray]:
    """Maps of 3 × 3 places whose means tell the labels, and these labels."""
    draw = np.random.default_rng(0)
    labels = np.where(draw.random((IMAGES, CLASSES)) < 0.4, 1, -1)
    vectors = (labels > 0) @ draw.normal(size=(CLASSES, 24)) + 0.5 * draw.normal(size=(IMAGES, 24))
    maps = vectors[:, :, None, None] + draw.normal(size=(IMAGES, 24, 3, 3))
    return maps.astype(np.float32), labels


def go(method: str, *, messages: list[str] | None = None, epochs: int = 1, **config: Any) -> tuple[Fit, float]:
    """Fit to two fifths of the labels; the quality is that of all images on the hidden labels."""
    maps, labels = make_maps()
    is_map = recipe(method).make().head(24, CLASSES).needs_maps
    values = maps if is_map else maps.mean((2, 3))
    table = Table.from_dense(np.where(np.random.default_rng(1).random(labels.shape) < 0.4, labels, 0))
    source = Features(values, table.images, strong=[values])
    lr = config.pop("lr", 1e-3)
    settings = Config(epochs=epochs, lr=lr, device="cpu", keep=config.pop("keep", "best"))
    watch = Watch(Reporter(message=(messages if messages is not None else []).append))
    options = dataclasses.replace(settings, method=method, **config)
    fitted = fit(Labels.of(table), Inputs(lambda: source, channels=24), options, watch=watch)
    logits = score_source(fitted.model, source, device="cpu").logits
    return fitted, metrics.mean_average_precision(logits, torch.from_numpy(labels))


@pytest.mark.parametrize("method", ["plcl", "srcr", "imcl", "mean-teacher", "boostlu", "ml-decoder", "cnn-rnn"])
@pytest.mark.filterwarnings("ignore:.* never starts in")
def test_every_head_begins_with_the_linear_fit(method: str) -> None:
    assert go(method, lr=1e-5)[1] > 0.85 > go(method, lr=1e-5, linear_start=False)[1]


def test_similar_images_count_only_after_training() -> None:
    fitted = go("mean-teacher")[0]
    assert isinstance(fitted.model.head, NormalisedHead)
    assert fitted.model.head.similar is not None
    assert fitted.epochs is not None
    assert not any("similar" in name for name in fitted.epochs.weights)
    assert go("mean-teacher", similar=False)[0].model.head.similar is None


def test_a_rate_between_two_others_is_chosen() -> None:
    messages: list[str] = []
    go("mean-teacher", lr=1e4, choose_lr=True, messages=messages)
    (line,) = (line for line in messages if line.startswith("learning rate"))
    chosen, *tried = [
        float(rate) for rate in re.findall(r"rate ([\d.e+]+),|([\d.e+]+) →", line) for rate in rate if rate
    ]
    assert min(tried) < chosen < max(tried)


def test_the_last_epoch_is_kept_on_request_and_reported() -> None:
    messages: list[str] = []
    best = go("mean-teacher", epochs=4, lr=1.0)[0].epochs
    last = go("mean-teacher", epochs=4, lr=1.0, keep="last", messages=messages)[0].epochs
    assert best is not None
    assert last is not None
    assert last.best_epoch == 4 > best.best_epoch
    assert any("epoch 4 of 4" in line for line in messages)


def test_a_part_that_begins_after_the_kept_epoch_is_reported() -> None:
    messages: list[str] = []
    for keep in ("best", "last"):
        fitted = go("imcl", epochs=10, lr=1.0, keep=keep, messages=messages)[0].epochs
        assert fitted is not None
        assert (fitted.best_epoch < 6) == (keep == "best")
    assert sum(line.startswith("Warning: smoothness begins with epoch 6") for line in messages) == 1
