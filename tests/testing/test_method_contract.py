"""Methods that break one promise each: the check of that promise names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.features.heads import Head, Linear, Model
from halflabel.labels.table import Table
from halflabel.methods import base as registry
from halflabel.methods.base import Method, Recipe, method, recipe, recipes
from halflabel.methods.parts.losses import BCE
from halflabel.methods.parts.relabel import Ignore
from halflabel.system.plugins import VARIABLE, load
from halflabel.testing.method_contract import CHECKS, ONCE, Broken, check_page
from halflabel.types import Batch, Output, Targets


@pytest.fixture(autouse=True)
def copied_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(recipes()))


def recipe_of(make: Callable[[], Method]) -> Recipe:
    def broken(weight: float = 1.0) -> Method:
        """A method that breaks a promise; weight: nothing."""
        return make()

    return recipe(method(serves=["partial"], paper="none")(broken))


class Weighted(Ignore):
    """Targets of known positives times a weight that changes by `grow` with each batch, outside the state."""

    def __init__(self, weight: float, grow: float = 0.0) -> None:
        super().__init__()
        self.weight, self.grow = weight, grow

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        self.weight += self.grow
        pos, neg = super().forward(batch, logits, epoch)
        return Targets(self.weight * pos, neg)


class ByScore(Ignore):
    """Unknown labels with a high score are present; wrongly called static."""

    is_static = True

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        pos, neg = super().forward(batch, logits, epoch)
        return Targets(pos + ((batch.labels == 0) & (logits > 1)), neg)


class Plain(Method):
    """The ordinary step, with something added."""

    def __init__(self, added: Callable[[Tensor, Batch], Any]) -> None:
        super().__init__(BCE())
        self.added = added

    def step(self, model: Model, batch: Batch, epoch: int) -> Tensor:
        output = model(batch.views[0])
        targets = self.relabel(batch, output.logits.detach(), epoch)
        loss = self.reduce(self.loss(output.logits, targets), targets)
        return loss + self.added(output.logits, batch)


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Forgets(Linear):
    """A head that divides by a number which is not saved."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.size = 1.0

    def forward(self, features: Tensor) -> Output:
        output = super().forward(features)
        return output._replace(logits=output.logits / self.size)


class SetsSize(Method):
    def start(self, table: Table, model: Model | None = None) -> None:
        super().start(table, model)
        if model is not None and isinstance(model.head, Forgets):
            model.head.size = 2.0


class Untraceable(Head):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Output:
        pooled = features.mean((2, 3)) if features.ndim == 4 else features
        scale = 2.0 if float(pooled.sum().item()) > 0 else 1.0
        return Output(self.linear(pooled) * scale, pooled)


BROKEN: list[tuple[str, Callable[[], Method], str]] = [
    ("values", lambda: Plain(lambda x, _: torch.log(x - x).sum()), "the loss of epoch 1 is"),
    (
        "small batches",
        lambda: Plain(lambda x, _: x.mean() / torch.tensor(len(x) - 1.0)),
        "the loss of one image is not finite",
    ),
    ("targets", lambda: Method(BCE(), Weighted(0.0)), "a known label has the wrong target"),
    ("targets", lambda: Method(BCE(), ByScore()), "targets depend on scores or epoch"),
    ("half precision", lambda: Plain(lambda x, _: x.square().mean()), "in half precision"),
    ("gradient", lambda: Plain(lambda x, _: WrongBackward.apply(x).mean()), "the gradient predicts a slope of"),
    ("order of images", lambda: Plain(lambda x, _: x[0].mean()), "for the same images in another order"),
    ("resume", lambda: Method(BCE(), Weighted(1.0, 0.1)), r"head\.linear\.weight differs after a resumed training"),
    ("loading", lambda: SetsSize(BCE(), head=Forgets), "a loaded head scores otherwise"),
]


@pytest.mark.parametrize(("check", "make", "problem"), BROKEN, ids=[check for check, *_ in BROKEN])
def test_a_broken_promise_is_detected(check: str, make: Callable[[], Method], problem: str) -> None:
    with pytest.raises(Broken, match=problem):
        {**CHECKS, **ONCE}[check](recipe_of(make), "partial")


def test_a_relabeler_with_targets_of_its_own_is_not_static_by_its_base_class() -> None:
    assert Ignore.is_static
    assert not Weighted.is_static


@pytest.mark.slow
def test_a_head_that_cannot_be_exported_is_found() -> None:
    with pytest.raises(Broken, match="Untraceable on this backbone cannot be exported to ONNX"):
        ONCE["export to ONNX"](recipe_of(lambda: Method(BCE(), head=Untraceable)), "partial")


def test_detached_scores_are_constants_for_the_gradient() -> None:
    ONCE["gradient"](recipe_of(lambda: Plain(lambda x, _: (torch.sigmoid(x.detach()) * x).mean())), "partial")
    with pytest.raises(Broken, match="slope"):
        ONCE["gradient"](recipe_of(lambda: Plain(lambda x, _: x.mean() * WrongBackward.apply(x).mean())), "partial")


def test_options_without_a_sentence_are_found() -> None:
    def mute(weight: float = 1.0, power: float = 2.0) -> Method:
        """Has a weight."""
        return Method(BCE())

    with pytest.raises(Broken, match="does not explain the option power"):
        check_page(recipe(method(serves=["full"], paper="none")(mute)))


def test_an_option_that_train_has_too_is_found() -> None:
    def clash(patience: int = 9) -> Method:
        """Has patience."""
        return Method(BCE())

    def other_clash(zero: float = 0.9) -> Method:
        """Has zero, which also says how to read a label file."""
        return Method(BCE())

    with pytest.raises(Broken, match="patience"):
        check_page(recipe(method(serves=["full"], paper="none")(clash)))
    with pytest.raises(Broken, match="zero"):
        check_page(recipe(method(serves=["full"], paper="none")(other_clash)))


OWN = '''
import torch
from halflabel.methods.base import Method, method
from halflabel.methods.parts.losses import BCE

class Local(Method):
    """Calls another model than the one it is given, and gets the rows of this process alone."""
    def step(self, model, batch, epoch):
        output = model(batch.views[0])
        targets = self.relabel(batch, output.logits.detach(), epoch)
        weight = batch.views[0].abs().mean()
        return weight * self.reduce(self.loss(output.logits, targets), targets)

@method(serves=("partial",), paper="none")
def own_local() -> Method:
    """A method in a file of its own."""
    return Local(BCE())
'''


@pytest.fixture
def fresh_plugins() -> Iterator[None]:
    load.cache_clear()
    yield
    load.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_plugins")
def test_a_users_file_is_checked_in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine.py"))
    result = CliRunner().invoke(app, ["methods", "own-local", "--check"])
    assert result.exit_code == 1
    assert "10 of 11 checks hold" in result.output
    assert re.search(r"broken +two processes .* differs\s+from\s+the\s+training\s+in\s+one\s+process", result.output)
