"""Files of the user, and of installed packages, with methods, metrics, optimizers, schedules and label formats.

Such code registers itself when it is imported. Packages offer it by an entry point of the group `halflabel.plugins`;
HALFLABEL_PLUGINS lists single files, which become modules of this package. Importing this package imports them, so that
a process can unpickle their classes. Registries therefore import it only inside functions.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from functools import cache
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from halflabel.errors import UserError

VARIABLE = "HALFLABEL_PLUGINS"  # paths of .py files, separated as in PATH
ENTRY_POINTS = "halflabel.plugins"


@cache
def load() -> None:
    """Import the plugins of installed packages and the files listed in HALFLABEL_PLUGINS."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            raise UserError(
                f"the plugins of the package {package} cannot be imported: {type(error).__name__}: {error}",
                f"update or uninstall {package}",
            ) from error
    _load_listed_files()


def load_file(path: str | Path) -> None:
    """Import a file, and add it to HALFLABEL_PLUGINS so that child processes import it too."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"{path} is not a file", "give the path of a .py file")
    _import_file(file)
    listed = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    if str(file) not in listed:
        os.environ[VARIABLE] = os.pathsep.join([*listed, str(file)])


def _load_listed_files() -> None:
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        path = Path(name).expanduser()
        if name and not path.is_file():
            raise UserError(
                f"{VARIABLE} lists {path}, which is not a file", f"set {VARIABLE} to paths of .py files, or unset it"
            )
        if name:
            _import_file(path)


def _import_file(path: Path) -> None:
    """Import one file, unless it was imported before, under any name, or is the script that is running."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"{__name__}.{path.stem}_{digest}"
    imported = (vars(module).get("__file__") for module in [*sys.modules.values()] if isinstance(module, ModuleType))
    if any(os.path.realpath(file) == str(path.resolve()) for file in imported if file):
        return
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file", "give it a name that ends in .py")
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        fix = f"correct the file, or remove it from {VARIABLE}; `python {path}` shows the traceback"
        raise failure(error, path, "", fix) from error


def failure(error: Exception, file: str | Path, what: str, fix: str) -> UserError:
    """Return the error for an exception in a plugin: its file and line, `what` fails, and the exception."""
    absolute = os.path.abspath(file)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == absolute]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == absolute else (lines or [None])[-1]
    reason = " ".join(str(error).split())
    return UserError(f"{file}{f', line {line}' if line else ''}: {what}{type(error).__name__}: {reason}", fix)


_load_listed_files()
