"""Printed tables: the figures of a paper as it prints them, written down as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Column", "Number", "Published", "table"]


class Column(NamedTuple):
    """What a figure was measured on (data set, share of known labels, …), and which measure it is."""

    condition: str
    measure: str


class Number(NamedTuple):
    """A figure and, where the paper gives it, its spread; `printed` is how the paper writes it, without blanks."""

    value: float
    spread: float | None
    printed: str

    @classmethod
    def parse(cls, text: str) -> Number | None:
        """
        >>> Number.parse("89.42±0.27")
        Number(value=89.42, spread=0.27, printed='89.42±0.27')
        >>> Number.parse("–") is None
        True
        """
        if text == "–":
            return None
        value, _, spread = text.partition("±")
        return cls(float(value), float(spread) if spread else None, text)


@dataclass(frozen=True)
class Published:
    """One table of a paper: row -> column -> figure. `notes` say what the print leaves open."""

    id: str
    caption: str
    rows: Mapping[str, Mapping[Column, Number]]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(dict.fromkeys(column for cells in self.rows.values() for column in cells))

    def number(self, row: str, condition: str, measure: str) -> Number | None:
        """The figure, or None where the paper has none."""
        return self.rows.get(row, {}).get(Column(condition, measure))


def table(
    id: str, caption: str, blocks: Mapping[str | tuple[str, ...], str], measures: Sequence[str], *notes: str
) -> Published:
    """Read a table from blocks of text, condition -> lines of `row | figures`, a figure per measure, – for none.

    A block of several conditions has on each line all measures of the first, then those of the second, and so on.

    >>> small = table("S0-table1", "", {("10 %", "90 %"): "bce | 61.7 – 77.7 76.6"}, ("mAP", "OF1"))
    >>> small.number("bce", "90 %", "OF1").value, small.number("bce", "10 %", "OF1")
    (76.6, None)
    """
    rows: dict[str, dict[Column, Number]] = {}
    for conditions, text in blocks.items():
        each = (conditions,) if isinstance(conditions, str) else conditions
        columns = [Column(condition, measure) for condition in each for measure in measures]
        for line in text.strip().splitlines():
            name, _, figures = line.partition("|")
            cells = rows.setdefault(name.strip(), {})
            for column, figure in zip(columns, figures.split(), strict=True):
                number = Number.parse(figure)
                if number is None:
                    continue
                if column in cells:
                    raise ValueError(f"{id}: {name.strip()!r} has two figures for {column}")
                cells[column] = number
    return Published(id, caption, rows, notes)
