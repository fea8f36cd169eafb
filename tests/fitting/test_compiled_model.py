"""Compare a compiled model with the plain one."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

from halflabel.features.heads import Linear, Model
from halflabel.fitting.step import CompiledModel
from halflabel.types import Output

B, C = 4, 3
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")


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


def pair() -> tuple[Model, nn.Module, Model]:
    """A plain model, a compiled one with the same weights, and the model inside the compiled one."""
    torch.manual_seed(0)
    plain, inner = (Model(Backbone(), Linear(8, C)) for _ in range(2))
    plain, inner = (model.to(memory_format=torch.channels_last).train() for model in (plain, inner))
    inner.load_state_dict(plain.state_dict())
    return plain, CompiledModel(inner, B).train(), inner


def view(seed: int, images: int = B) -> Tensor:
    pixels = torch.randint(0, 256, (images, 3, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return pixels.contiguous(memory_format=torch.channels_last)


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
@needs_compiler
def test_gradients_and_running_means_equal_the_plain_model() -> None:
    plain, compiled, inner = pair()
    for _ in range(3):
        for model in (plain, compiled):
            model.zero_grad(set_to_none=True)
            for seed in (1, 2, 3):  # gradients add up
                charge(model(view(seed))).backward()
            charge(model(view(5, B - 1))).backward()  # not compiled
            first, second = model(view(1)), model(view(2))  # two passes before one gradient
            (charge(first) - 3 * charge(second)).backward()
        check_equal(plain, inner)
    with torch.no_grad():
        torch.testing.assert_close(compiled(view(0)).logits, plain(view(0)).logits)


@pytest.mark.slow
@needs_compiler
def test_a_compiled_model_follows_autocast() -> None:
    torch.manual_seed(0)
    model = Model(Backbone(), Linear(8, C)).train()
    compiled = CompiledModel(model, B).train()
    pixels = view(0)
    for kind, tolerance in ((torch.bfloat16, 2e-2), (None, 1e-5), (torch.float16, 2e-3)):
        with torch.autocast("cpu", kind, enabled=kind is not None):
            expected, actual = model(pixels).logits, compiled(pixels).logits
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        weight = model.head.linear.weight
        gradients = [torch.autograd.grad(logits.square().sum(), weight)[0] for logits in (expected, actual)]
        torch.testing.assert_close(*gradients, rtol=3 * tolerance, atol=3 * tolerance)
