"""Audit: what a reader did with a label file: how each raw value was read, how often, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from halflabel.labels.labels import Labels
from halflabel.labels.table import Table


class ValueCount(NamedTuple):
    """`entries` entries of the file had the text `raw` and were read as `meaning`."""

    raw: str
    meaning: str
    entries: int


@dataclass
class Audit:
    """How a label file was read: the files, the meaning of each raw value, and notes for the user."""

    format: str
    files: list[str]
    value_counts: list[ValueCount] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, raw: str, meaning: str, count: int) -> None:
        """Record that `count` entries with the text `raw` were read as `meaning`; nothing for a count of 0."""
        if count:
            self.value_counts.append(ValueCount(raw, meaning, int(count)))

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self.notes.append(text)

    def note_count(self, count: int, text: str) -> None:
        """Add a note that begins with a number; nothing for 0."""
        if count:
            self.note(f"{count} {text}")

    def note_names(self, text: str, names: Iterable[str]) -> None:
        """Add a note that ends with a list of names; nothing for an empty one."""
        if listed := ", ".join(names):
            self.note(f"{text}: {listed}")


class LabelImport(NamedTuple):
    """The result of reading a label file: the rows, and the audit of how they were read."""

    rows: Labels
    audit: Audit

    def table(self) -> Table:
        """The table of labels that hold."""
        return self.rows.training
