"""Methods in files of one's own, which the variable HALFLABEL_PLUGINS names."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features import heads
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features
from halflabel.labels.table import Table
from halflabel.methods import base as method
from halflabel.methods.base import Method, recipe, recipes
from halflabel.methods.parts import losses
from halflabel.methods.parts.relabel import Ignore
from halflabel.methods.parts.terms import Term
from halflabel.system import plugins
from halflabel.system.plugins import VARIABLE, load_file
from halflabel.types import Batch, Output, Sweep, Targets

MINE = '''
from halflabel.methods.parts.losses import BCE
from halflabel.methods.base import Method, method

@method(serves=("full", "partial"), paper="none")
def my_own(weight: float = 0.5) -> Method:
    """Half as much of everything."""
    return Method(BCE())
'''


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Load plugins again, and remove the methods that a test has registered."""
    recipes()
    monkeypatch.setattr(method, "_REGISTRY", dict(method._REGISTRY))
    monkeypatch.setattr(method, "_ALIASES", dict(method._ALIASES))
    plugins.load.cache_clear()
    yield
    plugins.load.cache_clear()


def write(path: Path, text: str = MINE) -> Path:
    path.write_text(text)
    return path


def test_methods_of_listed_files_are_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write(tmp_path / "other.py", MINE.replace("my_own", "another"))
    monkeypatch.setenv(VARIABLE, os.pathsep.join(map(str, (write(tmp_path / "mine.py"), other))))
    assert recipes()["my-own"].summary == "Half as much of everything."
    assert recipe("my-own").options["weight"].default == 0.5
    assert "another" in recipes()
    assert isinstance(recipe("my-own").make(), method.Method)


def test_an_unknown_method_explains_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match="no method is called 'my-own'"):
        recipe("my-own")
    with pytest.raises(UserError, match=f"export {VARIABLE}=mine.py"):
        recipe("zzzzzzzz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 1 / 0\n", r"mine\.py, line 2: ZeroDivisionError"),
        ("def broken(:\n    pass\n", r"mine\.py, line 1: SyntaxError"),
        (MINE.replace("my_own", "bce"), r"mine\.py, line \d+: ValueError: two methods are called 'bce'"),
    ],
    ids=["fails", "not Python", "name in use"],
)
def test_errors_in_a_file_name_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "mine.py", text)))
    with pytest.raises(UserError, match=message):
        recipes()


def test_methods_of_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "their_methods.py", MINE.replace("my_own", "theirs"))
    (tmp_path / "their_package-1.0.dist-info").mkdir()
    write(tmp_path / "their_package-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: their-package\n")
    points = write(
        tmp_path / "their_package-1.0.dist-info" / "entry_points.txt", "[halflabel.plugins]\nall = their_methods\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "theirs" in recipes()
    plugins.load.cache_clear()
    points.write_text("[halflabel.plugins]\nall = missing_module\n")
    with pytest.raises(UserError, match="the plugins of the package their-package cannot be imported"):
        recipes()


def test_a_file_can_be_loaded_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    load_file(write(tmp_path / "mine.py"))
    assert "my-own" in recipes()
    assert os.environ[VARIABLE] == str((tmp_path / "mine.py").resolve())  # for child processes
    with pytest.raises(UserError, match=r"gone\.py is not a file"):
        load_file(tmp_path / "gone.py")


def test_a_file_that_was_run_already_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "mine.py")
    script = ModuleType("__main__")
    script.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(path.read_text(), str(path), "exec"), vars(script))
    monkeypatch.setenv(VARIABLE, str(path))
    assert "my-own" in recipes()


class TensorHead(heads.Head):
    """Returns a tensor instead of an Output."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Any:
        return self.linear(features)


class Wide(TensorHead):
    """Has one class too many."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes + 1)

    def forward(self, features: Tensor) -> Output:
        return Output(self.linear(features), features)


class Reduced(losses.BCE):
    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        return super().forward(logits, targets).mean()


