"""Errors that are the user's to fix: one message, no traceback, exit code 2."""

from __future__ import annotations

from pathlib import Path

__all__ = ["LabelError", "NoReadableImage", "UserError", "WrongHead", "missing_package"]

_LONGEST = 2000  # characters: a name in a damaged file may have millions


class UserError(Exception):
    """Something the user can put right: `message` says what is wrong, `fix` what to do about it."""

    def __init__(self, message: str, fix: str = "") -> None:
        message, fix = _short(message), _short(fix)
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.fix}" if self.fix else self.message


class LabelError(UserError):
    """A label file that cannot be read as it stands, with the place of the first fault.

    >>> print(LabelError("value 'maybe' is not a label", "use 1, 0 or blank", "tags.csv", line=7, column="dog"))
    tags.csv, line 7, column 'dog': value 'maybe' is not a label. Fix: use 1, 0 or blank
    """

    def __init__(
        self, message: str, fix: str, file: str | Path, *, line: int | None = None, column: str | None = None
    ) -> None:
        where = str(file)
        if line is not None:
            where += f", line {line}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {message}", fix)
        self.file = str(file)
        self.line = line
        self.column = column


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


class NoReadableImage(UserError):
    """Of all images asked for not one can be read; of a part of them that may be no fault."""


class WrongHead(UserError):
    """A method's step asks for more than the output, and the model has another head than the method makes."""


def missing_package(error: ImportError, extra: str) -> UserError:
    """Return the error for a package that only an extra of halflabel installs.

    >>> print(missing_package(ImportError("No module named 'fastapi'"), "web"))
    a package is not installed (No module named 'fastapi'). Fix: pip install 'halflabel[web]'
    """
    return UserError(f"a package is not installed ({error})", f"pip install 'halflabel[{extra}]'")
