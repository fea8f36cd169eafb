"""What every registered method promises, whatever its paper: one loop over the registry, one case per label regime."""

from __future__ import annotations

import types
from typing import Any

import pytest

from halflabel.errors import UserError
from halflabel.methods import base as registry
from halflabel.methods.base import REGIMES, Method, method, recipe, recipes
from halflabel.methods.parts.losses import BCE
from halflabel.testing.method_contract import CHECKS, ONCE, check_page

NAMES = list(recipes())
CASES = [(name, regime) for name, how in recipes().items() for regime in how.serves]
each_case = pytest.mark.parametrize(("name", "regime"), CASES, ids=["-".join(case) for case in CASES])
each_name = pytest.mark.parametrize("name", NAMES)
LAST = [(name, how.serves[-1]) for name, how in recipes().items()]  # one regime each, for what takes longer
once_each = pytest.mark.parametrize(("name", "regime"), LAST, ids=["-".join(case) for case in LAST])


@each_case
@pytest.mark.parametrize("check", CHECKS)
def test_every_method_keeps_the_contract(check: str, name: str, regime: str) -> None:
    CHECKS[check](recipe(name), regime)


@once_each
@pytest.mark.parametrize("check", [check for check in ONCE if check != "export to ONNX"])
def test_every_method_keeps_its_state(check: str, name: str, regime: str) -> None:
    ONCE[check](recipe(name), regime)


@pytest.mark.slow
@once_each
def test_every_method_is_exported(name: str, regime: str) -> None:
    ONCE["export to ONNX"](recipe(name), regime)


@each_name
def test_the_page_says_what_it_does_and_names_every_option(name: str) -> None:
    how = recipe(name)
    check_page(how)
    assert 20 < len(how.summary) < 160, how.summary
    assert how.summary.endswith((".", ":"))
    assert how.paper


@each_name
def test_options_are_typed_checked_and_have_defaults(name: str) -> None:
    how = recipe(name)
    for option, parameter in how.options.items():
        assert parameter.default is not parameter.empty, option
        assert how.parse({option: str(parameter.default)}) == {option: parameter.default}
        if isinstance(parameter.default, int | float):
            with pytest.raises(UserError, match=option):
                how.parse({option: "much"})
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
    assert recipe("my-own").make(q=0.5)


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
