"""One file per paper. Each recipe registers itself; see `halflabel.methods.base.method`."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from halflabel.errors import UserError

__all__ = ["NOT_METHODS", "OWN", "REGIMES", "Listed", "listed", "names", "no_method", "own_files"]

OWN = "HALFLABEL_METHODS"  # the variable that names files with further methods, as PATH names folders
NOT_METHODS = ("advice", "auto", "base", "checks", "parts")  # modules of this package that hold no method
REGIMES = ("full", "partial", "positives-only", "single-positive")


class Listed(NamedTuple):
    """What a list of methods shows; `alias` is the function's own name, which finds the method too."""

    name: str
    alias: str
    serves: tuple[str, ...]
    summary: str


def listed() -> dict[str, Listed]:
    """All methods by name, read from the files' text: without importing torch, for quick commands.

    Methods that other code has registered are among them.
    """
    try:
        found = [one for path in (*_own_modules(), *own_files()) for one in _read(path)]
    except (ValueError, KeyError, SyntaxError):  # something that only running the file can tell
        from halflabel.methods.base import recipes

        recipes()
        found = []
    if "halflabel.methods.base" in sys.modules:  # else nobody can have registered any
        from halflabel.methods.base import registered

        found += [
            Listed(one.name, one.build.__name__.replace("_", "-"), one.serves, one.summary) for one in registered()
        ]
    return {one.name: one for one in sorted(found)}


def _own_modules() -> list[Path]:
    return [path for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_METHODS]


def own_files() -> list[Path]:
    """The files that HALFLABEL_METHODS names."""
    found = [Path(name).expanduser() for name in os.environ.get(OWN, "").split(os.pathsep) if name]
    for path in found:
        if not path.is_file():
            raise UserError(f"{OWN} names {path}, which is no file", f"give {OWN} paths of .py files, or unset it")
    return found


def names() -> set[str]:
    """The names of all methods, without importing torch."""
    return set(listed())


def no_method(name: str, known: Collection[str]) -> UserError:
    """What to say of the name of no method."""
    close = get_close_matches(name.lower().replace("_", "-"), known, 3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    own = "" if close else f"; for one of your own, let {OWN} name its file: export {OWN}=mine.py"
    return UserError(f"no method is called {name!r}", f"{hint}`halflabel methods` lists all {len(known)}{own}")


def _read(path: Path) -> Iterator[Listed]:
    """The functions of a file that `@method(...)` stands above."""
    constants: dict[str, Any] = {"REGIMES": REGIMES}
    for part in ast.parse(path.read_text(encoding="utf-8")).body:
        target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
        if isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and part.value is not None:
            with suppress(ValueError):  # what is no literal is no such constant
                constants[target.id] = ast.literal_eval(part.value)
        if not isinstance(part, ast.FunctionDef):
            continue
        for call in part.decorator_list:
            if isinstance(call, ast.Call) and _name_of(call.func) == "method":
                given = {word.arg: word.value for word in call.keywords}
                serves, name = given["serves"], given.get("name")
                own = part.name.replace("_", "-")
                yield Listed(
                    ast.literal_eval(name) if name is not None else own,
                    own,
                    tuple(constants[serves.id] if isinstance(serves, ast.Name) else ast.literal_eval(serves)),
                    (ast.get_docstring(part) or "").split("\n\n")[0].replace("\n", " "),
                )


def _name_of(called: ast.expr) -> str:
    """The last word of what is called: `method`, also in `halflabel.methods.base.method`."""
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
