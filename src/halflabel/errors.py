"""Errors that the user can fix: the command line shows one message, no traceback, and exits with code 2."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["LabelError", "NoReadableImage", "UserError", "WrongHead", "error_summary", "in_python", "missing_package"]

_MAX_LENGTH = 2000  # characters; a name in a damaged file may have millions


_COMMANDS = re.compile(r"(`[^`]*`|\bhalflabel [a-z][^;()]*)")
_VALUES = (
    "absent|all|auto|bf16|binary|cooccurrence|cpu|crop|device|false|fp16|graph|head|lbfgs|long|plateau|present|sgd|space|"
    "squash|step|tags|test|train|trainval|true|unknown|utf-16|wide"
)
_OPTION = re.compile(rf"(?<![\w-])--([a-z][a-z0-9-]*)(?:[ =](\d[\w.]*|{_VALUES})(?![\w-]))?")


def in_python(text: str) -> str:
    """A message with command-line options written as Python parameters; whole commands stay.

    >>> in_python("add --minus-one absent, or raise --max-bad; see `halflabel train --help`")
    'add minus_one="absent", or raise max_bad; see `halflabel train --help`'
    >>> in_python("use --schedule step, or --optimizer sgd")
    'use schedule="step", or optimizer="sgd"'
    >>> in_python("lower --lr (now 0.1), or add --clip 1, or: halflabel train --resume runs/first")
    'lower lr (now 0.1), or add clip=1, or: halflabel train --resume runs/first'
    """

    def parameter(option: re.Match[str]) -> str:
        name, value = option[1].replace("-", "_"), option[2]
        if value is None:
            return name
        if value in ("true", "false"):
            return f"{name}={value.capitalize()}"
        return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'

    parts = _COMMANDS.split(text)
    return "".join(part if number % 2 else _OPTION.sub(parameter, part) for number, part in enumerate(parts))


class UserError(Exception):
    """An error that the user can fix: `message` says what is wrong, `fix` what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        message, fix = _shorten(message), _shorten(fix)
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        """The text of a Python traceback, with options as parameters; the command line shows `message` and `fix`."""
        return in_python(f"{self.message}. Fix: {self.fix}" if self.fix else self.message)


class LabelError(UserError):
    """A label file that cannot be read, with the position of the first error.

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


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH // 2]} … {text[-_MAX_LENGTH // 2 :]}"


class NoReadableImage(UserError):
    """None of the requested images can be read; for a part of a data set callers may accept that."""


class WrongHead(UserError):
    """A method needs outputs that only its own head computes, and the model has another head."""


def error_summary(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has no message.

    >>> error_summary(ValueError("no\\nnumber")), error_summary(ValueError())
    ('no', 'ValueError')
    """
    text = error.message if isinstance(error, UserError) else str(error)
    return (text.splitlines() or [type(error).__name__])[0]


def missing_package(error: ImportError, extra: str) -> UserError:
    """Return the error for a package that only an extra of halflabel installs.

    >>> print(missing_package(ImportError("No module named 'fastapi'"), "web"))
    a package is not installed (No module named 'fastapi'). Fix: pip install 'halflabel[web]'
    """
    return UserError(f"a package is not installed ({error})", f"pip install 'halflabel[{extra}]'")
