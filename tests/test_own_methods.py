"""Methods in files of one's own, which the variable HALFLABEL_METHODS names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from halflabel import method
from halflabel.errors import UserError
from halflabel.method import recipe, recipes
from halflabel.methods import OWN, listed

MINE = '''
from halflabel.losses import BCE
from halflabel.method import Method, method

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
    method._discover.cache_clear()
    yield
    method._discover.cache_clear()


def write(path: Path, text: str = MINE) -> Path:
    path.write_text(text)
    return path


def test_files_that_are_named_hold_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write(tmp_path / "other.py", MINE.replace("my_own", "another"))
    monkeypatch.setenv(OWN, os.pathsep.join(map(str, (write(tmp_path / "mine.py"), other))))
    assert listed()["my-own"].summary == "Half as much of everything."
    assert recipe("my-own").options["weight"].default == 0.5
    assert "another" in recipes()
    assert isinstance(recipe("my-own").make(), method.Method)


def test_without_the_name_the_message_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OWN, raising=False)
    with pytest.raises(UserError, match="no method is called 'my-own'"):
        recipe("my-own")
    with pytest.raises(UserError, match=f"export {OWN}=mine.py"):
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
    monkeypatch.setenv(OWN, str(write(tmp_path / "mine.py", text)))
    with pytest.raises(UserError, match=said):
        recipes()


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, str(tmp_path / "gone.py"))
    for look in (listed, recipes):
        with pytest.raises(UserError, match=r"gone\.py, which is no file"):
            look()


def test_a_file_that_was_run_already_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "mine.py")
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    monkeypatch.setenv(OWN, str(path))
    assert "my-own" in recipes()