class ChangesTargets(Ignore):
    """Returns `change(targets)`."""

    def __init__(self, change: Callable[[Targets], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Any:
        return self.change(super().forward(batch, logits, epoch))


class AfterSweep(Ignore):
    """Returns `result` from `absorb`."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def wants_sweep(self, epoch: int) -> bool:
        return epoch == 1

    def absorb(self, sweep: Sweep, epoch: int) -> Any:
        return self.result


class Unreduced(Method):
    def step(self, model: heads.Model, batch: Batch, epoch: int) -> Tensor:
        return model(batch.views[0]).logits


class ReturnsNone(Method):
    def step(self, model: heads.Model, batch: Batch, epoch: int) -> Any:
        model(batch.views[0])


class Detached(Method):
    def step(self, model: heads.Model, batch: Batch, epoch: int) -> Tensor:
        return model(batch.views[0]).logits.detach().sum()


class PerImage(Term):
    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        return output.logits.sum(1)


def not_reduced(loss: Tensor, targets: Targets) -> Tensor:
    return loss


def train(method: Method, epochs: int = 2) -> None:
    draw = np.random.default_rng(0)
    labels = np.where(draw.random((12, 3)) < 0.5, 1, -1).astype(np.int8)
    table = Table.from_dense(labels)
    source = Features(draw.normal(size=(12, 5)).astype(np.float32), table.images)
    settings = Config(epochs=epochs, batch_size=6, device="cpu")
    fit(heads.Model(None, method.head(5, 3)), method, source, table, settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Method(losses.BCE(), head=TensorHead), "the head TensorHead returns a Tensor, not an Output"),
        (
            lambda: Method(losses.BCE(), head=lambda d, c: heads.Ensemble([TensorHead(d, c)])),
            "the head TensorHead returns a Tensor, not an Output",
        ),
        (
            lambda: Method(losses.BCE(), head=Wide),
            r"the head Wide .* \(6, 4\), and must give logits .* \(6, 3\)",
        ),
        (lambda: Method(losses.BCE(), head=nn.Linear), "head= of Method makes a Linear, and must make a Head"),
        (
            lambda: Method(losses.BCE(), head=Wide(5, 3)),
            "head= of Method is a Wide, and must be a function",
        ),
        (
            lambda: Method(Reduced()),
            r"the loss Reduced .* the shape \(\), .* loss of each entry \(6, 3\), never reduced",
        ),
        (
            lambda: Method(losses.BCE(), reduce=not_reduced),
            r"reduce= \(not_reduced\) .* \(6, 3\), and must give a scalar",
        ),
        (lambda: Method(losses.BCE(), terms=[PerImage()]), r"the term PerImage .* \(6,\), and must give a scalar"),
        (lambda: Unreduced(losses.BCE()), r"the step of Unreduced .* \(6, 3\), and must give a scalar"),
        (lambda: ReturnsNone(losses.BCE()), "the step of ReturnsNone gives None, and must give a scalar"),
        (lambda: Detached(losses.BCE()), "the step of Detached gives a loss that does not depend on anything"),
        (
            lambda: Method(losses.BCE(), ChangesTargets(lambda t: t.pos)),
            r"the relabeler ChangesTargets gives a tensor of the shape \(6, 3\), and must give Targets",
        ),
        (
            lambda: Method(losses.BCE(), ChangesTargets(lambda t: Targets(t.pos, t.neg[:, :1]))),
            r"the relabeler ChangesTargets .* \(6, 1\), and must give neg of the shape \(6, 3\)",
        ),
        (
            lambda: Method(losses.BCE(), AfterSweep(None)),
            "absorb of AfterSweep gives None, and must give numbers for the log",
        ),
        (
            lambda: Method(losses.BCE(), AfterSweep({"kept": "all"})),
            "absorb of AfterSweep .* numbers for the log by name",
        ),
    ],
)
def test_parts_with_wrong_return_values_are_named(make: Callable[[], Method], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(make())


def test_a_method_is_found_by_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "mine.py")))
    own_recipe = recipe("my-own")
    assert recipe(own_recipe) is own_recipe
    assert recipe(own_recipe.build) is own_recipe
    for value in (write, print, 3, None):
        with pytest.raises(UserError, match="is not a method"):
            recipe(value)  # type: ignore[arg-type]


def test_a_function_pickled_by_value_keeps_its_recipe() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a notebook
    exec(MINE, names)
    copy = pickle.loads(cloudpickle.dumps(names["my_own"]))
    assert copy is not names["my_own"]
    assert recipe(copy).build is copy
    assert recipe(copy).lr == recipe(names["my_own"]).lr
    assert isinstance(recipe(copy).make(), Method)
