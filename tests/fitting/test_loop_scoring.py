"""What the training loop scores and reports: sweeps, views, dropout passes, callbacks and the log."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loop_examples import PLAIN, C, Counting, N, assert_same, bce, data, linear, planned, small_pictures
from torch import Tensor

from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Head, Linear, Model
from halflabel.features.scoring import score_source
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features, Subset
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Method, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Ignore
from halflabel.types import Batch, Sweep, Targets


class Sweeper(Ignore):
    """Asks for sweeps after epochs 1 and 3, and stores them."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps: list[tuple[int, Sweep]] = []
        self.started: list[Table] = []
        self.register_buffer("kept", torch.zeros(N, C))

    def start(self, table: Table) -> None:
        self.started.append(table)

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        assert not logits.requires_grad
        pos, neg = super().forward(batch, logits, epoch)
        # Kept scores are multiplied with ones that have a gradient: what a sweep gives must stand that.
        return Targets(pos * (1 + self.kept[batch.index].sigmoid()), neg)  # type: ignore[index]

    def wants_sweep(self, epoch: int) -> bool:
        return epoch in (1, 3)

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        self.sweeps.append((epoch, sweep))
        self.kept = torch.nan_to_num(sweep.logits)
        return {"swept": float(len(self.sweeps))}


def test_a_sweep_sees_every_image_in_the_order_of_the_table() -> None:
    source, table = data()
    relabel = Sweeper()
    bad = Features(source.values, table.images, bad=[7])
    model = linear(dropout=0.5)
    fitted = fit(model, Method(BCE(), relabel), bad, table, replace(PLAIN, epochs=4))
    assert relabel.started == [table]
    assert [epoch for epoch, _ in relabel.sweeps] == [1, 3]
    assert [line.get("swept") for line in fitted.log] == [1.0, None, 2.0, None]
    for _, sweep in relabel.sweeps:
        assert sweep.logits.shape == (N, C)
        assert bool(sweep.logits[7].isnan().all())
        assert not sweep.logits[np.arange(N) != 7].isnan().any()
        values = torch.from_numpy(source.values)
        torch.testing.assert_close(sweep.features[np.arange(N) != 7], values[np.arange(N) != 7])
        assert not sweep.logits.is_inference()
    assert model.training  # as it was, although sweeps are made in evaluation mode


def test_scores_are_those_of_evaluation_mode_and_leave_the_mode_alone() -> None:
    source, _ = data()
    model = linear(dropout=0.5)
    model.train()
    scored = score_source(model, source, batch_size=7)
    assert model.training
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(scored.logits, model(torch.from_numpy(source.values)).logits)
    assert not scored.logits.requires_grad


def test_a_batch_without_readable_images_is_skipped() -> None:
    source, table = data()
    order = np.concatenate(planned(PLAIN, source, 1))
    bad = Features(source.values, table.images, bad=order[:16])  # the whole first batch
    fitted = fit(linear(), bce(), bad, table, replace(PLAIN, epochs=1))
    assert fitted.log[0]["loss"] > 0
    logits = score_source(linear(), bad, batch_size=1).logits
    assert logits.isnan().all(1).sum() == 16
    with pytest.raises(UserError, match="not one image could be read"):
        score_source(linear(), Subset(Empty(source), np.arange(3)))


class Empty:
    """A source of unreadable image files: batches without views."""

    def __init__(self, like: Features) -> None:
        self.names, self.hashes = like.names, like.hashes

    def __len__(self) -> int:
        return len(self.names)

    def fetch(self, plan: Any, views: Any, *, seed: int = 0, epoch: int = 0) -> Any:
        for _ in plan:
            yield np.arange(0), ()


def test_the_callback_is_called_for_every_epoch_and_step() -> None:
    source, table = data()
    callback = Counting()
    fit(linear(), bce(), source, table, PLAIN, callback=callback)
    assert callback.events == [(1, N), 1, (2, N), 2, (3, N), 3]
    assert callback.steps == 3 * math.ceil(N / 16)


