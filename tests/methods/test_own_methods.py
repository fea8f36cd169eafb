"""Methods in files of one's own, which the variable HALFLABEL_PLUGINS names."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from halflabel.data.sources import Features
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods import base as method
from halflabel.methods.base import Method, recipe, recipes
from halflabel.methods.checks import checked_step
from halflabel.methods.parts import losses
from halflabel.methods.parts.relabel import Ignore
from halflabel.methods.parts.terms import Term
from halflabel.models import heads
from halflabel.system import plugins
from halflabel.system.plugins import VARIABLE, load_file
from halflabel.training.config import Settings
from halflabel.training.loop import fit
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
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look for methods anew, and forget those that a test has added."""
    recipes()
    monkeypatch.setattr(method, "_REGISTRY", dict(method._REGISTRY))
    monkeypatch.setattr(method, "_ALIASES", dict(method._ALIASES))
    plugins.load.cache_clear()
    yield
    plugins.load.cache_clear()


def write(path: Path, text: str = MINE) -> Path:
    path.write_text(text)
    return path


def test_files_that_are_named_hold_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write(tmp_path / "other.py", MINE.replace("my_own", "another"))
    monkeypatch.setenv(VARIABLE, os.pathsep.join(map(str, (write(tmp_path / "mine.py"), other))))
    assert recipes()["my-own"].summary == "Half as much of everything."
    assert recipe("my-own").options["weight"].default == 0.5
    assert "another" in recipes()
    assert isinstance(recipe("my-own").make(), method.Method)


def test_without_the_name_the_message_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match="no method is called 'my-own'"):
        recipe("my-own")
    with pytest.raises(UserError, match=f"export {VARIABLE}=mine.py"):
        recipe("zzzzzzzz")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = 1 / 0\n", r"mine\.py, line 2: ZeroDivisionError"),
        ("def broken(:\n    pass\n", r"mine\.py, line 1: SyntaxError"),
        (MINE.replace("my_own", "bce"), r"mine\.py, line \d+: ValueError: two methods are called 'bce'"),
    ],
    ids=["fails", "is no Python", "takes a name"],
)
def test_a_file_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "mine.py", text)))
    with pytest.raises(UserError, match=said):
        recipes()


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone.py"))
    with pytest.raises(UserError, match=r"gone\.py, which is not a file"):
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
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    monkeypatch.setenv(VARIABLE, str(path))
    assert "my-own" in recipes()


class Bare(heads.Head):
    """Says its logits and no more."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Any:
        return self.linear(features)


class Wide(Bare):
    """Has a class too many."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes + 1)

    def forward(self, features: Tensor) -> Output:
        return Output(self.linear(features), features)


class Reduced(losses.BCE):
    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        return super().forward(logits, targets).mean()


class Gives(Ignore):
    """Makes of the targets what `of` makes of them."""

    def __init__(self, of: Callable[[Targets], Any]) -> None:
        super().__init__()
        self.of = of

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Any:
        return self.of(super().forward(batch, logits, epoch))


