"""The databases that hold people's answers: a SQLite file, or PostgreSQL for a team. `AnswerStore` uses both alike.

Statements have `?` for values. Writers take turns, so that the numbers of rows grow in the order of their commits.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from halflabel.errors import UserError, hide_secrets, missing_package

# Also as SQLAlchemy writes them, with the name of a driver.
_POSTGRESQL = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_LOCK = 0x68616C66  # number of the advisory lock that a writer holds
Values = Sequence[object]


def open_database(place: str | Path) -> _SQLite | _PostgreSQL:
    """Open a PostgreSQL database by its URL, or else a SQLite file, which is created."""
    if "://" not in str(place):
        return _SQLite(Path(place))
    if not _POSTGRESQL.match(str(place)):
        kind = str(place).partition("://")[0]
        raise UserError(f"answers cannot be stored in {kind}://", "give postgresql://USER@HOST/DATABASE, or a file")
    url = _POSTGRESQL.sub("postgresql://", str(place), count=1)
    user = url.removeprefix("postgresql://").rpartition("@")[0]
    if re.search("[@/?#]|%(?![0-9a-fA-F]{2})", user):  # the driver would take a part of the password for the host
        fix = "write @ as %40, / as %2F, ? as %3F, # as %23 and % as %25"
        raise UserError("the name or the password in the address holds a character that divides addresses", fix)
    return _PostgreSQL(url)


def database_name(place: str | Path) -> str:
    """Return a file, or the URL of a database without name, password and options.

    >>> database_name("postgresql://ann:secret@db.example/photos?sslmode=require")
    'postgresql://db.example/photos'
    """
    return hide_secrets(str(place)).partition("?")[0] if "://" in str(place) else str(place)


class _SQLite:
    """A connection to a SQLite file, used by one thread at a time."""

    number_column = "INTEGER PRIMARY KEY AUTOINCREMENT"  # type of a column that counts rows
    errors: tuple[type[Exception], ...] = (sqlite3.Error, ValueError)

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")

    def read(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.connection.execute(statement, values).fetchall()

    def write(self, statement: str, rows: Sequence[Values]) -> int:
        """Run a statement for each row in one transaction; returns how many rows of the table changed.

        On return the change survives a power failure.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            before = self.connection.total_changes
            for row in rows:
                self.connection.execute(statement, row)
            self.connection.execute("COMMIT")
            return self.connection.total_changes - before
        except BaseException:
            if self.connection.in_transaction:  # SQLite may have ended it already
                self.connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self.connection.close()


class _PostgreSQL:
    """A connection to a PostgreSQL database, with the methods of `_SQLite`."""

    number_column = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise missing_package(error, "postgres") from None
        self.errors: tuple[type[Exception], ...] = (psycopg.Error, ValueError)
        self.connect = partial(psycopg.connect, url, autocommit=True, connect_timeout=10)
        self.connection: Any = self.connect()

    def _open(self) -> Any:
        """Return the connection; a lost one is opened again."""
        if self.connection.closed:
            self.connection = self.connect()
        return self.connection

    def read(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        cursor = self._open().execute(statement.replace("?", "%s"), values)
        return list(cursor.fetchall()) if cursor.description else []

    def write(self, statement: str, rows: Sequence[Values]) -> int:
        with self._open().transaction(), self.connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            if rows:
                cursor.executemany(statement.replace("?", "%s"), rows)
            return int(cursor.rowcount) if rows else 0

    def close(self) -> None:
        self.connection.close()
