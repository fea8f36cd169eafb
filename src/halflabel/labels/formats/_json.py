"""JSON with errors that name the place: one object with lists of records (COCO), or one record per line (JSON Lines).

A place in an object is written like `annotations[3].category_id`; in JSON Lines it is the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import CsvTable
from halflabel.labels.formats._paths import existing_path
from halflabel.system.files import DuplicateKey, is_utf8, parse_json

Id: TypeAlias = int | str
Record: TypeAlias = dict[str, Any]

_SNIFF_BYTES = 1 << 20
MAX_SCORE = 3.4e38
_CONSTANTS: dict[Any, str] = {True: "true", False: "false", None: ""}


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


def load_json(path: str | Path, without: Collection[str] = ()) -> Any:
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
    return _parse(text, path, without=without)


def _decode(raw: bytes, encoding: str, path: Path) -> str:
    """The text of a file without its byte order mark; LabelError with the line of a byte that does not decode."""
    try:
        return raw.decode(encoding).lstrip("\ufeff")
    except UnicodeDecodeError as fault:
        line = raw.count(b"\n", 0, fault.start) + 1
        fix = "save the file as UTF-8, or state its encoding, such as ‹encoding=latin-1›"
        raise LabelError(f"this is not {encoding.upper()} text", fix, path, line=line) from None
    except (LookupError, ValueError):
        raise LabelError(f"no encoding is called {encoding!r}", "try utf-8 or latin-1", path) from None


def _parse(text: str, path: Path, first_line: int = 1, **options: Any) -> Any:
    """Parse JSON that begins on a line of a file; LabelError with the line of a fault."""
    try:
        return parse_json(text, **options)
    except json.JSONDecodeError as fault:
        line, message = fault.lineno, f"this is not JSON: {fault.msg} at character {fault.colno}"
        fix = "export the file again, or repair it here"
    except DuplicateKey as fault:
        line, message = fault.line, f"the key {fault.key!r} occurs twice in one object"
        fix = "remove one of them: only one value can be meant"
    except (RecursionError, ValueError):  # brackets nested a thousand deep; a number of thousands of digits
        line, message, fix = 1, "this JSON is nested too deep or has a number too long", "export it again"
    raise LabelError(message, fix, path, line=first_line + line - 1)


def load_object(path: str | Path, without: Collection[str] = ()) -> Record:
    """The object in a JSON file; `without` as in `load_json`."""
    document = load_json(path, without)
    if not isinstance(document, dict):
        raise LabelError(
            f"the file holds {_describe_value(document)}, not an object with images, annotations and categories",
            "name the annotation file itself; a file of results has no list of images",
            path,
        )
    return document


def record_list(document: Record, key: str, path: str | Path) -> list[Record]:
    """The list of objects under a key of the document; LabelError if it is missing or something else."""
    items = document.get(key)
    if not isinstance(items, list):
        keys = ", ".join(map(repr, list(document)[:12])) or "nothing"
        message = f"{key!r} is {_describe_value(items)}; the keys are: {keys}"
        raise LabelError(message, f"make {key!r} a list of objects", path, column=key)
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise LabelError(f"this is {_describe_value(item)}", "make it an object", path, column=f"{key}[{number}]")
    return items


def record_id(record: Record, key: str, path: str | Path, place: str) -> Id:
    """The id under a key of a record: a whole number or text."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        message = f"this is {_describe_value(value)}" if key in record else f"there is no {key!r}"
        raise LabelError(message, "give it a whole number or a text", path, column=f"{place}.{key}")
    return value


def check_name(value: Any, path: str | Path, place: str) -> str:
    """`value` as a name: text that is not empty and can be encoded; LabelError for anything else."""
    if not isinstance(value, str) or not value:
        message = "the name is empty" if value == "" else f"this is {_describe_value(value)}"
        raise LabelError(message, "give it a name, as text", path, column=place)
    if not is_utf8(value):
        message = f"the name {value!r} has half a character in it"
        raise LabelError(message, "write the name again", path, column=place)
    return value


def read_score(value: Any, path: str | Path, place: str) -> float:
    """A score as a float, NaN if there is none; LabelError if it is not a number or does not fit into float32."""
    if value is None:
        return math.nan
    # An integer may have hundreds of digits.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > MAX_SCORE:
        raise LabelError("this is not a score", "give it a number from 0 to 1", path, column=place)
    return float(value)


class JsonLines(CsvTable):
    """One JSON object per line as a table, whose columns hold single values or lists of strings.

    Numbers keep their spelling, so that ids and 1.0 stay as written; true and false become words, null becomes "".
    """

    def __init__(self, path: Path, encoding: str | None) -> None:
        self.path = existing_path(path)
        self.records: list[dict[str, Any]] = []
        self.lines: list[int] = []
        text = _decode(self.path.read_bytes(), encoding or "utf-8", self.path)
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip(" \t\r"):
                continue
            record = _parse(line, self.path, number, parse_int=str, parse_float=str, parse_constant=str)
            if not isinstance(record, dict):
                fix = 'write one like {"file_name": "a.jpg", …}'
                raise LabelError("this is not an object", fix, self.path, line=number)
            self.lines.append(number)
            self.records.append(record)
        if not self.records:
            raise LabelError("the file has no rows", "export the labels again", path)
        self.header = list(dict.fromkeys(key for record in self.records for key in record))
        self._check_header()
        self._encode(self.header, "a column name", None)

    def __len__(self) -> int:
        return len(self.records)

    def is_list(self, name: str) -> bool:
        """Whether a column holds lists."""
        return any(isinstance(record.get(name), list) for record in self.records)

    def column(self, name: str) -> pa.Array:
        """A column of single values, as text."""
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

    def line(self, row: int) -> int:
        return self.lines[row]

    def _encode(self, values: list[Any], what: str, name: str | None) -> pa.Array:
        """Strings to Arrow; JSON can contain half of a surrogate pair, which is not valid text."""
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:
            message = f"{what} has half a character in it"
            raise self.error(message, "write the text again", column=name) from None


def _describe_value(value: Any) -> str:
    """A JSON value in words, for error messages."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null or missing"}
    return kinds.get(type(value), f"the number {value!r:.40}")
