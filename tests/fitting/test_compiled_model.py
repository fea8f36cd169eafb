"""Compare a compiled model with the plain one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from halflabel.features.heads import Linear, Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.fitting.step import CompiledModel
from halflabel.images.sources import Arrays
from halflabel.images.views import Plain, Weak
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.types import Output

B, C = 4, 3
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")


@pytest.fixture
def exact() -> Iterator[None]:
    """Convolutions in float32, not in TensorFloat32."""
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision = before


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, view: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.conv(view.float() / 255)).relu()
        return maps

    pooled = forward


def pair(device: torch.device) -> tuple[Model, nn.Module, Model]:
    """A plain model, a compiled one with the same weights, and the model inside the compiled one."""
    torch.manual_seed(0)
    plain, inner = (Model(Backbone(), Linear(8, C)).to(device) for _ in range(2))
    plain, inner = (model.to(memory_format=torch.channels_last).train() for model in (plain, inner))
    inner.load_state_dict(plain.state_dict())
    return plain, CompiledModel(inner, B).train(), inner


def view(device: torch.device, seed: int, images: int = B) -> Tensor:
    pixels = torch.randint(0, 256, (images, 3, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return pixels.to(device).contiguous(memory_format=torch.channels_last)


def charge(output: Output) -> Tensor:
    assert output.features is not None
    return output.logits.square().mean() + output.features.square().mean()


def check_equal(plain: nn.Module, inner: nn.Module) -> None:
    for (name, actual), expected in zip(inner.named_parameters(), plain.parameters(), strict=True):
        assert (actual.grad is None) == (expected.grad is None), name
        if actual.grad is not None and expected.grad is not None:
            torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-5)
    for actual, expected in zip(inner.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=needs_compiler), pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.usefixtures("exact")
def test_gradients_and_running_means_equal_the_plain_model(device: Any) -> None:
    device = torch.device(device)
    plain, compiled, inner = pair(device)
    for _ in range(3):
        for model in (plain, compiled):
            model.zero_grad(set_to_none=True)
            for seed in (1, 2, 3):  # gradients add up
                charge(model(view(device, seed))).backward()
            charge(model(view(device, 5, B - 1))).backward()  # not compiled
            first, second = model(view(device, 1)), model(view(device, 2))  # two passes before one gradient
            (charge(first) - 3 * charge(second)).backward()
        check_equal(plain, inner)
    with torch.no_grad():
        torch.testing.assert_close(compiled(view(device, 0)).logits, plain(view(device, 0)).logits)


@needs_gpu
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.usefixtures("exact")
def test_compiled_training_equals_plain_training(precision: Any) -> None:
    rng = np.random.default_rng(0)
    table = Table.from_dense(rng.choice(np.array([-1, 0, 1], np.int8), (22, C)))
    images = torch.from_numpy(rng.integers(0, 256, (22, 3, 16, 16), dtype=np.uint8))
    source = Arrays(images, table.images, {"plain": Plain(16), "weak": Weak(16)})
    torch.manual_seed(0)
    first = Model(Backbone(), Linear(8, C)).state_dict()

    def train(compiler: Any, precision: Any) -> dict[str, Tensor]:
        model, method = Model(Backbone(), Linear(8, C)), recipe("bce").make()
        model.load_state_dict(first)
        settings = Config(epochs=3, batch_size=B, lr=0.3, backbone_lr=1.0, ema=0.5, device="cuda")
        settings = replace(settings, optimizer="sgd", compile=compiler, precision=precision, deterministic=True)
        weights = fit(model, method, source, table, settings).weights
        return {name: value.double() for name, value in weights.items() if value.is_floating_point()}

    exact, plain, compiled = train("no", "no"), train("no", precision), train("inductor", precision)
    for name, weight in exact.items():
        moved, rounding, error = ((weight - state[name].to(weight)).norm() for state in (first, plain, compiled))
        # Inductor rounds at other places: it may be as far from float32 as rounding is without it.
        assert error <= 1e-3 * moved + 3 * rounding, name
        assert moved > 0 or "unused" in name


@pytest.mark.slow
@needs_compiler
def test_a_compiled_model_follows_autocast() -> None:
    torch.manual_seed(0)
    model = Model(Backbone(), Linear(8, C)).train()
    compiled = CompiledModel(model, B).train()
    pixels = view(torch.device("cpu"), 0)
    for kind, tolerance in ((torch.bfloat16, 2e-2), (None, 1e-5), (torch.float16, 2e-3)):
        with torch.autocast("cpu", kind, enabled=kind is not None):
            expected, actual = model(pixels).logits, compiled(pixels).logits
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        weight = model.head.linear.weight
        gradients = [torch.autograd.grad(logits.square().sum(), weight)[0] for logits in (expected, actual)]
        torch.testing.assert_close(*gradients, rtol=3 * tolerance, atol=3 * tolerance)
