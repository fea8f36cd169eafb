"""Errors that the user can fix: the command line shows one message, no traceback, and exits with code 2.

Messages name options as data, ‹name› or ‹name=value›: the command line shows `--name value`, Python `name="value"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

_MAX_LENGTH = 2000  # characters; a name in a damaged file may have millions

_OPTION = re.compile("‹([a-z_]+)(?:=(.*?))?›", re.DOTALL)
Options = Sequence[tuple[str, str | None]]  # name and value

_ANY_OPTION = "‹[a-z_]+(?:=[^›]*)?›"
_ALTERNATIVE = re.compile(rf"({_ANY_OPTION}(?: {_ANY_OPTION})*)(?: \(([^()]*)\))?")  # options, and what they mean
_ALTERNATIVES = re.compile(rf"add {_ALTERNATIVE.pattern}(?:(?:, or |, | or ){_ALTERNATIVE.pattern})*")
# The name and password of an address, and a password among the parameters of a connection.
_SECRETS = re.compile(
    r"(?<=://)(?:[^\s/:@]*:(?!\d+(?:[/?\s'\"]|$))\S*@|[^\s/@]*@)|(?<=password=)(?:'[^']*'|[^\s&]+)", re.IGNORECASE
)
_TABLES = ("values", "where")  # options whose values are NAME=VALUE


def hide_secrets(text: str) -> str:
    """A text without the names and passwords in its addresses.

    >>> hide_secrets("postgresql://ann:p/a@s@db.example/photos, https://example.org:8000/a@b.jpg")
    'postgresql://db.example/photos, https://example.org:8000/a@b.jpg'
    >>> hide_secrets("host=db password=secret user=ann")
    'host=db password= user=ann'
    """
    return _SECRETS.sub("", text)


def write_options(text: str, write: Callable[[str, str | None], str]) -> str:
    """A message with its options, ‹name› or ‹name=value›, as `write` spells them."""
    return _OPTION.sub(lambda option: write(option[1], option[2]), text)


def alternatives(fix: str) -> list[tuple[Options, str]]:
    """The options that a fix offers, "add A or B C (why)": those to be added together, and why; else none.

    >>> alternatives("add ‹unlisted=unknown› (nobody looked) or ‹unlisted=absent› ‹zero=absent›")
    [([('unlisted', 'unknown')], 'nobody looked'), ([('unlisted', 'absent'), ('zero', 'absent')], '')]
    >>> alternatives("write one name, or add ‹merge_names›")
    []
    """
    if not _ALTERNATIVES.fullmatch(fix):
        return []
    found = _ALTERNATIVE.finditer(fix)
    return [([(o[1], o[2]) for o in _OPTION.finditer(each[1])], each[2] or "") for each in found]


def write_alternative(options: Options) -> str:
    """Options as a message holds them.

    >>> write_alternative([("unlisted", "absent"), ("merge_names", None)])
    '‹unlisted=absent› ‹merge_names›'
    """
    return " ".join(f"‹{name}›" if value is None else f"‹{name}={value}›" for name, value in options)


def in_python(text: str) -> str:
    """A message with its options as Python parameters.

    >>> in_python("add ‹minus_one=absent›, or raise ‹max_bad› (now 0.1)")
    'add minus_one="absent", or raise max_bad (now 0.1)'
    >>> in_python("add ‹ignore=my notes› or ‹where=split=train›, and ‹clip=1›")
    'add ignore="my notes" or where={"split": "train"}, and clip=1'
    """
    return write_options(text, _parameter)


def _parameter(name: str, value: str | None) -> str:
    if value is None:
        return name
    if name in _TABLES:
        key, _, item = value.rpartition("=") if name == "values" else value.partition("=")
        return f'{name}={{"{key}": "{item}"}}'
    return f"{name}={value}" if value[:1].isdigit() or value.isupper() else f'{name}="{value}"'


class UserError(Exception):
    """An error that the user can fix: `message` says what is wrong, `fix` what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        message, fix = hide_secrets(_shorten(message)), hide_secrets(_shorten(fix))
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        """The text of a Python traceback, with options as parameters."""
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
    text = in_python(error.message) if isinstance(error, UserError) else str(error)
    return (text.splitlines() or [type(error).__name__])[0]


def missing_package(error: ImportError, extra: str) -> UserError:
    """Return the error for a package that only an extra of halflabel installs.

    >>> print(missing_package(ImportError("No module named 'fastapi'"), "web"))
    a package is not installed (No module named 'fastapi'). Fix: pip install 'halflabel[web]'
    """
    return UserError(f"a package is not installed ({error})", f"pip install 'halflabel[{extra}]'")
