"""Hooks of a method: `start`, `after_step`, `evaluated`; state that a checkpoint would lose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halflabel.errors import UserError
from halflabel.features.heads import Linear, Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Ignore

SETTINGS = Config(epochs=2, batch_size=6, device="cpu")


def train(method: Method, **more: Any) -> Model:
    draw = np.random.default_rng(0)
    table = Table.from_dense(np.where(draw.random((12, 3)) < 0.5, 1, -1))
    source = Features(draw.normal(size=(12, 5)).astype(np.float32), table.images)
    model = Model(None, method.head(5, 3))
    fit(model, method, source, table, more.pop("settings", SETTINGS), **more)
    return model


class KeepsFirst(Method):
    """Stores the weights of each step; `evaluated` returns the initial model."""

    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        assert model is not None
        self.first = Model(None, Linear(5, 3))
        self.first.load_state_dict(model.state_dict())
        self.steps = [next(model.parameters()).detach().clone()]

    def after_step(self, model: Model) -> None:
        self.steps.append(next(model.parameters()).detach().clone())

    def evaluated(self, model: Model) -> Model:
        return self.first


def test_a_method_sees_the_model_before_training_and_after_each_step() -> None:
    method = KeepsFirst(BCE())
    trained = train(method)
    assert len(method.steps) == 1 + 2 * 2
    assert all(not torch.equal(before, after) for before, after in zip(method.steps, method.steps[1:], strict=False))
    assert torch.equal(next(trained.parameters()), method.steps[0])  # what `evaluated` returns is kept
    assert not method.is_linear_loss  # L-BFGS has no steps


class HasBuffers(Ignore):
    def __init__(self, **buffers: int) -> None:
        super().__init__()
        for name, size in buffers.items():
            self.register_buffer(name, torch.zeros(size))


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"one": 1, "two": 1}, 'Missing key(s) in state_dict: "relabel.two"'),
        ({}, 'Unexpected key(s) in state_dict: "relabel.one"'),
        ({"one": 3}, "size mismatch for relabel.one"),
    ],
)
def test_a_changed_state_is_refused_by_its_key(tmp_path: Path, later: dict[str, int], reason: str) -> None:
    train(Method(BCE(), HasBuffers(one=1)), folder=tmp_path)
    with pytest.raises(UserError, match=re.escape(f"the checkpoint does not fit the method: {reason}")):
        train(Method(BCE(), HasBuffers(**later)), folder=tmp_path, resume=True)
