"""Rows of the tables in benchmarks/RESULTS.md, by the method that they measure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from markdown.extensions.toc import slugify

__all__ = ["Row", "rows_of"]


class Row(NamedTuple):
    """One row of a table; a repeated first cell that the table leaves empty is filled in."""

    section: str
    anchor: str
    header: tuple[str, ...]
    cells: tuple[str, ...]


def rows_of(method: str, results: str) -> Iterator[Row]:
    """Yield the rows of tables with a column of methods whose cell begins with the method.

    In a column of parts, rows without a method are parts of the method named above them.

    >>> table = "| labels | method | mAP |\\n|---|---|---|\\n| one | `an` | 79 |\\n| | **`em`, tuned** | 82 |"
    >>> [row.cells for row in rows_of("em", table)]
    [('one', '**`em`, tuned**', '82')]
    >>> table = "| part | mAP |\\n|---|---|\\n| `srcr`, BCE | 73 |\\n| + PL | 72 |\\n| `imcl` | 71 |"
    >>> [row.cells for row in rows_of("srcr", table)]
    [('`srcr`, BCE', '73'), ('+ PL', '72')]
    """
    current = ""
    for row in _rows(results):
        column = next((number for number, name in enumerate(row.header) if name in ("method", "part")), None)
        if column is None:
            continue
        named = re.match(r"\**`([^`]+)`", row.cells[column])
        current = named[1] if named else current if row.header[column] == "part" else ""
        if current == method:
            yield row


def _rows(results: str) -> Iterator[Row]:
    section, header, earlier = "", (), ()
    for line in results.split("\n"):
        if line.startswith("## "):
            section = line[3:].strip()
        if not line.startswith("|"):
            header = ()
            continue
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if not header:
            header, earlier = cells, cells
        elif set("".join(cells)) <= set("-:"):
            continue
        else:
            if not cells[0]:
                cells = (earlier[0], *cells[1:])
            earlier = cells
            yield Row(section, slugify(section, "-"), header, cells)
