"""What every registered method promises, whatever its paper: one loop over the registry, one case per label regime."""

from __future__ import annotations

import copy
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halflabel.cli.options import check_method
from halflabel.data.sources import Features
from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.methods import base as registry
from halflabel.methods.base import REGIMES, Method, method, recipe, recipes, seeded
from halflabel.methods.parts.losses import BCE
from halflabel.models.heads import Model
from halflabel.models.scoring import score_source
from halflabel.training.callbacks import Callback, EpochLog
from halflabel.training.config import Settings
from halflabel.training.loop import fit
from halflabel.types import Batch, Output, Sweep

IMAGES, CLASSES, CHANNELS = 32, 6, 16
UNREAD = 3  # an image that cannot be read: in no batch, NaN in every sweep
EPOCHS = 12

NAMES = list(recipes())
CASES = [(name, regime) for name, how in recipes().items() for regime in how.serves]
each_case = pytest.mark.parametrize(("name", "regime"), CASES, ids=["-".join(case) for case in CASES])
each_name = pytest.mark.parametrize("name", NAMES)
LAST = [(name, how.serves[-1]) for name, how in recipes().items()]  # one regime each, for what takes longer
once_each = pytest.mark.parametrize(("name", "regime"), LAST, ids=["-".join(case) for case in LAST])


def make_table(regime: str) -> LabelTable:
    """A small random table of the regime, in which every class has a known positive."""
    rng = np.random.default_rng(5)
    truth = np.where(rng.random((IMAGES, CLASSES)) < 0.4, 1, -1)
    truth[np.arange(IMAGES), np.arange(IMAGES) % CLASSES] = 1
    if regime == "partial":
        truth = truth * (rng.random(truth.shape) < 0.6)
    elif regime == "positives-only":
        truth = np.where((truth > 0) & (rng.random(truth.shape) < 0.8), 1, 0)
        truth[0, :2] = 1
    elif regime == "single-positive":
        truth = np.eye(CLASSES, dtype=np.int64)[np.arange(IMAGES) % CLASSES]
    table = LabelTable.from_dense(truth)
    assert table.stats().regime == regime
    return table


class Case:
    """A method at the start of training, with a model and data that fit it."""

    def __init__(self, name: str, regime: str) -> None:
        self.name = name
        self.table = make_table(regime)
        self.method = seeded(0, recipe(name).make)
        head = seeded(0, lambda: self.method.head(CHANNELS, CLASSES))
        self.model = Model(None, head)
        self.method.start(self.table, self.model)
        shape = (IMAGES, CHANNELS, 4, 4) if head.needs_maps else (IMAGES, CHANNELS)
        self.values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        strong = self.values + 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(2))
        self.source = Features(self.values, self.table.images, [UNREAD], strong=[strong])

    def batch(self, index: Tensor | None = None) -> Batch:
        """All images that can be read, or those of `index`; further views are near the first, as augmented ones are."""
        index = torch.tensor([i for i in range(IMAGES) if i != UNREAD]) if index is None else index
        noise = torch.randn(self.values.shape, generator=torch.Generator().manual_seed(2))
        views = tuple((self.values + 0.1 * number * noise)[index] for number in range(len(self.method.views)))
        return Batch(index, views, torch.from_numpy(self.table.rows(index.numpy())))

    def step(self, batch: Batch, epoch: int) -> Tensor:
        torch.manual_seed(epoch)
        loss: Tensor = self.method.step(self.model, batch, epoch)
        return loss

    def value(self, batch: Batch, epoch: int) -> float:
        return float(self.step(batch, epoch).detach())

    def finish_epoch(self, epoch: int) -> None:
        if self.method.relabel.wants_sweep(epoch):
            sweep: Sweep = score_source(self.model, self.source, passes=self.method.relabel.passes)
            assert bool(sweep.logits[UNREAD].isnan().all())
            told = self.method.relabel.absorb(sweep, epoch)
            assert all(np.isfinite(value) for value in told.values()), told


@each_case
def test_every_step_has_a_finite_loss_and_gradient(name: str, regime: str) -> None:
    case = Case(name, regime)
    learned = list(case.model.parameters()) + list(case.method.parameters())
    optimizer = torch.optim.SGD([parameter for parameter in learned if parameter.requires_grad], lr=0.01)
    moved = False
    for epoch in range(1, EPOCHS + 1):
        loss = case.step(case.batch(), epoch)
        assert loss.shape == ()
        assert bool(loss.isfinite()), f"epoch {epoch}"
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        assert all(bool(gradient.isfinite().all()) for gradient in gradients), f"epoch {epoch}"
        moved |= any(bool(p.grad.any()) for p in case.model.parameters() if p.grad is not None)
        optimizer.step()
        case.finish_epoch(epoch)
    assert moved, "not one step teaches the head anything"


@each_case
def test_a_batch_of_one_image_and_an_image_without_labels(name: str, regime: str) -> None:
    case = Case(name, regime)
    batch = case.batch(torch.tensor([5]))
    assert bool(case.step(batch, 1).isfinite())
    nothing = Batch(batch.index, batch.views, torch.zeros_like(batch.labels))
    assert bool(case.step(nothing, 1).isfinite())


