"""Rows of the tables in benchmarks/RESULTS.md, by the method that they measure."""

from __future__ import annotations

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
    """Yield the rows of tables with a column of methods whose cell names the method first.

    >>> text = "## VOC\\n\\n| labels | method | mAP |\\n|---|---|---|\\n| one | `an` | 79 |\\n| | `em`, tuned | 82 |"
    >>> [row.cells for row in rows_of("em", text)]
    [('one', '`em`, tuned', '82')]
    """
    for row in _rows(results):
        columns = [number for number, name in enumerate(row.header) if name in ("method", "part")]
        for column in columns:
            first = row.cells[column].replace("*", "").partition("`")[2].partition("`")[0]
            if first == method.replace("*", "") and ("*`" in row.cells[column]) == method.endswith("*"):
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
