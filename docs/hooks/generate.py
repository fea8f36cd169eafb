"""Writes the pages that are made from the code: `make docs` runs it, and a test fails where a page is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from api_page import api_page
from command_pages import command_page
from method_pages import method_pages

__all__ = ["pages"]

DOCS = Path(__file__).parents[1]


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its path in docs/."""
    results = (DOCS.parent / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    return {"reference/api.md": api_page(), "reference/commands.md": command_page(), **method_pages(results)}


if __name__ == "__main__":
    for old in (DOCS / "methods").glob("*.md"):
        old.unlink()
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")
