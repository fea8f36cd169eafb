"""Digests of the code that trains a method and of own metrics: what was edited since is trained or measured again."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import NamedTuple

from halflabel.evaluation.registry import own_functions
from halflabel.methods.base import recipe

# Code that trains every method of a solver; the modules that it imports are added.
_TRAINING = {
    "lbfgs": ("halflabel.fitting.crossfit", "halflabel.fitting.solver"),
    "sgd": ("halflabel.fitting.loop",),
}
# Of this package, code that can change what a method learns. The version of halflabel covers the rest.
_OWN = ("halflabel.methods", "halflabel.features", "halflabel.fitting", "halflabel.types")


class _Module(NamedTuple):
    digest: str  # of its syntax tree
    imports: frozenset[str]  # modules that may be edited, also those that are imported inside functions


_READ: dict[str, tuple[object, _Module]] = {}  # the spec of its import and the module, by name


def method_digest(method: str, solver: str) -> str:
    """Return a digest of the source of a method, of all modules it imports, and of the solver.

    Comments and line breaks do not change it. Modules of installed packages, such as torch, are left out.
    """
    build = recipe(method).build
    return _digest([build], _TRAINING[solver])


def metrics_digest() -> str:
    """Return a digest of the source of the metrics that plugins have registered, "" without any."""
    functions = own_functions()
    return _digest(list(functions.values()), ()) if functions else ""


def _digest(functions: Sequence[Callable[..., object]], more: Sequence[str]) -> str:
    """Return a digest of the modules of these functions, of `more` modules, and of all modules these import."""
    modules, to_read = dict[str, str](), [*(each.__module__ for each in functions), *more]
    while to_read:
        name = to_read.pop()
        if name not in modules:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            # Read once per import: what is edited later is not what this process runs.
            if name not in _READ or _READ[name][0] is not spec:
                _READ[name] = spec, _read_module(name)
            modules[name] = _READ[name][1].digest
            to_read += _READ[name][1].imports
    content = [f"{name} {digest}" for name, digest in sorted(modules.items())]
    content += [_source(each) for each in functions if not modules[each.__module__]]  # a notebook cell has no file
    return hashlib.sha256("\n".join(content).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read_module(name: str) -> _Module:
    path, names = _file(name), set[str]()
    try:
        tree = ast.parse(path.read_bytes()) if path is not None else None
    except (OSError, SyntaxError, ValueError):
        tree = None
    if tree is None:
        return _Module("", frozenset())
    package = getattr(sys.modules.get(name), "__package__", None) or name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    digest = hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogateescape")).hexdigest()
    return _Module(digest, frozenset(imported for imported in names if _may_be_edited(imported)))


@cache
def _may_be_edited(name: str) -> bool:
    """Whether a name is a module of methods, models or training, or of code outside installed packages."""
    package = name.partition(".")[0]
    if package == "halflabel":
        return name.startswith(_OWN) and _file(name) is not None
    if package in sys.stdlib_module_names or not package:
        return False
    path = _file(package)
    return path is not None and not any(path.is_relative_to(f) for f in _package_folders()) and _file(name) is not None


@cache
def _package_folders() -> set[Path]:
    return {Path(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib", "purelib", "platlib")}


def _file(name: str) -> Path | None:
    """Return the source file of a module, imported or not; None for any other name."""
    try:
        spec = getattr(sys.modules.get(name), "__spec__", None) or find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _source(build: object) -> str:
    try:
        return inspect.getsource(build)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