@each_case
def test_charges_are_not_negative_and_known_labels_are_kept(name: str, regime: str) -> None:
    case = Case(name, regime)
    batch = case.batch()
    for epoch in range(1, EPOCHS + 1):
        logits = case.model(batch.views[0]).logits.detach()
        torch.manual_seed(epoch)
        pos, neg = case.method.relabel(batch, logits, epoch)
        assert pos.shape == neg.shape == batch.labels.shape
        assert bool((pos >= 0).all())
        assert bool((neg >= 0).all())
        if not getattr(case.method, "changes_known", False):
            present, absent = batch.labels > 0, batch.labels < 0
            assert bool((pos[present] > 0).all() and (neg[present] == 0).all()), f"known present, epoch {epoch}"
            assert bool((neg[absent] > 0).all() and (pos[absent] == 0).all()), f"known absent, epoch {epoch}"
        assert not pos.requires_grad
        assert not neg.requires_grad
        case.finish_epoch(epoch)


@each_case
def test_the_order_of_a_batch_does_not_matter(name: str, regime: str) -> None:
    case = Case(name, regime)
    if getattr(case.method, "samples", False):
        pytest.skip("draws at random")
    case.model.eval()  # dropout draws by place in the batch
    batch = case.batch()
    order = torch.randperm(len(batch.index), generator=torch.Generator().manual_seed(3))
    turned = Batch(batch.index[order], tuple(view[order] for view in batch.views), batch.labels[order])
    for epoch in range(1, 8):
        kept = copy.deepcopy(case.method)
        first = case.value(batch, epoch)
        case.method = kept
        assert case.value(turned, epoch) == pytest.approx(first, rel=1e-5, abs=1e-6)
        case.finish_epoch(epoch)


@once_each
def test_all_that_is_remembered_is_in_the_state(name: str, regime: str) -> None:
    case = Case(name, regime)
    settings = Settings(epochs=6, batch_size=16, lr=0.01, device="cpu")
    fit(case.model, case.method, case.source, case.table, settings)
    fresh = Case(name, regime)
    fresh.method.plan(settings.epochs)
    fresh.method.load_state_dict(case.method.state_dict())
    fresh.model.load_state_dict(case.model.state_dict())
    case.model = copy.deepcopy(fresh.model)
    for same in (case, fresh):
        same.model.train()
        same.method.train()
    for epoch in (7, 8):
        assert case.value(case.batch(), epoch) == fresh.value(fresh.batch(), epoch)


