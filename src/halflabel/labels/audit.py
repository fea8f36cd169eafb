"""Audit: what an import made of a file: which raw value became what, how often, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable

__all__ = ["Audit", "Became", "Import"]


class Became(NamedTuple):
    """`entries` entries written `raw` in the file were read as `meaning`."""

    raw: str
    meaning: str
    entries: int


@dataclass
class Audit:
    """What was read, for a person to check at a glance."""

    format: str
    files: list[str]
    became: list[Became] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, raw: str, meaning: str, count: int) -> None:
        if count:
            self.became.append(Became(raw, meaning, int(count)))

    def note(self, text: str) -> None:
        self.notes.append(text)


class Import(NamedTuple):
    """The result of reading a label file."""

    rows: Rows
    audit: Audit

    def table(self) -> LabelTable:
        return self.rows.resolve()