class Later(Ignore):
    """Goes wrong only with what it has absorbed; `told` is what it tells of it."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self.told = told
        self.register_buffer("sign", torch.ones(()))

    def forward(self, batch: Batch, logits: Tensor, epoch: int) -> Targets:
        pos, neg = super().forward(batch, logits, epoch)
        return Targets(self.sign * pos, neg)

    def wants_sweep(self, epoch: int) -> bool:
        return epoch == 1

    def absorb(self, sweep: Sweep, epoch: int) -> Any:
        self.sign.fill_(-1.0)
        return self.told


class Unreduced(Method):
    def step(self, model: heads.Model, batch: Batch, epoch: int) -> Tensor:
        return model(batch.views[0]).logits


class Silent(Method):
    def step(self, model: heads.Model, batch: Batch, epoch: int) -> Any:
        model(batch.views[0])


class Deaf(Method):
    def step(self, model: heads.Model, batch: Batch, epoch: int) -> Tensor:
        return model(batch.views[0]).logits.detach().sum()


class Each(Term):
    def forward(self, output: Output, batch: Batch, targets: Targets) -> Tensor:
        return output.logits.sum(1)


def as_it_is(loss: Tensor, targets: Targets) -> Tensor:
    return loss


def train(method: Method, epochs: int = 2) -> None:
    draw = np.random.default_rng(0)
    labels = np.where(draw.random((12, 3)) < 0.5, 1, -1).astype(np.int8)
    table = LabelTable.from_dense(labels)
    source = Features(draw.normal(size=(12, 5)).astype(np.float32), table.images)
    settings = Settings(epochs=epochs, batch_size=6, device="cpu")
    fit(heads.Model(None, method.head(5, 3)), method, source, table, settings)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Method(losses.BCE(), head=Bare), "the head Bare returns a Tensor, not an Output"),
        (
            lambda: Method(losses.BCE(), head=lambda d, c: heads.Ensemble([Bare(d, c)])),
            "the head Bare returns a Tensor, not an Output",
        ),
        (lambda: Method(losses.BCE(), head=Wide), r"the head Wide .* \(6, 4\), and must give logits .* \(6, 3\)"),
        (lambda: Method(losses.BCE(), head=nn.Linear), "head= of Method makes a Linear, and must make a Head"),
        (
            lambda: Method(losses.BCE(), head=Wide(5, 3)),
            "head= of Method is a Wide, and must be a function",
        ),
        (
            lambda: Method(Reduced()),
            r"the loss Reduced .* the shape \(\), .* loss of each entry \(6, 3\), never reduced",
        ),
        (lambda: Method(losses.BCE(), reduce=as_it_is), r"reduce= \(as_it_is\) .* \(6, 3\), and must give a scalar"),
        (lambda: Method(losses.BCE(), terms=[Each()]), r"the term Each .* \(6,\), and must give a scalar"),
        (lambda: Unreduced(losses.BCE()), r"the step of Unreduced .* \(6, 3\), and must give a scalar"),
        (lambda: Silent(losses.BCE()), "the step of Silent gives None, and must give a scalar"),
        (lambda: Deaf(losses.BCE()), "the loss of Deaf does not depend on anything that is trained"),
        (
            lambda: Method(losses.BCE(), Gives(lambda t: t.pos)),
            r"the relabeler Gives gives a tensor of the shape \(6, 3\), and must give Targets",
        ),
        (
            lambda: Method(losses.BCE(), Gives(lambda t: Targets(t.pos, t.neg[:, :1]))),
            r"the relabeler Gives .* \(6, 1\), and must give neg of the shape \(6, 3\)",
        ),
        (
            lambda: Method(losses.BCE(), Gives(lambda t: Targets(t.pos - 0.5, t.neg))),
            "the relabeler Gives gives a pos of -0.5, and must be 0 or more",
        ),
        (lambda: Method(losses.BCE(), Later({})), "the relabeler Later gives a pos of -1, and must be 0 or more"),
        (lambda: Method(losses.BCE(), Later(None)), "absorb of Later gives None, and must give numbers for the log"),
        (lambda: Method(losses.BCE(), Later({"kept": "all"})), "absorb of Later .* numbers for the log by name"),
    ],
)
def test_parts_that_give_something_else_are_named(make: Callable[[], Method], said: str) -> None:
    with pytest.raises(UserError, match=said):
        train(make())


def test_a_batch_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(
        "halflabel.training.step.checked_step", lambda *given: (looks.append(given[-1]), checked_step(*given))[1]
    )
    method = Method(losses.BCE())
    train(method, epochs=3)
    assert looks == [1]
    assert not method.relabel._forward_hooks
    assert not method.loss._forward_hooks


WITH_HEAD = '''
from halflabel.models.heads import Linear
from halflabel.methods.parts.losses import BCE
from halflabel.methods.base import Method, method

class OwnHead(Linear):
    pass

@method(serves=("full", "partial"), paper="none")
def with_head(weight: float = 0.5) -> Method:
    """A head of its own."""
    return Method(BCE(), head=OwnHead)
'''


def test_the_function_stands_for_its_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "mine.py")))
    how = recipe("my-own")
    assert recipe(how) is how
    assert recipe(how.build) is how
    for other in (write, print, 3, None):
        with pytest.raises(UserError, match="is not a method"):
            recipe(other)  # type: ignore[arg-type]


def test_a_function_that_goes_along_by_value_brings_its_recipe() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a notebook
    exec(MINE, names)
    copy = pickle.loads(cloudpickle.dumps(names["my_own"]))
    assert copy is not names["my_own"]
    assert recipe(copy).build is copy
    assert recipe(copy).lr == recipe(names["my_own"]).lr
    assert isinstance(recipe(copy).make(), Method)


@pytest.mark.slow
def test_what_is_in_such_a_file_is_found_by_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "mine.py", WITH_HEAD)))
    how = recipe("with-head")
    kept = tmp_path / "kept.pkl"
    kept.write_bytes(pickle.dumps((Method, how, how.build, how.make().head(4, 2))))
    load = (
        "import pickle, sys; _, how, build, head = pickle.load(open(sys.argv[1], 'rb'))\n"
        "from halflabel.methods.base import recipe\n"
        "assert recipe('with-head').build is build is how.build, 'it was run twice'\n"
        "print(type(head).__name__)"
    )
    solution = subprocess.run([sys.executable, "-c", load, kept], capture_output=True, text=True, timeout=120)
    assert solution.stdout == "OwnHead\n", solution.stderr
