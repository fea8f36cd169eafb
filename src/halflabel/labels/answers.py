"""People's answers in a database to which rows are only ever added, which of them hold, and how people agree."""

from __future__ import annotations

import math
import re
import sqlite3
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halflabel.errors import UserError, hide_secrets, missing_package
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import Table

# Also as SQLAlchemy writes them, with the name of a driver.
_POSTGRESQL = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_LOCK = 0x68616C66  # number of the advisory lock that a writer holds
_NUMBER_COLUMN = {  # type of a column that counts rows, in SQLite or not
    True: "INTEGER PRIMARY KEY AUTOINCREMENT",
    False: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}


def database_name(place: str | Path) -> str:
    """Return a file, or the URL of a database without name, password and options."""
    return hide_secrets(str(place)).partition("?")[0] if "://" in str(place) else str(place)


def _check_url(url: str) -> str:
    if not _POSTGRESQL.match(url):
        kind = url.partition("://")[0]
        raise UserError(f"answers cannot be stored in {kind}://", "give postgresql://USER@HOST/DATABASE, or a file")
    url = _POSTGRESQL.sub("postgresql://", url, count=1)
    user = url.removeprefix("postgresql://").rpartition("@")[0]
    if re.search("[@/?#]|%(?![0-9a-fA-F]{2})", user):  # the driver would take a part of the password for the host
        fix = "write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"
        raise UserError("the name or the password in the address holds a character that divides addresses", fix)
    return url


