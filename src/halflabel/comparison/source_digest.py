"""Digest of the code that trains a method: finished runs are used again while it is the same."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import halflabel
from halflabel.evaluation.registry import own_functions
from halflabel.methods.base import recipe, recipes

_READ: dict[str, tuple[object, bytes]] = {}  # the spec of its import and the syntax tree of a module, by name


def method_digest(method: str) -> str:
    """Return a digest of the version of halflabel and of the file of a method; comments do not change it.

    For a method of a plugin, the modules beside that file count too, as the method may import them; not those that hold
    only metrics. In a notebook, the cell counts.
    """
    build = recipe(method).build
    module = sys.modules.get(build.__module__)
    if (path := _file(module)) is None:
        content = [_parse(inspect.getsource(build))]
    elif build.__module__.startswith("halflabel.methods."):
        content = [_read(build.__module__, path)]
    else:
        with_methods = {each.build.__module__ for each in recipes().values()}
        metrics = {function.__module__ for function in own_functions().values()} - with_methods
        loaded = ((name, _file(each)) for name, each in sorted(sys.modules.items()) if name not in metrics)
        content = [_read(name, file) for name, file in loaded if file is not None and file.parent == path.parent]
    return hashlib.sha256(b"\n".join([halflabel.__version__.encode(), *content])).hexdigest()[:16]


def _file(module: ModuleType | None) -> Path | None:
    """Return the source file of a module that was imported; None for built-in modules and for a running script."""
    spec = getattr(module, "__spec__", None)
    return Path(spec.origin) if spec is not None and str(spec.origin).endswith(".py") else None


def _read(name: str, path: Path) -> bytes:
    """Read a module once per import: what is edited later is not what this process runs."""
    spec = sys.modules[name].__spec__
    if name not in _READ or _READ[name][0] is not spec:
        _READ[name] = spec, _parse(path.read_bytes())
    return _READ[name][1]


def _parse(source: str | bytes) -> bytes:
    return ast.dump(ast.parse(source)).encode("utf-8", "surrogateescape")
