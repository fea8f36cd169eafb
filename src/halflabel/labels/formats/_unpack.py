"""Tables in other wrappings as plain CSV files: gzip, zip, Excel, and lines of an image followed by its labels."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

from halflabel.errors import LabelError, error_summary
from halflabel.labels.formats._csv import (
    DELIMITERS,
    FILE_CELL,
    SEP_LINE,
    beginning_lines,
    choose_split,
    csv_line,
    read_lines,
    read_records,
)
from halflabel.labels.formats._flat import write_flat
from halflabel.labels.policy import MINUS_ONE, ONE, ZERO

_TEXT_ENDINGS = ("", ".csv", ".tsv", ".txt", ".lst", ".list", ".data")
_RECORD_ENDINGS = (".json", ".jsonl", ".ndjson", ".odgt", ".parquet")
_LOOKED_AT = 50  # lines
_MOST_TITLES = 10
_LINE = re.compile(r"([^\s,;|]+)[ \t]+(\S.*?)\s*")  # an image, blanks, and its labels
_MARKS = frozenset((*ONE, *ZERO, *MINUS_ONE))
_USES = frozenset(("train", "training", "test", "validation", "validate", "unassigned"))  # of Vertex AI and AutoML
_NUMBER = re.compile(r"-?[\d.]*")
_CELL = re.compile(rf"{_NUMBER.pattern}|{FILE_CELL.pattern}", re.IGNORECASE)  # no name of a column
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


class Unpacked(NamedTuple):
    """A plain file with the content of another one."""

    path: Path
    lines_added: int = 0  # at the beginning
    used_split: bool = False


def unpack(path: Path, split: str | None = None, encoding: str | None = None) -> Unpacked:
    """The file itself, or a temporary one with its content as CSV; `split` chooses the sheet of a workbook."""
    if not path.is_file() or path.name.endswith((".tar.gz", ".tgz")):
        return Unpacked(path)
    stat = path.stat()
    try:
        return _unpack(path, split, encoding or "utf-8", stat.st_mtime_ns, stat.st_size)[0]
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, ElementTree.ParseError, KeyError, RuntimeError) as error:
        message = f"the file cannot be unpacked ({error_summary(error)})"
        raise LabelError(message, "write or download it again", path) from None


def unpack_records(path: Path) -> Unpacked:
    """The file or folder itself, or a temporary CSV file of its records."""
    if path.is_file() and path.suffix.lower() not in _RECORD_ENDINGS:
        return Unpacked(path)
    return _unpack_records(path, *((stat := path.stat()).st_mtime_ns, stat.st_size))[0]


@lru_cache(maxsize=8)
def _unpack_records(path: Path, *stamp: int) -> tuple[Unpacked, _Folder | None]:
    folder = _Folder()
    plain = folder.path / f"{path.stem}.csv"
    return (Unpacked(plain, 1), folder) if write_flat(path, plain) else (Unpacked(path), None)


class _Folder:
    """A temporary folder, which is removed with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="halflabel-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@lru_cache(maxsize=8)
def _unpack(path: Path, split: str | None, encoding: str, *stamp: int) -> tuple[Unpacked, _Folder | None]:
    """`unpack`, and the temporary folder that holds the file."""
    with open(path, "rb") as file:
        mark = file.read(4)
    if mark[:2] == b"\x1f\x8b":
        folder = _Folder()
        with gzip.open(path) as packed:
            return Unpacked(_copy(packed, folder.path / path.name.removesuffix(".gz"))), folder
    if mark == b"PK\x03\x04":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
            folder = _Folder()
            if "xl/workbook.xml" in names:
                rows = list(_sheet(archive, path, split))
                titles = _titles([csv_line(row).strip() for row in rows[:_LOOKED_AT]])
                plain = _write(iter(rows[titles:]), folder.path / f"{path.stem}.csv")
                return Unpacked(plain, -titles, used_split=split is not None), folder
            if len(names) == 1:
                with archive.open(names[0]) as packed:
                    return Unpacked(_copy(packed, folder.path / Path(names[0]).name)), folder
    if path.suffix.lower() in _TEXT_ENDINGS and (table := _table_of_lines(path, encoding)) is not None:
        records, lines_added = table
        folder = _Folder()
        return Unpacked(_write(records, folder.path / f"{path.stem}.csv"), lines_added), folder
    return Unpacked(path), None


def _copy(packed: IO[bytes] | gzip.GzipFile, plain: Path) -> Path:
    with open(plain, "wb") as file:
        shutil.copyfileobj(packed, file)
    return plain


def _write(records: Iterator[Sequence[str]], plain: Path) -> Path:
    with open(plain, "w", newline="", encoding="utf-8") as file:
        file.writelines(map(csv_line, records))
    return plain


def _table_of_lines(path: Path, encoding: str) -> tuple[Iterator[Sequence[str]], int] | None:
    """The records of a text that is no CSV file, and the lines that they have more at the beginning; else None."""
    lines = [stripped for line in islice(beginning_lines(path), _LOOKED_AT) if (stripped := line.strip())]
    if "\0" in "".join(lines) or codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return None
    if titles := _titles(lines):
        return (record for _, record in islice(read_records(path, _delimiter(lines), encoding), titles, None)), -titles
    counted = int(len(lines) > 2 and lines[0].isdecimal())  # CelebA and DeepFashion begin with a number of lines
    lines = lines[counted:]
    words = [line.split() for line in lines]
    width = {len(each) for each in words[1:]}

    def records() -> Iterator[list[str]]:
        return islice((record for line in read_lines(path, encoding) if (record := line.split())), counted, None)

    if counted and width == {len(words[0]) + 1}:
        return (["image", *record] if n == 0 else record for n, record in enumerate(records())), -1
    rows = [match for line in lines if (match := _LINE.fullmatch(line)) and FILE_CELL.fullmatch(match[1])]
    has_header = bool(words) and not FILE_CELL.fullmatch(words[0][0])
    if rows and len(lines) - len(rows) == has_header:
        if has_header and len(words[0]) > 2 and width == {len(words[0])} and not re.search("[,;|\t]", lines[0]):
            return records(), 0
        labels = [row[2].split() for row in rows]
        are_marks = len(labels[0]) > 1 and all(len(row) == len(labels[0]) and _MARKS.issuperset(row) for row in labels)
        above = counted + (are_marks and has_header)
        if not has_header or len(words[0]) == 2:
            texts = islice((line for line in read_lines(path, encoding) if line.strip()), above, None)
            parts = (line.strip().partition("\t" if "\t" in line.strip() else " ") for line in texts)
            return ((image, *(rest.split() if are_marks else [rest.strip()])) for image, _, rest in parts), -above
    return _lists_of_fields(path, lines, encoding)


