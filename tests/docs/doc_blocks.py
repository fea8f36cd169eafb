"""The code blocks of README and docs, with the place of each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGES", "ROOT", "Block", "blocks_of", "commands_in"]

ROOT = Path(__file__).parents[2]
_GENERATED = {*(ROOT / "docs" / "methods").glob("*.md"), *(ROOT / "docs" / "reference").glob("[ac]*.md")}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*(ROOT / "docs").rglob("*.md")} - _GENERATED)]

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced code block; `reason` says why it is not run, if it is not."""

    page: Path
    line: int
    language: str
    text: str
    reason: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, *languages: str) -> Iterator[Block]:
    """Yield the code blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        if match["language"] in languages:
            line = text.count("\n", 0, match.start("language")) + 1
            yield Block(page, line, match["language"], match["text"], match["reason"] or "")


def commands_in(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block; in a console block those after the prompt `$`."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        if words := shlex.split(line, comments=True):
            yield words