class Break(Callback):
    """A callback that breaks training off after an epoch."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_epoch_end(self, log: EpochLog) -> None:
        if log["epoch"] == self.after:
            raise KeyboardInterrupt


@once_each
def test_a_run_that_breaks_off_ends_where_the_unbroken_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, regime: str
) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    settings = Settings(epochs=7, batch_size=16, lr=0.01, device="cpu")

    def go(**more: Any) -> dict[str, Tensor]:
        case = Case(name, regime)
        fit(case.model, case.method, case.source, case.table, settings, **more)
        return {**case.model.state_dict(), **case.method.state_dict()}

    expected = go()
    with pytest.raises(KeyboardInterrupt):
        go(folder=tmp_path, callback=Break(after=6))
    found = go(folder=tmp_path, resume=True)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key].nan_to_num(-1), value.nan_to_num(-1)), key


class Extreme(Model):
    """Scores of ±1e4 in half precision, as a diverging network under autocast gives."""

    def __init__(self, model: Model, sign: float) -> None:
        super().__init__(model.backbone, model.head)
        self.sign = sign
        self.seen: list[Tensor] = []

    def forward(self, view: Tensor) -> Output:
        output = super().forward(view)
        size = output.logits.detach().abs().clamp(min=1e-3)
        logits = (self.sign * 1e4 * output.logits / size).clamp(-1e4, 1e4).half()
        logits.retain_grad()
        self.seen.append(logits)
        return output._replace(logits=logits)


@each_case
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["plus", "minus"])
def test_finite_at_extreme_logits_in_half_precision(name: str, regime: str, sign: float) -> None:
    case = Case(name, regime)
    model = Extreme(case.model, sign)
    case.model = model
    for epoch in (1, 2):
        loss = case.step(case.batch(), epoch)
        assert bool(loss.isfinite())
        loss.backward()
    gradients = [logits.grad for logits in model.seen if logits.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert all(bool(p.grad.isfinite().all()) for p in case.method.parameters() if p.grad is not None)


@each_name
def test_the_page_says_what_it_does_and_names_every_option(name: str) -> None:
    how = recipe(name)
    assert 20 < len(how.summary) < 160, how.summary
    assert how.summary.endswith((".", ":"))
    assert how.paper
    missing = [option for option in how.options if not re.search(rf"\b{option}\b", how.page)]
    assert not missing, f"the page does not name {missing}"


@each_name
def test_options_are_typed_checked_and_have_defaults(name: str) -> None:
    how = recipe(name)
    for option, parameter in how.options.items():
        assert parameter.default is not parameter.empty, option
        assert how.parse({option: str(parameter.default)}) == {option: parameter.default}
        if isinstance(parameter.default, int | float):
            with pytest.raises(UserError, match=option):
                how.parse({option: "much"})
    offered = how.tune({o: p.default for o, p in how.options.items()}) if callable(how.tune) else how.tune
    assert set(offered) <= set(how.options)
    for option, values in offered.items():
        for value in values:
            assert isinstance(how.make(**{option: value}), Method)
    assert {option: list(values) for option, values in offered.items()} == how.tunes({})
    with pytest.raises(UserError, match="no option 'no_such'"):
        how.make(no_such=1)
    with pytest.raises(UserError, match="no option 'no_such'"):
        how.parse({"no_such": "1"})


@each_name
def test_label_regimes_it_cannot_learn_from_are_refused(name: str) -> None:
    how = recipe(name)
    assert how.serves
    assert set(how.serves) <= set(REGIMES)
    for regime in REGIMES:
        if regime in how.serves:
            how.check_regime(regime)
        else:
            with pytest.raises(UserError, match=r"use one of: .*\ban\b") as caught:
                how.check_regime(regime)
            assert repr(name) in caught.value.message
    with pytest.raises(UserError, match="no label is known"):
        how.check_regime("empty")


def test_function_names_are_aliases() -> None:
    for how in recipes().values():
        assert recipe(how.build.__name__.replace("_", "-")) is how


def test_a_name_taken_twice_or_an_unknown_regime_raises() -> None:
    def bce(**options: Any) -> Method:
        return Method(BCE())

    with pytest.raises(ValueError, match="two methods are called 'bce'"):
        method(serves=["full"], paper="none")(bce)
    with pytest.raises(ValueError, match="no such regimes: \\['half'\\]"):
        method(serves=["half"], paper="none")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(recipes()))


def my_own(q: float = 1, name: str = "a") -> Method:
    """Does it."""
    return Method(BCE())


@pytest.mark.usefixtures("own")
def test_a_method_of_ones_own_is_found_wherever_it_was_registered() -> None:
    method(serves=["full"], paper="none")(my_own)
    assert (recipes()["my-own"].serves, recipes()["my-own"].summary) == (("full",), "Does it.")
    check_method("my-own")
    check_method("bce")
    assert recipe("my-own").make(q=0.5)


def test_a_method_of_ones_own_is_gone_after_the_test() -> None:
    with pytest.raises(UserError, match=r"lists all \d+; to use a method of your own: export HALFLABEL_METHODS"):
        check_method("my-own")


@pytest.mark.usefixtures("own")
def test_a_notebook_cell_with_a_method_can_be_run_again() -> None:
    method(serves=["full"], paper="first")(my_own)
    method(serves=["full"], paper="second")(my_own)
    assert recipe("my-own").paper == "second"
    monkey = types.FunctionType(my_own.__code__, globals(), "my_own", my_own.__defaults__)
    monkey.__module__ = "elsewhere"
    with pytest.raises(ValueError, match="two methods are called 'my-own'"):
        method(serves=["full"], paper="third")(monkey)
    with pytest.raises(ValueError, match="two methods are called 'em'"):
        method(serves=["full"], paper="none")(recipe("em").build)


@pytest.mark.usefixtures("own")
def test_options_of_ones_own_are_what_a_command_line_can_say() -> None:
    method(serves=["full"], paper="none")(my_own)
    assert recipe("my-own").parse({"q": "0.5", "name": "1"}) == {"q": 0.5, "name": "1"}

    def needs(margin: float) -> Method:
        return Method(BCE())

    def nothing(layers: int | None = None) -> Method:
        return Method(BCE())

    for build in (needs, nothing):
        with pytest.raises(ValueError, match="needs a number, a text, True or False as default"):
            method(serves=["full"], paper="none")(build)
    with pytest.raises(ValueError, match="my-own has no option 'p' to tune"):
        method(serves=["full"], paper="none", tune={"p": (1.0, 2.0)})(my_own)


@pytest.mark.usefixtures("own")
def test_a_method_that_is_none_or_asks_for_a_view_that_is_none_raises() -> None:
    def forgets(q: float = 1.0) -> Any:
        Method(BCE())

    method(serves=["full"], paper="none")(forgets)
    with pytest.raises(TypeError, match="forgets returns NoneType, not a Method"):
        recipe("forgets").make()
    with pytest.raises(ValueError, match="no view is called 'stronger': there are plain, weak, strong"):
        Method(BCE(), views=("weak", "stronger"))


def test_a_misspelt_method_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean bn-bce"):
        recipe("bn-bec")


@pytest.mark.parametrize("name", NAMES)
def test_no_option_hides_behind_one_of_train(name: str) -> None:
    """`halflabel train --NAME` goes to the command where it has such an option, and would never reach the method."""
    from typer.main import get_command

    from halflabel.cli import app

    taken = {parameter.name for parameter in get_command(app).commands["train"].params}  # type: ignore[attr-defined]
    assert not taken & set(recipe(name).options)
