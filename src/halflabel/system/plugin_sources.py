"""The files in which registered functions are defined: a script that runs is not imported again as a plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_FILES: set[str] = set()


def remember(function: Callable[..., Any]) -> None:
    """Note the file of a function that registers itself; sys.modules notes those that are imported as plugins."""
    code = getattr(function, "__code__", None)
    if code is not None and not function.__module__.startswith("halflabel.system.plugins."):
        _FILES.add(code.co_filename)


def source_files() -> set[Path]:
    """Return the files noted so far that exist."""
    return {path for path in map(Path, _FILES) if path.is_file()}
