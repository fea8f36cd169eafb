"""Rows of systems and of linear fits: what a method's own head is worth does not depend on the door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import halflabel
from halflabel.comparison.compare import compare
from halflabel.comparison.result import Trials
from halflabel.features.heads import Head, NormalisedHead, pool
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.methods import base as registry
from halflabel.methods.base import REGIMES, Method, method, recipes
from halflabel.methods.parts.losses import BCE, over_known
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.types import Output

FEATURES = 12


class TwoLayers(Head):
    """A head of a user, which says nothing about where it begins."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(channels, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, features: Tensor) -> Output:
        return Output(self.layers(pool(features)), pool(features))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    recipes()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @method(serves=REGIMES, paper="")
    def own_head() -> Method:
        """Two layers."""
        return Method(BCE(), reduce=over_known, head=TwoLayers)

    return "own-head"


class Data:
    """Features of 450 images, far from 0 and small; the third class is present where two numbers have one sign."""

    def __init__(self, folder: Path) -> None:
        draw = np.random.default_rng(0)
        numbers = draw.normal(size=(450, FEATURES))
        scores = np.stack([numbers[:, 0], numbers[:, 1], 2 * numbers[:, 2] * numbers[:, 3]], 1)
        labels = np.where(scores + 0.3 * draw.normal(size=scores.shape) > 0.5, 1, -1)
        names = [f"{number:03}" for number in range(450)]
        self.table = Table.from_dense(labels, names, ["one", "two", "both"])
        self.inside, self.outside = self.table.subset(np.arange(300)), self.table.subset(np.arange(300, 450))
        self.folder, self.vectors = folder, (3 + 0.1 * numbers).astype(np.float32)
        lists = pa.array(self.vectors.tolist(), pa.list_(pa.float32()))
        pq.write_table(pa.table({"image": names, "features": lists}), folder / "0.parquet")


@pytest.fixture
def data(tmp_path: Path) -> Data:
    (tmp_path / "features").mkdir()
    return Data(tmp_path / "features")


def run(data: Data, own: str, out: Path, fit: str, **options: Any) -> Trials:
    config = Config(fit=fit, backbone=f"features-{FEATURES}", epochs=30, device="cpu")  # type: ignore[arg-type]
    methods = options.pop("methods", ["bce", own])
    return compare(
        data.inside, data.folder, methods, out=out, seeds=1, search="none", config=config, test=data.outside, **options
    )


def gain(trials: Trials, own: str) -> float:
    """The lead of the user's head over its base, in points."""
    (panel,) = (rows for rows in trials.panels if any(row.method == own for row in rows))
    by_method = {row.method.partition(":")[0]: row.mAP for row in panel}
    return 100 * (by_method[own] - by_method["bce"])


def test_a_head_of_ones_own_has_the_same_verdict_by_every_door(data: Data, own: str, tmp_path: Path) -> None:
    gains = {fit: gain(run(data, own, tmp_path / fit, fit), own) for fit in ("auto", "batches")}
    quality = {}
    for name in ("bce", own):
        epochs = {"epochs": 30} if name == own else {}
        job = halflabel.train(data.inside, data.folder, tmp_path / name, name, device="cpu", **epochs)
        quality[name] = job.evaluate(data.outside, data.folder).overall["mAP"]
    gains["train"] = 100 * (quality[own] - quality["bce"])
    assert min(gains.values()) > 2  # far below 0 where a head begins at random, on features as they are
    assert max(gains.values()) - min(gains.values()) < 5


def test_rows_are_ranked_with_those_of_their_base(data: Data, own: str, tmp_path: Path) -> None:
    trials = run(data, own, tmp_path / "out", "auto", methods=["bce", own, "asl"], references=True)
    panels = [{row.method: (row.fit, row.role) for row in rows} for rows in trials.panels]
    assert panels == [
        {"bce": ("linear", ""), "asl": ("linear", "")},
        {own: ("batches", ""), "bce:fit=batches": ("batches", "base")},
    ]
    assert [sum(row.is_best for row in rows) for rows in trials.panels] == [1, 1]
    assert [cell.text for row in trials.rows for cell in row.cells() if cell.title == "base"].count("linear") == 2
    assert len(trials.conclusions) == 2


def test_a_head_on_its_base_is_the_same_when_it_is_opened_again(data: Data, own: str, tmp_path: Path) -> None:
    halflabel.train(data.inside, data.folder, tmp_path / "run", own, device="cpu", epochs=2)
    folder = RunFolder(tmp_path / "run")
    head, scores = Model.open(folder.folder).network.head, folder.read_scores()
    assert isinstance(head, NormalisedHead)
    assert head.similar is not None
    assert scores is not None
    vectors = torch.from_numpy(data.vectors[data.table.images.index(scores.images.array)])
    torch.testing.assert_close(head(vectors).logits, torch.from_numpy(scores.logits))
