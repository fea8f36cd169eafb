"""JSON whose values know their place, for errors: `Node`, and `JsonLines` with one record per line."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import existing_path, offer_encodings
from halflabel.labels.formats._sheets import CsvTable
from halflabel.system.files import DuplicateKey, is_utf8, parse_json

Id: TypeAlias = int | str
Record: TypeAlias = dict[str, Any]

_SNIFF_BYTES = 1 << 20
MAX_SCORE = 3.4e38
_CONSTANTS: dict[Any, str] = {True: "true", False: "false", None: ""}


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a JSON file; what it contains are nodes too, and what is missing is null."""

    value: Any
    path: Path
    parent: Node | None = None
    key: str | int = ""

    @property
    def place(self) -> str:
        """Where the value stands in the file, or in its line of the file."""
        if self.parent is None:
            return "" if isinstance(self.key, int) else self.key
        before = self.parent.place
        key = f"[{self.key}]" if isinstance(self.key, int) else self.key
        return before + "." * bool(before and not key.startswith("[")) + key

    @property
    def line(self) -> int | None:
        """The line of the file, where each line has a document: the key of the document."""
        return self.parent.line if self.parent is not None else self.key if isinstance(self.key, int) else None

    def error(self, message: str, fix: str) -> LabelError:
        return LabelError(message, fix, self.path, line=self.line, column=self.place or None)

    def refuse(self, expected: str, fix: str) -> LabelError:
        """The LabelError for a value of another kind than expected."""
        kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null or missing"}
        what = kinds.get(type(self.value), f"the number {self.value!r:.40}")
        beside = self.parent.value if self.parent is not None and self.value is None else None
        found = (
            f"; the keys are: {', '.join(map(repr, list(beside)[:12])) or 'nothing'}"
            if isinstance(beside, dict)
            else ""
        )
        return self.error(f"this is {what}, not {expected}{found}", fix)

    def __getitem__(self, key: str) -> Node:
        return Node(self.value.get(key) if isinstance(self.value, dict) else None, self.path, self, key)

    def child(self, key: str | int, value: Any) -> Node:
        """The node of a value that is known to be in this one."""
        return Node(value, self.path, self, key)

    def object(self, fix: str = "make it an object") -> Record:
        if not isinstance(self.value, dict):
            raise self.refuse("an object", fix)
        return self.value

    def each(self) -> list[Node]:
        if isinstance(self.value, dict):
            return [Node(item, self.path, self, key) for key, item in self.value.items()]
        return self.list("make it a list or an object", optional=True)

    def list(self, fix: str = "make it a list", *, optional: bool = False) -> list[Node]:
        """The items of a list; null is an empty list if it is `optional`."""
        if not isinstance(self.value, list) and not (optional and self.value is None):
            raise self.refuse("a list", fix)
        return [Node(item, self.path, self, number) for number, item in enumerate(self.value or ())]

    def id(self) -> Id:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, str)):
            raise self.refuse("an id", "give it a whole number or a text")
        return self.value

    def name(self) -> str:
        """The value as a name: text that is not empty and can be encoded."""
        if not isinstance(self.value, str):
            raise self.refuse("a name", "give it a name, as text")
        if not self.value or not is_utf8(self.value):
            what = f"the name {self.value!r} has half a character in it" if self.value else "the name is empty"
            raise self.error(what, "write the name again")
        return self.value

    def score(self) -> float:
        """The value as a score that fits into float32; NaN for null."""
        if self.value is None:
            return math.nan
        # An integer may have hundreds of digits.
        is_number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not is_number or abs(self.value) > MAX_SCORE:
            raise self.error("this is not a score", "give it a number from 0 to 1")
        return float(self.value)


def starts_with(text: str, bracket: str) -> bool:
    """Whether JSON text starts with "{" or "[", after blanks and a byte order mark."""
    return text.lstrip("\ufeff \t\r\n").startswith(bracket)


def head_and_tail(path: Path) -> str:
    """The first and the last megabyte of a file as text, for detecting formats; "" if it cannot be read."""
    try:
        if not path.is_file():
            return ""
        with open(path, "rb") as file:
            head = file.read(_SNIFF_BYTES)
            file.seek(max(len(head), path.stat().st_size - _SNIFF_BYTES))
            return (head + file.read()).decode("utf-8", errors="replace")
    except OSError:
        return ""


