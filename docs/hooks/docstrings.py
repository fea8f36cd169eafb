"""Makes Markdown of docstrings, for the page of the Python API."""

from __future__ import annotations

import re

__all__ = ["to_markdown"]

_DOCTEST = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)
_LIST_ITEM = re.compile(r"^ *- ")
_ALIGNED = re.compile(r"^\w+ {3,}\S")


def to_markdown(text: str) -> str:
    """Return the text with doctests and aligned columns as code blocks, and a blank line before lists.

    >>> to_markdown("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    >>> to_markdown("X is:\\n  - a\\n  - b")
    'X is:\\n\\n- a\\n- b'
    >>> to_markdown("zero    what 0 means\\nsplit   what to read")
    '    zero    what 0 means\\n    split   what to read'
    """
    paragraphs = re.split(r"\n\n", text)
    text = "\n\n".join(_paragraph(paragraph.split("\n")) for paragraph in paragraphs)
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)


def _paragraph(lines: list[str]) -> str:
    if len(lines) > 1 and all(map(_ALIGNED.match, lines)):
        return "\n".join(f"    {line}" for line in lines)
    first = next((number for number, line in enumerate(lines) if _LIST_ITEM.match(line)), None)
    if first is None:
        return "\n".join(lines)
    indent = len(lines[first]) - len(lines[first].lstrip())
    items = [line[indent:] if line[:indent].isspace() else line for line in lines[first:]]
    return "\n".join([*lines[:first], *([""] if first else []), *items])
