"""People's answers in one SQLite file. Rows are only ever added, which gives undo and a full history."""

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
from halflabel.labels.provenance import ASKED_SOURCE, CONTROL_SOURCE
from halflabel.labels.rows import Rows
from halflabel.labels.table import LabelTable
from halflabel.runs.folder import RunFolder

__all__ = ["Answer", "AnswerStore", "CurrentAnswer", "answered_entries", "review_answers"]


SOURCES = (ASKED_SOURCE, CONTROL_SOURCE)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS project (id TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS answer (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,   -- made by the page: an answer sent twice is stored once
    image TEXT NOT NULL,
    class TEXT NOT NULL,
    value INTEGER NOT NULL CHECK (value IN (-1, 0, 1)),  -- absent, unsure, present
    who TEXT NOT NULL,
    at TEXT NOT NULL,           -- UTC
    score REAL,                 -- of the model, when the question was asked
    why TEXT NOT NULL,          -- why the question was asked
    run TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS undo (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    answer TEXT NOT NULL UNIQUE, -- the key of the answer that is undone
    who TEXT NOT NULL,
    at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS answer_entry ON answer (image, class);
"""
_VERSION = 1


class Answer(NamedTuple):
    """An answer to store: value +1 present, −1 absent, 0 unsure."""

    key: str
    image: str
    label: str
    value: int
    score: float | None = None
    why: str = ""


class CurrentAnswer(NamedTuple):
    """The answer that holds for an entry after all answers and undos."""

    key: str
    image: str
    label: str
    value: int
    score: float | None
    why: str
    who: str
    at: str
    run: str

    @property
    def source(self) -> str:
        """Return the source of the label: whether its question was drawn at random or chosen."""
        return CONTROL_SOURCE if self.why.startswith("control") else ASKED_SOURCE


class AnswerStore:
    """A file of answers. When `add` or `undo` returns, the change is on the disk and survives a power failure.

    SQLite with a write-ahead log, synced at each commit; several threads and processes may write at once.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            # One transaction per statement: two processes may create the same file at once.
            for statement in _SCHEMA.split(";\n"):
                self._db.execute(statement)
            self._db.execute("BEGIN IMMEDIATE")
            if self._db.execute("SELECT 1 FROM project").fetchone() is None:
                self._db.execute("INSERT INTO project VALUES (?, ?)", (uuid.uuid4().hex, _VERSION))
            self._db.execute("COMMIT")
            self.project, version = self._db.execute("SELECT id, version FROM project").fetchone()
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:  # a damaged file may hold any value
            raise UserError(
                f"{self.path} cannot be used for answers ({error})", "name another file: --answers"
            ) from None
        if version != _VERSION:
            self.close()
            raise UserError(f"{self.path} was written by another version of halflabel", "use that version")

    def close(self) -> None:
        self._db.close()

    def add(self, answers: Iterable[Answer], who: str, run: str = "") -> int:
        """Add answers in one transaction; known keys are skipped. Returns the number of new answers."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        rows = [(a.key, a.image, a.label, a.value, who, time, a.score, a.why, run) for a in answers]
        return self._write(
            "INSERT INTO answer (key, image, class, value, who, at, score, why, run) VALUES (?,?,?,?,?,?,?,?,?) "
            "ON CONFLICT (key) DO NOTHING",
            rows,
        )

    def undo(self, keys: Iterable[str], who: str) -> int:
        """Undo answers by their keys, whoever gave them; the answers before them hold again."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        return self._write(
            "INSERT INTO undo (answer, who, at) VALUES (?,?,?) ON CONFLICT (answer) DO NOTHING",
            [(key, who, time) for key in keys],
        )

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> int:
        with self._lock, self._explain_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                before = self._db.total_changes
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
                return self._db.total_changes - before
            except BaseException:
                if self._db.in_transaction:  # SQLite may have ended it already
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn SQLite errors into a UserError: the file is damaged or cannot be written."""
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            if isinstance(error, sqlite3.IntegrityError) and "CHECK" in str(error):
                raise  # the caller passed an invalid value; the file is fine
            is_full = "disk is full" in str(error)
            fix = "free space on its disk" if is_full else "restore a copy, or name another file: --answers"
            raise UserError(f"{self.path} cannot be used for answers ({error})", fix) from None

    def current(self, entry: tuple[str, str] | None = None) -> list[CurrentAnswer]:
        """Return the last answer per entry that was not undone, oldest first, for one (image, class) or for all."""
        condition = "AND image = ? AND class = ? " if entry is not None else ""
        query = (
            "SELECT key, image, class, value, score, why, who, at, run FROM answer WHERE number IN "
            "(SELECT MAX(number) FROM answer WHERE key NOT IN (SELECT answer FROM undo) "
            f"{condition}GROUP BY image, class) ORDER BY number"
        )
        with self._lock, self._explain_errors(), closing(self._db.execute(query, entry or ())) as rows:
            answers = [CurrentAnswer(*row) for row in rows]
            for item in answers:
                if item.value not in (-1, 0, 1) or not all(isinstance(text, str) for text in (item.image, item.label)):
                    raise ValueError("a row is not an answer")
            return answers

    def version(self) -> int:
        """Return a number that changes when another process writes."""
        with self._lock, self._explain_errors():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def count(self) -> tuple[int, int]:
        """Return the number of answers and of undos ever written."""
        with self._lock, self._explain_errors():
            answers = self._db.execute("SELECT COUNT(*) FROM answer").fetchone()[0]
            undos = self._db.execute("SELECT COUNT(*) FROM undo").fetchone()[0]
        return int(answers), int(undos)

    def history(self) -> set[tuple[str, str, int]]:
        """Return all (image, class, value) ever answered, undone or not."""
        with (
            self._lock,
            self._explain_errors(),
            closing(self._db.execute("SELECT image, class, value FROM answer")) as rows,
        ):
            return set(rows)

    def is_export(self, path: Path, labels: Rows) -> bool:
        """Whether a file is an export of these answers, alone or after `labels`; it may then be overwritten safely."""
        from halflabel.labels import formats

        try:
            rows = formats.read(path, format="long").rows
        except UserError:
            return False
        history, label_count = self.history(), len(labels)

        def are_answers(first: int) -> bool:
            """Whether all rows from `first` on were answered here."""
            if any(rows.sources[number] not in SOURCES for number in np.unique(rows.source[first:])):
                return False
            entries = (part[first:].tolist() for part in (rows.image, rows.column, rows.value))
            return all((rows.images[i], rows.classes[c], v) in history for i, c, v in zip(*entries, strict=True))

        if are_answers(0):
            return True
        image = labels.images.index(rows.images.array)[rows.image[:label_count]]
        column = labels.classes.index(rows.classes.array)[rows.column[:label_count]]
        same = ((image, labels.image), (column, labels.column), (rows.value[:label_count], labels.value))
        return len(rows) > label_count and all(np.array_equal(a, b) for a, b in same) and are_answers(label_count)

    def label_rows(self, images: Names, classes: Names) -> Rows:
        """Return the current answers as label rows; unsure answers are left out.

        Image and class indices are those of the run's labels; answers about other names are refused.
        """
        answers = [item for item in self.current() if item.value]
        image, column = images.index([item.image for item in answers]), classes.index([item.label for item in answers])
        for kind, indices, names in (
            ("image", image, [item.image for item in answers]),
            ("class", column, [item.label for item in answers]),
        ):
            if (indices < 0).any():
                name = names[int(np.flatnonzero(indices < 0)[0])]
                raise UserError(
                    f"{self.path} has an answer for the {kind} {name!r}, which the run does not have", "name its run"
                )
        value = np.array([item.value for item in answers], np.int8)
        source = np.array([SOURCES.index(item.source) for item in answers], np.int16)
        return Rows.build(images, classes, image, column, value, source, None, SOURCES)


def answered_entries(path: Path, table: LabelTable) -> list[tuple[int, int]]:
    """Return the entries of a table that are answered in a file, unsure ones too; empty where the file is missing."""
    if not path.exists():
        return []
    store = AnswerStore(path)
    try:
        answers = store.current()
    finally:
        store.close()
    image = table.images.index([item.image for item in answers])
    column = table.classes.index([item.label for item in answers])
    return [(int(i), int(c)) for i, c in zip(image, column, strict=True) if i >= 0 and c >= 0]


def review_answers(run: RunFolder) -> Rows | None:
    """Return the answers of `review` about the images of a run as label rows, or None if there are none."""
    if not run.answers.exists():
        return None
    table = run.read_labels()
    with closing(AnswerStore(run.answers)) as store:
        rows = store.label_rows(table.images, table.classes)
    return rows if len(rows) else None
