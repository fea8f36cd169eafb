"""The training loop against a plain torch loop: optimizers, rates, averages, precision and memory layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from loop_examples import (
    PLAIN,
    C,
    D,
    N,
    Scripted,
    assert_close,
    assert_same,
    bce,
    data,
    linear,
    planned,
    small_pictures,
)
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from halflabel.errors import UserError
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Head, Linear, Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.fitting.optimizer import learning_rate_factor, parameter_groups
from halflabel.images.sources import Subset
from halflabel.methods.base import Method, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.types import Batch, Output


def by_hand(
    settings: Config,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    rate: Callable[[float], float] = lambda progress: 1.0,
    after: Callable[[nn.Module, int], None] = lambda module, step: None,
) -> dict[str, Tensor]:
    """Plain torch: mean over all B·C entries of the cross-entropy of the known ones."""
    source, table = data()
    values, labels = torch.from_numpy(source.values), torch.from_numpy(table.dense()).float()
    model = linear()
    steps = optimizer(list(model.parameters()))
    number = 0
    for epoch in range(1, settings.epochs + 1):
        plan = planned(settings, source, epoch)
        for at, index in enumerate(plan):
            for group in steps.param_groups:
                group["lr"] = settings.lr * rate(epoch - 1 + at / len(plan))
            x, y = model(values[index]).logits, labels[index]
            loss = (binary_cross_entropy_with_logits(x, (y > 0).float(), reduction="none") * (y != 0)).mean()
            steps.zero_grad()
            loss.backward()
            if settings.clip:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            steps.step()
            number += 1
            after(model, number)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-4)
ADAMW = partial(torch.optim.AdamW, lr=0.01, weight_decay=1e-4)
CASES: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer], Callable[[float], float]]] = {
    "adamw": ({}, ADAMW, lambda progress: 1.0),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, weight_decay=1e-4), lambda progress: 1.0),
    "rmsprop": ({"optimizer": "rmsprop"}, lambda p: torch.optim.RMSprop(p, weight_decay=1e-4), lambda progress: 1.0),
    "sgd, clipped": ({"optimizer": "sgd", "lr": 1.0, "clip": 0.05}, SGD, lambda progress: 1.0),
    "cosine": ({"schedule": "cosine"}, ADAMW, lambda progress: 0.5 * (1 + math.cos(math.pi * progress / 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loop_is_the_plain_torch_loop(name: str) -> None:
    change, optimizer, rate = CASES[name]
    settings = replace(PLAIN, **change)
    source, table = data()
    fitted = fit(linear(), bce(), source, table, settings)
    assert_close(fitted.weights, by_hand(settings, optimizer, rate))
    assert not torch.equal(fitted.weights["head.linear.weight"], linear().state_dict()["head.linear.weight"])
    last = [epoch - 1 / math.ceil(N / 16) for epoch in (1, 2, 3)]
    assert [line["lr"] for line in fitted.log] == pytest.approx([settings.lr * rate(progress) for progress in last])


def test_every_image_once_per_epoch_in_another_order_each_time() -> None:
    source, _ = data()
    orders = [np.concatenate(planned(PLAIN, source, epoch)) for epoch in (1, 2)]
    for order in orders:
        assert sorted(order) == list(range(N))
    assert not np.array_equal(*orders)
    assert np.array_equal(orders[0], np.concatenate(planned(PLAIN, source, 1)))
    other_seed = np.concatenate(planned(replace(PLAIN, seed=1), source, 1))
    assert not np.array_equal(orders[0], other_seed)
    # By name, not by place: a table in another order is visited in the same order of images.
    reversed_source = Subset(source, np.arange(N)[::-1].copy())
    assert [source.names[i] for i in orders[0]] == [
        reversed_source.names[i] for i in np.concatenate(planned(PLAIN, reversed_source, 1))
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schedule": "constant"}, {0: 1, 5: 1, 9.9: 1}),
        ({"schedule": "cosine"}, {0: 1, 5: 0.5, 2.5: 0.5 + math.sqrt(0.125), 10: 0}),
        ({"schedule": "cosine", "warmup": 2}, {1: 0.5005, 2: 1, 6: 0.5, 10: 0}),
        ({"schedule": "step", "step_epochs": 4, "step_factor": 0.5}, {0: 1, 3.99: 1, 4: 0.5, 8: 0.25}),
        ({"schedule": "constant", "warmup": 4}, {0: 0.00025, 1: 0.25025, 4: 1, 9: 1}),
        ({"schedule": "constant", "warmup": 0.01}, {0: 0.1, 0.0099: 1, 0.01: 1}),
        ({"schedule": "plateau"}, {0: 1, 9: 1}),
    ],
)
def test_rates(change: dict[str, Any], expected: dict[float, float]) -> None:
    settings = replace(PLAIN, epochs=10, **change)
    for progress, rate in expected.items():
        assert learning_rate_factor(progress, settings) == pytest.approx(rate, abs=1e-9)


def test_plateau_lowers_the_rate_when_validation_falls() -> None:
    source, table = data()
    judge = Scripted([0.5, 0.6, 0.4, 0.4, 0.3])
    settings = replace(PLAIN, epochs=5, schedule="plateau", step_factor=0.1)
    fitted = fit(linear(), bce(), source, table, settings, validation=source, judge=judge)
    assert [line["lr"] for line in fitted.log] == pytest.approx([0.01, 0.01, 0.01, 0.001, 0.001])


def test_the_best_epoch_is_kept_and_training_stops_without_gain() -> None:
    source, table = data()
    judge = Scripted([0.1, 0.5, 0.4, 0.5, 0.9])
    fitted = fit(linear(), bce(), source, table, replace(PLAIN, epochs=5, patience=2), validation=source, judge=judge)
    assert fitted.best_epoch == 2
    assert [line["epoch"] for line in fitted.log] == [1, 2, 3, 4]
    assert [line["mAP"] for line in fitted.log] == [0.1, 0.5, 0.4, 0.5]
    assert judge.shapes == [(N, C)] * 4
    assert_same(fitted.weights, fit(linear(), bce(), source, table, replace(PLAIN, epochs=2)).weights)


def test_the_weight_average_equals_the_formula() -> None:
    settings = replace(PLAIN, ema=0.6)
    source, table = data()
    average: dict[str, Tensor] = {}

    def blend(module: nn.Module, step: int) -> None:
        for name, value in module.state_dict().items():
            decay = min(0.6, step / (9 + step))
            first = step == 1
            average[name] = value.clone() if first else decay * average[name] + (1 - decay) * value

    last = by_hand(settings, ADAMW, after=blend)
    fitted = fit(linear(), bce(), source, table, settings)
    assert_close(fitted.weights, average)
    assert float((average["head.linear.weight"] - last["head.linear.weight"]).abs().max()) > 1e-3


class TwoParts(Method):
    """A method with its own parameter."""

    def __init__(self) -> None:
        super().__init__(BCE())
        self.scale = nn.Parameter(torch.ones(()))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        return [{"params": [self.scale], "base_lr": 3 * lr, "weight_decay": 0.0}]

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        return super().step(model, batch, epoch) * self.scale**2


def test_parameter_groups_have_their_own_rates() -> None:
    source, table = small_pictures()
    backbone = build_backbone("tiny")
    model = Model(backbone, Linear(backbone.channels, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method = TwoParts()
    settings = replace(PLAIN, epochs=1, batch_size=12, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=0.5)
    rates = [(len(group["params"]), group["lr"]) for group in parameter_groups(model, method, settings)]
    assert rates == [(2, 0.5), (len(list(backbone.parameters())), 0.05), (1, 1.5)]

    reference = Model(build_backbone("tiny"), Linear(backbone.channels, 10))
    reference.load_state_dict(before)
    fit(model, method, source, table, settings)
    index = planned(settings, source, 1)[0]
    torch.manual_seed(0)
    (_, views), *_ = source.fetch([index], ("weak",), seed=0, epoch=1)
    loss = TwoParts().step(reference, Batch(torch.tensor(index), views, torch.from_numpy(table.rows(index))), 1)
    loss.backward()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        rate = 0.5 if name.startswith("head") else 0.05
        expected = before[name] - rate * parameter.grad
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), expected, atol=1e-6, rtol=1e-5)
    assert float(method.scale.detach()) == pytest.approx(1 - 1.5 * 2 * float(loss.detach()), abs=1e-5)


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    class Wrong(BCE):
        def pair(self, logits: Tensor) -> tuple[Tensor, Tensor]:
            return logits / 0, logits / 0

    source, table = data()
    with pytest.raises(UserError, match=r"not finite \(epoch 1, by batch 1\).*lower lr \(now 0.01\)"):
        fit(linear(), Method(Wrong()), source, table, PLAIN)


def test_mixed_precision_on_the_cpu_trains_in_bfloat16() -> None:
    source, table = data()
    dtypes: list[torch.dtype] = []

    class Spy(Linear):
        def forward(self, features: Tensor) -> Output:
            output = super().forward(features)
            dtypes.append(output.logits.dtype)
            return output

    def model() -> Model:
        spy = Spy(D, C)
        spy.load_state_dict(linear().head.state_dict())
        return Model(None, spy)

    fitted = fit(model(), bce(), source, table, replace(PLAIN, precision="bf16"))
    assert set(dtypes) == {torch.bfloat16}
    full = fit(model(), bce(), source, table, PLAIN)  # and the next run is in full precision again
    assert dtypes[-1] == torch.float32
    assert_close(fitted.weights, full.weights, atol=0.02)
    assert all(value.dtype == torch.float32 for value in fitted.weights.values())


def test_convolutions_have_the_layout_with_channels_last() -> None:
    source, table = small_pictures()
    layouts: list[bool] = []

    class Spy(Linear):
        needs_maps = True

        def forward(self, features: Tensor) -> Output:
            layouts.append(features.is_contiguous(memory_format=torch.channels_last))
            return super().forward(features)

    def model() -> Model:
        backbone = build_backbone("tiny")
        head = seeded(0, lambda: Spy(backbone.channels, 10))
        assert isinstance(head, Head)
        return Model(backbone, head)

    fit(model(), bce(), source, table, replace(PLAIN, epochs=1, batch_size=4, backbone_lr=1.0))
    assert all(layouts)
