"""Answers: what people said, in one SQLite file. Rows are only ever added, so that undo and history are free."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable

__all__ = ["SOURCE", "Answer", "Answers", "Standing", "answered"]

SOURCE = "person"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS project (id TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS answer (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,   -- made by the page: said twice is said once
    image TEXT NOT NULL,
    class TEXT NOT NULL,
    value INTEGER NOT NULL CHECK (value IN (-1, 0, 1)),  -- absent, unsure, present
    who TEXT NOT NULL,
    at TEXT NOT NULL,           -- UTC
    score REAL,                 -- the model's, when it was asked
    why TEXT NOT NULL,          -- why it was asked
    run TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS undo (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    answer TEXT NOT NULL UNIQUE, -- the key of what is taken back
    who TEXT NOT NULL,
    at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS answer_entry ON answer (image, class);
"""
_VERSION = 1


class Answer(NamedTuple):
    """One thing a person said: value +1 present, −1 absent, 0 unsure."""

    key: str
    image: str
    label: str
    value: int
    score: float | None = None
    why: str = ""


class Standing(NamedTuple):
    """What holds for one entry after all answers and undos."""

    key: str
    image: str
    label: str
    value: int
    score: float | None
    why: str
    who: str
    at: str
    run: str


class Answers:
    """A file of answers. What `say` and `undo` return from is on the disk, whatever happens to the machine then.

    Write-ahead log, synced at each commit; several pages and several processes may write at once.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            # Several statements, each its own transaction: two that open a new file at once may both make it.
            for statement in _SCHEMA.split(";\n"):
                self._db.execute(statement)
            self._db.execute("BEGIN IMMEDIATE")
            if self._db.execute("SELECT 1 FROM project").fetchone() is None:
                self._db.execute("INSERT INTO project VALUES (?, ?)", (uuid.uuid4().hex, _VERSION))
            self._db.execute("COMMIT")
            self.project, version = self._db.execute("SELECT id, version FROM project").fetchone()
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:  # a damaged file brings odd values, and texts
            raise UserError(
                f"{self.path} cannot be used for answers ({error})", "name another file: --answers"
            ) from None
        if version != _VERSION:
            self.close()
            raise UserError(f"{self.path} was written by another version of halflabel", "use that version")

    def close(self) -> None:
        self._db.close()

    def say(self, answers: Iterable[Answer], who: str, run: str = "") -> int:
        """Add answers in one transaction; those whose key is known are passed over. Returns how many were new."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        rows = [(a.key, a.image, a.label, a.value, who, at, a.score, a.why, run) for a in answers]
        return self._write(
            "INSERT INTO answer (key, image, class, value, who, at, score, why, run) VALUES (?,?,?,?,?,?,?,?,?) "
            "ON CONFLICT (key) DO NOTHING",
            rows,
        )

    def undo(self, keys: Iterable[str], who: str) -> int:
        """Take answers back by their keys, whoever gave them; what was said before them holds again."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return self._write(
            "INSERT INTO undo (answer, who, at) VALUES (?,?,?) ON CONFLICT (answer) DO NOTHING",
            [(key, who, at) for key in keys],
        )

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> int:
        with self._lock, self._sound():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                before = self._db.total_changes
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
                return self._db.total_changes - before
            except BaseException:
                if self._db.in_transaction:  # a damaged file may have ended it
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Say in words that the file is damaged, or that it cannot be written."""
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            if isinstance(error, sqlite3.IntegrityError) and "CHECK" in str(error):
                raise  # a value that is none is the caller's mistake, not the file's
            full = "disk is full" in str(error)
            fix = "make room on its disk" if full else "put back a copy, or name another file: --answers"
            raise UserError(f"{self.path} cannot be used for answers ({error})", fix) from None

    def standing(self, entry: tuple[str, str] | None = None) -> list[Standing]:
        """The answers that hold, oldest first, of one (image, class) or of all: each the last one not taken back."""
        only = "AND image = ? AND class = ? " if entry is not None else ""
        query = (
            "SELECT key, image, class, value, score, why, who, at, run FROM answer WHERE number IN "
            f"(SELECT MAX(number) FROM answer WHERE key NOT IN (SELECT answer FROM undo) {only}GROUP BY image, class) "
            "ORDER BY number"
        )
        with self._lock, self._sound(), closing(self._db.execute(query, entry or ())) as found:
            standing = [Standing(*row) for row in found]
            for item in standing:
                if item.value not in (-1, 0, 1) or not all(isinstance(text, str) for text in (item.image, item.label)):
                    raise ValueError("a row is no answer")
            return standing

    def version(self) -> int:
        """A number that changes when another process writes."""
        with self._lock, self._sound():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def count(self) -> tuple[int, int]:
        """How many answers and how many undos were ever written."""
        with self._lock, self._sound():
            said = self._db.execute("SELECT COUNT(*) FROM answer").fetchone()[0]
            undone = self._db.execute("SELECT COUNT(*) FROM undo").fetchone()[0]
        return int(said), int(undone)

    def ever(self) -> set[tuple[str, str, int]]:
        """All (image, class, value) that were ever said, whether they still hold or not."""
        with self._lock, self._sound(), closing(self._db.execute("SELECT image, class, value FROM answer")) as found:
            return set(found)

    def exported(self, path: Path, labels: Rows) -> bool:
        """Whether a file is an export of these answers, alone or after `labels`: whatever it says was said here."""
        from halflabel.labels import formats

        try:
            rows = formats.read(path, format="long").rows
        except UserError:
            return False
        ever, many = self.ever(), len(labels)

        def is_said(first: int) -> bool:
            if any(rows.sources[number] != SOURCE for number in np.unique(rows.source[first:])):
                return False
            entries = (part[first:].tolist() for part in (rows.image, rows.column, rows.value))
            return all((rows.images[i], rows.classes[c], v) in ever for i, c, v in zip(*entries, strict=True))

        if is_said(0):
            return True
        image = labels.images.index(rows.images.array)[rows.image[:many]]
        column = labels.classes.index(rows.classes.array)[rows.column[:many]]
        same = ((image, labels.image), (column, labels.column), (rows.value[:many], labels.value))
        return len(rows) > many and all(np.array_equal(a, b) for a, b in same) and is_said(many)

    def rows(self, images: Names, classes: Names) -> Rows:
        """Label rows of the standing answers, source "person". Unsure says nothing, and so leaves earlier labels alone.

        Images and classes keep the places they have in the run's labels; answers about others are refused.
        """
        said = [item for item in self.standing() if item.value]
        image, column = images.index([item.image for item in said]), classes.index([item.label for item in said])
        for kind, at, names in (
            ("image", image, [item.image for item in said]),
            ("class", column, [item.label for item in said]),
        ):
            if (at < 0).any():
                name = names[int(np.flatnonzero(at < 0)[0])]
                raise UserError(
                    f"{self.path} speaks of the {kind} {name!r}, which the run does not know", "name its run"
                )
        value = np.array([item.value for item in said], np.int8)
        return Rows.build(images, classes, image, column, value, SOURCE)


def answered(path: Path, table: LabelTable) -> list[tuple[int, int]]:
    """The entries of a table that a file of answers speaks of, unsure ones too; none where there is no file."""
    if not path.exists():
        return []
    store = Answers(path)
    try:
        said = store.standing()
    finally:
        store.close()
    image = table.images.index([item.image for item in said])
    column = table.classes.index([item.label for item in said])
    return [(int(i), int(c)) for i, c in zip(image, column, strict=True) if i >= 0 and c >= 0]