class _Database:
    """A connection to a PostgreSQL database by its URL, or else to a SQLite file; used by one thread at a time."""

    def __init__(self, place: str | Path) -> None:
        self.is_file = "://" not in str(place)
        self.errors: tuple[type[Exception], ...] = (sqlite3.Error, ValueError)
        self.connect: Callable[[], Any]
        if self.is_file:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            self.connect = partial(sqlite3.connect, place, timeout=30, isolation_level=None, check_same_thread=False)
        else:
            url = _check_url(str(place))
            try:
                import psycopg
            except ImportError as error:
                raise missing_package(error, "postgres") from None
            self.errors = (psycopg.Error, ValueError)
            self.connect = partial(psycopg.connect, url, autocommit=True, connect_timeout=10)
        self.connection: Any = self.connect()
        if self.is_file:
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=FULL")

    def _execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        return self.connection.execute(statement if self.is_file else statement.replace("?", "%s"), values)

    def _open_again(self) -> None:
        """Open a lost connection again."""
        if not self.is_file and self.connection.closed:
            self.connection = self.connect()

    def read(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        self._open_again()
        cursor = self._execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def write(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Run a statement for each row in one transaction, which survives a power failure; returns how many changed."""
        self._open_again()
        self._execute("BEGIN IMMEDIATE" if self.is_file else "BEGIN")
        try:
            if not self.is_file:
                self._execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
            changed: int = sum(max(self._execute(statement, row).rowcount, 0) for row in rows)
            self._execute("COMMIT")
            return changed
        except BaseException:
            with suppress(*self.errors):  # it may have ended already
                self._execute("ROLLBACK")
            raise


_SCHEMA = """
CREATE TABLE IF NOT EXISTS project (id TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS answer (
    number NUMBER_COLUMN,
    key TEXT NOT NULL UNIQUE,   -- made by the page: an answer sent twice is stored once
    image TEXT NOT NULL,
    class TEXT NOT NULL,
    value INTEGER NOT NULL CHECK (value IN (-1, 0, 1)),  -- absent, unsure, present
    who TEXT NOT NULL,
    at TEXT NOT NULL,           -- UTC
    score DOUBLE PRECISION,     -- of the model, when the question was asked
    why TEXT NOT NULL,          -- why the question was asked, for people
    run TEXT NOT NULL,
    inclusion DOUBLE PRECISION NOT NULL CHECK (inclusion >= 0)  -- 0 chosen; of a random question its inclusion weight
);
CREATE TABLE IF NOT EXISTS undo (
    number NUMBER_COLUMN,
    answer TEXT NOT NULL UNIQUE, -- the key of the answer that is undone
    who TEXT NOT NULL,
    at TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS answer_entry ON answer (image, class);
"""
_COLUMNS = "key, image, class, value, score, why, inclusion, who, at, run"  # in the order of `Answer`
_VERSION = 2
_OTHER_PLACE = "restore a copy, or name another place: ‹answers› or ‹store›"
_START_DATABASE = "check that the database runs and its address is right, then run the same command again"

SETTLED = "settled"  # why of an answer that ends a conflict
_ERROR = 0.05  # of a reviewer before any question was answered twice
_PRIOR = 10.0  # answers that the mean error of all reviewers counts for
_ROUNDS = 20


class Answer(NamedTuple):
    """An answer: value +1 present, −1 absent, 0 unsure. A stored one says who gave it, when, and about which run."""

    key: str
    image: str
    label: str
    value: int
    score: float | None = None
    why: str = ""  # why the question was asked, for people
    weight: float = 0.0  # 0 if the question was chosen; of a random one the number of entries that it stands for
    who: str = ""
    at: str = ""
    run: str = ""

    @property
    def source(self) -> str:
        """Return the source of the label: who answered."""
        return f"person:{self.who}"


Group = Sequence[Answer]  # the answers of all people about one entry


class AnswerStore:
    """The answers in a SQLite file or a PostgreSQL database; several threads and processes may write at once.

    When `add` or `undo` returns, the change is on the disk and survives a power failure.
    """

    def __init__(self, place: str | Path) -> None:
        self.place, self.name = place, database_name(place)
        self._lock = threading.Lock()
        try:
            self._db = _Database(place)
            # One transaction per statement: two processes may create the same tables at once.
            for statement in _SCHEMA.replace("NUMBER_COLUMN", _NUMBER_COLUMN[self._db.is_file]).split(";\n"):
                if statement.strip():
                    self._db.write(statement, [()])
            once = "INSERT INTO project SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM project)"
            self._db.write(once, [(uuid.uuid4().hex, _VERSION)])
            self.project, version = self._db.read("SELECT id, version FROM project")[0]
        except UserError:
            raise
        except Exception as error:  # a damaged file may hold any value
            raise UserError(f"{self.name} cannot be used for answers ({_first_line(error)})", self._fix) from None
        if version != _VERSION:
            self.close()
            raise UserError(f"{self.name} was written by another version of halflabel", "use that version")

    @property
    def _fix(self) -> str:
        return _START_DATABASE if "://" in self.name else _OTHER_PLACE

    def close(self) -> None:
        self._db.connection.close()

    def add(self, answers: Iterable[Answer], who: str, run: str = "") -> int:
        """Add answers in one transaction; known keys are skipped. Returns the number of new answers."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        rows = [answer._replace(who=who, at=time, run=run) for answer in answers]
        places = ",".join("?" * len(Answer._fields))
        return self._write(f"INSERT INTO answer ({_COLUMNS}) VALUES ({places}) ON CONFLICT (key) DO NOTHING", rows)

    def undo(self, keys: Iterable[str], who: str) -> int:
        """Undo answers by their keys, whoever gave them; the answers before them hold again."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        return self._write(
            "INSERT INTO undo (answer, who, at) VALUES (?,?,?) ON CONFLICT (answer) DO NOTHING",
            [(key, who, time) for key in keys],
        )

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> int:
        with self._access() as database:
            return database.write(statement, rows)

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._access() as database:
            return database.read(query, values)

    @contextmanager
    def _access(self) -> Iterator[_Database]:
        """Give the database to one thread; its errors become a UserError: damaged, full, or cannot be reached."""
        try:
            with self._lock:
                yield self._db
        except self._db.errors as error:
            if "check constraint" in str(error).lower():
                raise  # the caller passed an invalid value; the database is fine
            fix = "free space on its disk" if "disk is full" in str(error) else self._fix
            raise UserError(f"{self.name} cannot be used for answers ({_first_line(error)})", fix) from None

    def current(self, entry: tuple[str, str] | None = None) -> list[Answer]:
        """Return the last answer per entry and person, oldest first, for one (image, class) or for all.

        Undone answers are left out. The answer that settles a conflict does not replace an earlier one of its person.
        """
        condition = "AND image = ? AND class = ? " if entry is not None else ""
        rows = self._read(
            f"SELECT {_COLUMNS} FROM answer WHERE number IN "
            "(SELECT MAX(number) FROM answer WHERE key NOT IN (SELECT answer FROM undo) "
            f"{condition}GROUP BY image, class, who, why = '{SETTLED}') ORDER BY number",
            entry or (),
        )
        answers = [Answer(*row) for row in rows]
        for item in answers:
            is_answer = item.value in (-1, 0, 1) and isinstance(item.weight, float) and 0 <= item.weight < math.inf
            if not is_answer or not all(isinstance(text, str) for text in (item.image, item.label)):
                raise UserError(f"{self.name} cannot be used for answers (a row is not an answer)", _OTHER_PLACE)
        return answers

    def changed_since(self, seen: tuple[int, int]) -> tuple[list[tuple[str, str]], tuple[int, int]]:
        """Return the (image, class) of answers and undos after the numbers `seen`, and the new numbers."""
        newest = self._read("SELECT (SELECT MAX(number) FROM answer), (SELECT MAX(number) FROM undo)")[0]
        answers, undos = (number or 0 for number in newest)
        if (answers, undos) == seen:
            return [], seen
        entries = self._read(
            "SELECT image, class FROM answer WHERE number > ? AND number <= ? UNION SELECT image, class FROM answer "
            "WHERE key IN (SELECT answer FROM undo WHERE number > ? AND number <= ?)",
            (seen[0], answers, seen[1], undos),
        )
        return [(image, label) for image, label in entries], (answers, undos)

    def count(self) -> tuple[int, int]:
        """Return the number of answers and of undos ever written."""
        answers, undos = self._read("SELECT (SELECT COUNT(*) FROM answer), (SELECT COUNT(*) FROM undo)")[0]
        return int(answers), int(undos)

    def label_rows(self, images: Names, classes: Names) -> Labels:
        """Return the answers that hold as label rows; unsure ones and conflicts that nothing decides are left out.

        Indices are those of the run's labels; photos that the labels do not list come after them.
        """
        answers = [item for item in holding_answers(self.current()) if item.value]
        names, labels = [item.image for item in answers], [item.label for item in answers]
        column = classes.index(labels)
        if (column < 0).any():
            name = labels[int(np.flatnonzero(column < 0)[0])]
            raise UserError(
                f"{self.name} has an answer for the class {name!r}, which the run does not have", "name its run"
            )
        images = images.union(Names(dict.fromkeys(names)))
        image = images.index(names)
        value, weight = np.array([item.value for item in answers]), np.array([item.weight for item in answers])
        sources = list(dict.fromkeys(item.source for item in answers))
        source = np.array([sources.index(item.source) for item in answers])
        return Labels.build(images, classes, image, column, value, source, None, sources, weight)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def answered_entries(place: str | Path, table: Table) -> list[tuple[int, int]]:
    """Return the entries of a table that are answered, unsure ones too; empty where the file is missing."""
    if isinstance(place, Path) and not place.exists():
        return []
    with closing(AnswerStore(place)) as store:
        entries = list(dict.fromkeys((item.image, item.label) for item in store.current()))
    image = table.images.index([name for name, _ in entries])
    column = table.classes.index([label for _, label in entries])
    return [(int(i), int(c)) for i, c in zip(image, column, strict=True) if i >= 0 and c >= 0]


class Agreement(NamedTuple):
    """How two people agree: pairs of answers, equal pairs, and Cohen's κ (None if all answers are the same)."""

    pairs: int
    equal: int
    kappa: float | None


def group_by_entry(answers: Iterable[Answer]) -> dict[tuple[str, str], list[Answer]]:
    """Return the answers about each (image, class), in their order."""
    groups: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for item in answers:
        groups[item.image, item.label].append(item)
    return dict(groups)


def _votes(group: Group) -> list[Answer]:
    """Return the yes and no answers, without the one that settled a conflict."""
    return [item for item in group if item.value and item.why != SETTLED]


def _settled(group: Group) -> Answer | None:
    return next((item for item in reversed(group) if item.why == SETTLED), None)


def is_conflict(group: Group) -> bool:
    """Whether people differ about an entry and nobody has settled it."""
    return len({item.value for item in _votes(group)}) > 1 and _settled(group) is None


def expected_errors(groups: Iterable[Group]) -> dict[str, float]:
    """Return the expected share of wrong answers of each reviewer, from the questions that several people answered.

    The model of Dawid and Skene (1979) with one error per person: where no answer settles what is right, a difference
    counts for each person by how likely it is that this person is wrong. The mean of all counts as 10 more answers.
    """
    several = [(votes, _settled(group)) for group in groups if len(votes := _votes(group)) > 1]
    counts: dict[str, int] = defaultdict(int)
    for votes, _ in several:
        for item in votes:
            counts[item.who] += 1
    errors = dict.fromkeys(counts, _ERROR)
    for _ in range(_ROUNDS if several else 0):
        wrong = dict.fromkeys(counts, 0.0)
        for votes, settled in several:
            evidence = sum(item.value * _weight(errors[item.who]) for item in votes)
            for item in votes:
                if settled is None:
                    wrong[item.who] += 1 / (1 + math.exp(item.value * evidence))
                else:
                    wrong[item.who] += settled.value not in (0, item.value)
        mean = (sum(wrong.values()) + _PRIOR * _ERROR) / (sum(counts.values()) + _PRIOR)
        errors = {who: (wrong[who] + _PRIOR * mean) / (count + _PRIOR) for who, count in counts.items()}
    return errors


def _weight(error: float) -> float:
    """Return the log odds that an answer is right."""
    error = min(max(error, 1e-3), 0.45)
    return math.log((1 - error) / error)


def holding_answer(group: Group, errors: Mapping[str, float]) -> Answer:
    """Return the answer that holds for an entry; unsure (0) where people differ and are equally reliable.

    The settled answer holds; else the one that more reliable people gave. If one of the answers was to a control
    question, the entry was drawn at random: the result is a control answer too.
    """
    votes = _votes(group)
    held = _settled(group)
    if held is None and votes:
        evidence = sum(item.value * _weight(errors.get(item.who, _ERROR)) for item in votes)
        value = 0 if abs(evidence) < 1e-9 else int(math.copysign(1, evidence))
        best = min(votes, key=lambda item: (item.value != value, errors.get(item.who, _ERROR)))
        held = best._replace(value=value)
    held = held or group[-1]
    return held._replace(weight=next((item.weight for item in group if item.weight), 0.0))


def holding_answers(answers: Iterable[Answer]) -> list[Answer]:
    """Return the answer that holds for each entry."""
    groups = group_by_entry(answers).values()
    errors = expected_errors(groups)
    return [holding_answer(group, errors) for group in groups]


def measure_agreement(groups: Iterable[Group]) -> dict[str, Agreement]:
    """Return the agreement of all classes together, under "", and of each class that two people answered."""
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for group in groups:
        for first, second in combinations(sorted(_votes(group), key=lambda item: item.who), 2):
            pairs[""].append((first.value, second.value))
            pairs[first.label].append((first.value, second.value))
    return {label: _agreement(values) for label, values in pairs.items()}


def _agreement(pairs: Sequence[tuple[int, int]]) -> Agreement:
    """κ = (p − e) / (1 − e): p of the pairs are equal, and e would be if both answered at random as often yes."""
    number = len(pairs)
    equal = sum(first == second for first, second in pairs)
    p, q = (sum(pair[k] > 0 for pair in pairs) / number for k in (0, 1))
    chance = p * q + (1 - p) * (1 - q)
    return Agreement(number, equal, None if chance == 1 else (equal / number - chance) / (1 - chance))
