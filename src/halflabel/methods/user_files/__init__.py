"""Methods in the user's own files, listed in the environment variable HALFLABEL_METHODS.

A file such as ~/research/mine.py becomes the module `halflabel.methods.user_files.mine_<hash of its path>`. Importing
this package imports all listed files, so a process that unpickles a class of such a file finds its module.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from halflabel.errors import UserError
from halflabel.methods.base import import_package_methods, source_files

__all__ = ["VARIABLE", "listed_files", "load_listed_files", "load_methods"]

VARIABLE = "HALFLABEL_METHODS"  # paths of .py files, separated as in PATH


def listed_files() -> list[Path]:
    """Return the files listed in HALFLABEL_METHODS; raise if one does not exist."""
    paths = [Path(name).expanduser() for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{VARIABLE} lists {path}, which is not a file", f"set {VARIABLE} to paths of .py files, or unset it"
            )
    return paths


def load_listed_files() -> None:
    """Import every file listed in HALFLABEL_METHODS that has not been imported yet."""
    import_package_methods()  # first, so that a name that is taken is reported for the user's file
    for path in listed_files():
        _import_file(path)


def load_methods(path: str | Path) -> None:
    """Import a file with methods, and add it to HALFLABEL_METHODS so that child processes import it too."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"{path} is not a file", "give the path of a .py file with methods")
    import_package_methods()
    _import_file(file)
    listed = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    if str(file) not in listed:
        os.environ[VARIABLE] = os.pathsep.join([*listed, str(file)])


def _module_name(path: Path) -> str:
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"{__name__}.{path.stem}_{digest}"


def _import_file(path: Path) -> None:
    """Import one file, unless it was imported before or is the script that is running."""
    name = _module_name(path)
    if name in sys.modules or any(path.samefile(file) for file in source_files()):
        return
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file", "give it a name that ends in .py")
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"{path}, line {line}" if line else str(path)
        fix = f"correct the file, or remove it from {VARIABLE}; `python {path}` shows the traceback"
        raise UserError(f"{where}: {type(error).__name__}: {error}", fix) from error


load_listed_files()
