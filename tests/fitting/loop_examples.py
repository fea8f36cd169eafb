"""A small table, model and method for the tests of the training loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from halflabel.features.heads import Head, Linear, Model
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import Config
from halflabel.fitting.loop import plan_epoch
from halflabel.images.sources import Arrays, Features
from halflabel.images.views import Plain, Strong, Weak
from halflabel.labels.table import Table
from halflabel.methods.base import Method, seeded
from halflabel.methods.parts.losses import BCE

N, D, C = 50, 8, 5


PLAIN = Config(epochs=3, batch_size=16, lr=0.01, schedule="constant", device="cpu")


def data(n: int = N) -> tuple[Features, Table]:
    rng = np.random.default_rng(0)
    table = Table.from_dense(rng.choice([-1, 0, 1], size=(n, C)))
    return Features(rng.standard_normal((n, D)).astype(np.float32), table.images), table


def linear(dropout: float = 0.0) -> Model:
    head = seeded(3, lambda: Linear(D, C, dropout))
    assert isinstance(head, Head)
    return Model(None, head)


def bce() -> Method:
    return Method(BCE())


def planned(settings: Config, source: Any, epoch: int) -> list[Any]:
    """The batches of the loop, for a plain torch loop over the same batches."""
    return list(plan_epoch(source, settings, epoch))


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, atol=atol, rtol=0)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


class Scripted:
    """A validation metric that takes its values from a list."""

    def __init__(self, values: list[float]) -> None:
        self.values = list(values)
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, logits: Tensor) -> dict[str, float]:
        self.shapes.append(tuple(logits.shape))
        value = self.values.pop(0)
        return {"mAP": value, "select": value}


def small_pictures(n: int = 12) -> tuple[Arrays, Table]:
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.integers(0, 256, (n, 3, 40, 32), dtype=np.uint8))
    table = Table.from_dense(rng.choice([-1, 1], size=(n, 10)))
    return Arrays(images, table.images, {"plain": Plain(32), "weak": Weak(32), "strong": Strong(32)}), table


class Counting(Callback):
    """A callback that stops training at a given step, as a crash would."""

    def __init__(self, stop_at: int = -1, stop_after_epoch: int = -1) -> None:
        self.stop_at, self.stop_after_epoch = stop_at, stop_after_epoch
        self.steps = 0
        self.events: list[Any] = []

    def on_epoch_start(self, epoch: int, epochs: int, images: int) -> None:
        self.events.append((epoch, images))

    def on_step_end(self, images: int, loss: float | None) -> None:
        self.steps += 1
        if self.steps == self.stop_at:
            raise KeyboardInterrupt

    def on_epoch_end(self, log: EpochLog) -> None:
        self.events.append(log["epoch"])
        if log["epoch"] == self.stop_after_epoch:
            raise KeyboardInterrupt
