"""One file per paper. Each recipe registers itself; see `halflabel.method.method`."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["names"]


def names() -> set[str]:
    """The names of all methods, read from the files' text: without importing torch, for quick commands."""
    found: set[str] = set()
    for path in Path(__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for given, function in re.findall(r"^@method\((.*?)^def (\w+)", text, re.DOTALL | re.MULTILINE):
            named = re.search(r'^    name="([^"]+)"', given, re.MULTILINE)
            found.add(named[1] if named else function.replace("_", "-"))
    return found