def load_json(path: str | Path, without: Collection[str] = ()) -> Node:
    """The content of a JSON file; the keys `without` are dropped while parsing, so that outlines cost no memory."""
    path = existing_path(path)
    try:
        raw = path.read_bytes()
    except MemoryError:
        raise LabelError("the file is larger than the memory", "split the file", path) from None
    except OSError as error:
        raise LabelError(f"cannot be read: {error.strerror}", "check that you may read the file", path) from None
    text = _decode(raw, json.detect_encoding(raw), path)
    del raw
    return Node(_parse(text, path, without=without), path)


def _decode(raw: bytes, encoding: str, path: Path) -> str:
    """The text of a file without its byte order mark; LabelError with the line of a byte that does not decode."""
    try:
        return raw.decode(encoding).lstrip("\ufeff")
    except UnicodeDecodeError as fault:
        line = raw.count(b"\n", 0, fault.start) + 1
        fix = offer_encodings(raw)
        raise LabelError(f"this is not {encoding.upper()} text", fix, path, line=line) from None
    except (LookupError, ValueError):
        raise LabelError(f"no encoding is called {encoding!r}", "try utf-8 or latin-1", path) from None


def _parse(text: str, path: Path, first_line: int | None = None, **options: Any) -> Any:
    """Parse JSON that begins on a line of a file; LabelError with the line of a fault."""
    try:
        return parse_json(text, **options)
    except json.JSONDecodeError as fault:
        line, message = fault.lineno, f"this is not JSON: {fault.msg} at character {fault.colno}"
        fix = "export the file again, or repair it here"
    except DuplicateKey as fault:
        fix = "remove one of them: only one value can be meant"
        raise LabelError(f"the key {fault.key!r} occurs twice in one object", fix, path, line=first_line) from None
    except (RecursionError, ValueError):  # brackets nested a thousand deep; a number of thousands of digits
        line, message, fix = 1, "this JSON is nested too deep or has a number too long", "export it again"
    raise LabelError(message, fix, path, line=(first_line or 1) + line - 1)


def load_lines(path: Path, encoding: str = "utf-8", **options: Any) -> Iterator[Node]:
    """The object on each line of a file; blank lines are left out."""
    path = existing_path(path)
    number = 0
    for line, text in enumerate(_decode(path.read_bytes(), encoding, path).split("\n"), 1):
        if text.strip(" \t\r"):
            number = line
            record = _parse(text, path, line, **options)
            if not isinstance(record, dict):
                raise LabelError("this is not an object", 'write one like {"file_name": "a.jpg", …}', path, line=line)
            yield Node(record, path, key=line)
    if not number:
        raise LabelError("the file has no rows", "export the labels again", path)


class JsonLines(CsvTable):
    """One JSON object per line as a table, of single values or lists; numbers keep their spelling."""

    def __init__(self, path: Path, encoding: str | None) -> None:
        self.path = existing_path(path)
        nodes = list(load_lines(self.path, encoding or "utf-8", parse_int=str, parse_float=str, parse_constant=str))
        self.lines = [node.line for node in nodes]
        self.records: list[Record] = [node.value for node in nodes]
        self.header = list(dict.fromkeys(key for record in self.records for key in record))
        self._check_header()
        self._encode(self.header, "a column name", None)

    def _count(self) -> int:
        return len(self.records)

    def is_list(self, name: str) -> bool:
        return any(isinstance(record.get(name), list) for record in self.records)

    def _cells(self, name: str) -> pa.Array:
        raw = [record.get(name) for record in self.records]
        try:
            values = [_CONSTANTS.get(value, value) for value in raw]
        except TypeError:
            row = next(row for row, value in enumerate(raw) if isinstance(value, (dict, list)))
            fix = f"store text, numbers, true, false or null, or add ‹ignore={name}›"
            raise self.error("an object or a list cannot be a label", fix, row=row, column=name) from None
        return self._encode(values, "the text", name)

    def _values(self, name: str) -> list[Any]:
        return [record.get(name) for record in self.records]

    def _line(self, row: int) -> int:
        return self.lines[row] or 1

    def _encode(self, values: list[Any], what: str, name: str | None) -> pa.Array:
        """Strings to Arrow; JSON can contain half of a surrogate pair, which is not valid text."""
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:
            message = f"{what} has half a character in it"
            raise self.error(message, "write the text again", column=name) from None