def _delimiter(lines: list[str]) -> str:
    counts = {mark: Counter(line.count(mark) for line in lines if mark in line) for mark in DELIMITERS}
    return max(DELIMITERS, key=lambda mark: max(counts[mark].values(), default=0))


def _titles(lines: list[str]) -> int:
    """The number of records above the header of a CSV file: comments, and titles with one filled cell."""
    try:
        records = list(csv.reader(lines, delimiter=_delimiter(lines), strict=True)) if lines else []
    except csv.Error:
        return 0
    if not records or SEP_LINE.fullmatch(lines[0]):
        return 0
    columns = max(map(len, records))
    is_title = [
        (columns > 2 and not any(map(str.strip, record[1:]))) or (len(record) < columns and record[0].startswith("#"))
        for record in records
    ]
    count = is_title.index(False) if False in is_title else 0
    names = [cell.strip() for cell in records[count]]
    is_header = len({*names}) == columns and not any(map(_CELL.fullmatch, names))
    return count if count < _MOST_TITLES and is_header else 0


def _lists_of_fields(path: Path, lines: list[str], encoding: str) -> tuple[Iterator[Sequence[str]], int] | None:
    """Lines of an image and its labels, each a field, perhaps with boxes, and the use before them, as in Vertex AI."""
    try:
        records = list(csv.reader(lines, strict=True))
    except csv.Error:
        return None
    has_use = all(record and record[0].strip().lower() in _USES for record in records)
    images = [record[has_use] for record in records if len(record) > has_use + 1]
    if not images or len(images) < len(records) or not all(map(FILE_CELL.fullmatch, images)):
        return None
    if not has_use and len({len(record) for record in records}) == 1:
        return None

    def fields() -> Iterator[Sequence[str]]:
        yield ("image", "tags", "split") if has_use else ("image", "tags")
        for record in csv.reader(read_lines(path, encoding)):
            if record:
                tags = [cell.strip() for cell in record[has_use + 1 :] if not _NUMBER.fullmatch(cell.strip())]
                yield (record[has_use], "|".join(tags), *record[:has_use])

    return fields(), 1


def _sheet(archive: zipfile.ZipFile, path: Path, name: str | None) -> Iterator[list[str]]:
    """The rows of a sheet of a workbook, as text, as long as those above; blank rows in between stay."""
    member, shared = sheet_member(archive, path, name), []
    if "xl/sharedStrings.xml" in archive.namelist():
        items = ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
        shared = ["".join(text.text or "" for text in item.iter(f"{_MAIN}t")) for item in items]
    width = 0
    for row in _rows(archive, member, shared):
        width = max(width, len(row))  # a title may be above the header
        yield row + [""] * (width - len(row)) if row else row  # blank cells at the end are not in the file


def sheet_member(archive: zipfile.ZipFile, path: Path, name: str | None) -> str:
    """The file in a workbook that holds a sheet: the named one, or the only one that is not blank."""
    targets = {
        each.get("Id"): str(each.get("Target")).removeprefix("/xl/")
        for each in ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
    }
    book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
    sheets = {str(each.get("name")): targets[each.get(_RELATION)] for each in book.iter(f"{_MAIN}sheet")}
    filled = [each for each, file in sheets.items() if any(len(row) > 1 for row in _rows(archive, file, []))]
    return sheets[choose_split(filled or list(sheets), name, path)]


def _rows(archive: zipfile.ZipFile, sheet: str, shared: Sequence[str]) -> Iterator[list[str]]:
    with archive.open(f"xl/{sheet}") as file:
        number = 0
        for _, row in ElementTree.iterparse(file):
            if row.tag != f"{_MAIN}row":
                continue
            line = int(row.get("r", number + 1))
            yield from ([] for _ in range(line - number - 1))
            number, cells = line, dict[int, str]()
            for cell in row.iter(f"{_MAIN}c"):
                cells[column_position(cell.get("r", ""), len(cells))] = _text(cell, shared)
            row.clear()
            yield [cells.get(position, "") for position in range(max(cells, default=-1) + 1)]


def column_position(reference: str, default: int) -> int:
    position = 0
    for letter in re.sub(r"\d", "", reference):
        position = 26 * position + ord(letter) - 64
    return position - 1 if position else default


def _text(cell: ElementTree.Element, shared: Sequence[str]) -> str:
    """The text of a cell: shared, its own, or a number, without the .0 of whole ones."""
    kind, value = cell.get("t", "n"), cell.findtext(f"{_MAIN}v") or ""
    if kind == "s":
        return shared[int(value)] if shared else value
    if kind == "inlineStr":
        return "".join(text.text or "" for text in cell.iter(f"{_MAIN}t"))
    if kind == "b":
        return "true" if value == "1" else "false"
    return value.removesuffix(".0")