def test_two_views_and_dropout_are_functions_of_the_seed() -> None:
    class Twice(Method):
        def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
            weak, strong = (model(view).logits for view in batch.views)
            assert not torch.equal(*batch.views)
            return super().step(model, batch, epoch) + (weak.detach() - strong).square().mean()

    def go(seed: int) -> dict[str, Tensor]:
        source, table = small_pictures()
        backbone = build_backbone("tiny")
        head = seeded(0, lambda: Linear(backbone.channels, 10, 0.5))
        assert isinstance(head, Head)
        method = Twice(BCE(), views=("weak", "strong"))
        settings = replace(PLAIN, epochs=1, batch_size=4, seed=seed)
        return fit(Model(backbone, head), method, source, table, settings).weights

    torch.manual_seed(123)
    first = go(0)
    torch.manual_seed(456)  # the global generator must not matter
    assert_same(go(0), first)
    assert not torch.equal(go(1)["head.linear.weight"], first["head.linear.weight"])


class Dropping(Linear):
    """A linear head whose dropout matters."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes, dropout=0.5)


def test_dropout_passes_have_the_expected_mean_and_spread():
    torch.manual_seed(0)
    features = torch.randn(7, 6)
    source = Features(features, Names.numbered(7))
    model = Model(None, Dropping(6, 3))
    plain = score_source(model, source)
    assert plain.mean is None
    assert plain.spread is None
    scored = score_source(model, source, batch_size=3, passes=400, seed=1)
    assert scored.mean is not None
    assert scored.spread is not None
    assert torch.equal(scored.logits, plain.logits)
    # Of Σ_d w_d x_d m_d / ½ with m_d = 0 or 1 the mean is the logit and the variance Σ_d (w_d x_d)².
    expected = ((model.head.linear.weight.detach()[None] * features[:, None]) ** 2).sum(2).sqrt()
    assert torch.allclose(scored.mean, plain.logits, atol=4 * float(expected.max()) / 20)
    assert torch.allclose(scored.spread, expected, rtol=0.25)
    repeated = score_source(model, source, batch_size=3, passes=400, seed=1)
    other_seed = score_source(model, source, batch_size=3, passes=400, seed=2)
    assert torch.equal(repeated.spread, scored.spread)
    assert not torch.equal(other_seed.spread, scored.spread)
    assert model.training
    assert model.head.dropout.training


class Guessing(Ignore):
    """Asks for a sweep after every epoch; after the second it guesses that all unknown labels are absent."""

    def start(self, table: Table) -> None:
        self.held = torch.from_numpy(table.dense())

    def wants_sweep(self, epoch: int) -> bool:
        return True

    def absorb(self, sweep: Sweep, epoch: int) -> dict[str, float]:
        if epoch == 2:
            self.held[self.held == 0] = -1
        return {}

    def guesses(self) -> torch.Tensor:
        return self.held


def test_the_log_compares_guesses_with_hidden_labels():
    known = Table.from_dense(np.array([[1, 0], [0, -1], [0, 0]], np.int8))
    truth = Table.from_dense(np.array([[1, -1], [1, -1], [-1, -1]], np.int8))
    source = Features(torch.randn(3, 4), Names.numbered(3))
    method = Method(BCE(), Guessing())
    logs = [
        fit(Model(None, Linear(4, 2)), method, source, known, Config(epochs=3, device="cpu"), truth=truth_or_none).log
        for truth_or_none in (truth, None)
    ]
    assert logs[0][1]["tn_rate"] == 1
    assert logs[0][1]["tp_rate"] == 0
    assert logs[0][1]["label_proportion"] == 1
    # Epochs without new guesses have no such values.
    assert not any("tn_rate" in line or "label_proportion" in line for line in (logs[0][0], logs[0][2], *logs[1]))
