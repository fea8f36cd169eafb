"""Paths and lines of text that readers are given, with errors that name the line; `_sheets` has whole tables."""

from __future__ import annotations

import codecs
import csv
import io
import math
import mmap
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from halflabel.errors import LabelError, error_summary

csv.field_size_limit(1 << 30)  # characters of a cell; Python's limit of 131,072 is too low for a long list of tags

MOST_COLUMNS = 100_000  # of a table; each takes 0.1 ms
_BLOCK = 1 << 24  # bytes in which quotes are looked for at a time
DELIMITERS = ",;\t|"
# Byte order marks; that of UTF-32 begins with that of UTF-16.
_WIDE_ENCODINGS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_FIX_QUOTES = "close the quote that is opened here, and write a quote inside a quoted cell twice"
_SPECIAL = re.compile('[,;\t|"\r\n]')

# Excel may write this line before the header, to name the delimiter.
SEP_LINE = re.compile(r"sep=([,;\t|])\s*")

# An image name in the first line: the file has no header.
_IMAGE_ENDING = r"\.(?:jpe?g|png|gif|bmp|webp|tiff?|heic|avif)"
IMAGE_NAME = re.compile(f".+{_IMAGE_ENDING}", re.IGNORECASE)

# An image or a video, also with its address; and numbers, also several in a cell.
FILE_CELL = re.compile(rf"(?:\S+://\S+|.+(?:{_IMAGE_ENDING}|\.(?:mp4|avi|mov|dcm|npy)))", re.IGNORECASE)
_NUMBERS = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?(?:[ ;|,][-+]?[\d.]+)*")
# Names that say that a line is a header.
IMAGE_COLUMNS = ("image", "image_id", "imageid", "id", "file", "filename", "file_name", "path", "photo", "img")
_HEADER_NAMES = (*IMAGE_COLUMNS, "name", "label", "labels", "tag", "tags", "class", "value", "image_name", "filepath")

# In the order in which they are offered; and what is in a word only if it is another encoding.
_ENCODINGS = ("cp1252", "cp1250", "cp1251", "gb18030", "shift_jis", "big5", "euc_kr")
_MIXED = re.compile("[a-zA-Z][^\0-\u024f]|[^\0-\u024f][a-zA-Z]|[\x80-\u024f]{3}|[a-zß-ÿа-я][A-ZÀ-ÞА-Я]")

# Python's replacement for bytes that do not decode ("surrogateescape"); real text never contains these.
_BAD_BYTE = re.compile("[\udc80-\udcff]")


def check_exists(path: Path) -> None:
    """Raise LabelError unless `path` is a file or a folder."""
    try:
        exists = path.exists()
    except OSError:  # such as a name that is too long
        exists = False
    if not exists:
        raise LabelError("no such file or folder", "check the path", path)
    if not (path.is_file() or path.is_dir()):  # reading a pipe would wait forever
        raise LabelError("this is a pipe or a device", "name a file or a folder", path)


def choose_split(splits: Sequence[str], stated: str | None, path: Path) -> str:
    """The stated split, or the only one; LabelError for a split that is missing, or not stated among several."""
    names = ", ".join(splits)
    if stated is None and len(splits) > 1:
        fix = "add " + " or ".join(f"‹split={name}›" for name in splits[:8])
        raise LabelError(f"there are several splits: {names}", fix, path)
    if stated not in (None, *splits):
        raise LabelError(f"there is no split {stated!r}", f"use ‹split› with one of: {names}", path)
    return stated or splits[0]


def existing_path(path: str | Path, *, folder: bool = False) -> Path:
    """The path of an existing, non-empty file, or of an existing folder; LabelError for anything else."""
    path = Path(path)
    check_exists(path)
    if path.is_dir() != folder:
        kind, expected = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise LabelError(f"this is {kind}, but {expected} is needed", f"name {expected}, or state ‹format›", path)
    if not folder and path.stat().st_size == 0:
        raise LabelError("the file is empty", "export the labels again, with a header line", path)
    return path


def first_line(path: Path) -> str:
    """The first line that is neither blank nor `sep=;`, for detecting formats, with bad bytes replaced; "" if none."""
    return next((line for line in beginning_lines(path) if not SEP_LINE.fullmatch(line)), "")


def beginning_lines(path: Path) -> Generator[str]:
    """The lines that are not blank, with undecodable bytes replaced; of UTF-16 and -32 only the first megabyte."""
    try:
        if not path.is_file():  # reading a pipe would wait forever
            return
        with open(path, "rb") as file:
            wide = wide_encoding(file.read(4))
            file.seek(0)
            if wide is not None:
                text = file.read(1 << 20).decode(wide, errors="replace")
                yield from filter(None, re.split("[\r\n]+", text))
                return
            while raw := file.readline(1 << 20):
                yield from filter(None, re.split("[\r\n]+", raw.decode(errors="replace").lstrip("\ufeff")))
    except OSError:
        return


def wide_encoding(beginning: bytes) -> str | None:
    return next((name for mark, name in _WIDE_ENCODINGS.items() if beginning.startswith(mark)), None)


def parse_float(text: str) -> float:
    """The number in a text; ValueError also for 1_0, which Python reads as 10."""
    return float(text.replace("_", "?"))


def number_of(text: str) -> float | None:
    """The finite number in a cell, also as a percentage or with a decimal comma; None for other text.

    >>> number_of("12,5 %"), number_of("nan"), number_of("a")
    (12.5, None, None)
    """
    try:
        number = parse_float(text.removesuffix("%").replace(",", "."))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def detect_delimiter(line: str) -> str:
    """The delimiter (comma, semicolon, tab or bar) that is most frequent outside quotes.

    >>> detect_delimiter('image;"cat, dog, or both"')
    ';'
    """
    bare = re.sub(r'"[^"]*("|$)', "", line)
    return max(DELIMITERS, key=bare.count)


def header_fields(line: str) -> list[str]:
    """The stripped fields of a header line; empty for a line that is not CSV."""
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=detect_delimiter(line)), [])]
    except csv.Error:
        return []


def csv_line(fields: Iterable[str]) -> str:
    """One line of a CSV file; fields with a delimiter, a quote or a line end are quoted.

    Any delimiter is quoted, so that `detect_delimiter` returns the comma; any line end too, unlike csv.writer.

    >>> csv_line(["a;b", "c, d", "e"]).strip()
    '"a;b","c, d",e'
    """
    quoted = ('"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text for text in fields)
    return ",".join(quoted) + "\n"


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file with their line ends; LabelError with the line for a byte that does not decode."""
    number = 0
    if not path.is_file():  # reading a pipe would wait forever
        raise LabelError("this is not a file" if path.exists() else "no such file", "put the file in its place", path)
    # Line ends are kept, so that quoted ones survive; a bare carriage return ends a line too.
    with open(path, encoding=encoding, errors="surrogateescape", newline="") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.isascii() and (bad := _BAD_BYTE.search(line)):
                    raise _not_text(f"byte 0x{ord(bad.group()) - 0xDC00:02x} is", encoding, path, number)
                yield line.lstrip("\ufeff") if number == 1 else line
        except UnicodeError:
            raise _not_text("some bytes are", encoding, path, number + 1) from None


def numbered_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each line that is not blank, and its fields, which blanks separate."""
    for number, line in enumerate(read_lines(existing_path(path)), 1):
        if "\x00" in line:
            raise LabelError("byte 0x00 is not allowed in a text file", "download it again", path, line=number)
        if fields := line.split():
            yield number, fields


def distinct_names(names: Iterable[tuple[int, str]], file: Path) -> list[str]:
    """The names, which come with their lines; LabelError for a name on two lines, or if there is none."""
    line_of: dict[str, int] = {}
    for line, name in names:
        if (before := line_of.setdefault(name, line)) != line:
            raise LabelError(f"{name!r} is already on line {before}", "give every line its own name", file, line=line)
    if not line_of:
        raise LabelError("the file lists nothing", "unpack or download it again", file)
    return list(line_of)


def raw_records(text: str, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Each record of a CSV file as it is written, with its line end, and its fields; [] for blank lines."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    for fields in csv.reader(lines(), delimiter=delimiter, strict=True):
        yield "".join(taken), fields
        taken.clear()


def read_records(path: Path, delimiter: str, encoding: str = "utf-8") -> Generator[tuple[int, list[str]]]:
    """(line number, fields) of each record of a CSV file that is not blank. Slow: for headers and error messages."""
    reader = csv.reader(read_lines(path, encoding), delimiter=delimiter, strict=True)
    line = 1
    try:
        for record in reader:
            if record and not (line == 1 and SEP_LINE.fullmatch(delimiter.join(record))):
                yield line, record
            line = reader.line_num + 1
    except csv.Error as fault:
        raise LabelError(f"not CSV ({fault})", _FIX_QUOTES, path, line=line) from None


def csv_fault(path: Path, header: list[str], error: Exception, delimiter: str, encoding: str = "utf-8") -> LabelError:
    if not header:
        return LabelError("there are only blank lines", "export the labels again, with a header line", path)
    try:
        for line, record in read_records(path, delimiter, encoding):
            if len(record) != len(header):
                message = f"{len(record)} fields where the first line has {len(header)}"
                fix = f"add or remove {delimiter!r} on this line; quote fields that contain it"
                return LabelError(message, fix, path, line=line)
    except LabelError as fault:
        return fault
    return LabelError(f"cannot be read as CSV ({error_summary(error)})", "check the quoting and the encoding", path)


class Beginning(NamedTuple):
    """How a table is written, by its first lines, and its columns."""

    encoding: str
    delimiter: str
    lines_above: int  # Excel's `sep=;`
    header: list[str]  # without a header line the columns are numbered
    has_header: bool
    is_short: bool  # the header has no name for the first column
    is_indexed: bool  # the first column only numbers the rows
    rows: list[list[str]]


def read_beginning(path: Path, encoding: str | None, count: int = 100) -> Beginning:
    """How a table is written, by its header and at most `count` rows."""
    with open(path, "rb") as file:
        encoding = encoding or wide_encoding(file.read(4)) or "utf-8"
    with closing(beginning_lines(path)) as lines:
        sep_line = SEP_LINE.fullmatch(next(lines, ""))
    delimiter = sep_line[1] if sep_line else detect_delimiter(first_line(path))
    with closing(read_records(path, delimiter, encoding)) as lines:
        records = [fields for _, fields in islice(lines, count + 1)]
    check_width(len((records or [[]])[0]), path)
    header, rows = [name.strip() for name in (records or [[]])[0]], records[1:]
    has_header = not _is_row(header, rows)
    if not has_header:
        header, rows = _number_columns(records), records
    first = [row[0].strip() for row in rows if row]
    are_numbered = first in ([str(n) for n in range(start, start + len(first))] for start in (0, 1))
    is_short = bool(rows) and has_header and all(len(row) == len(header) + 1 for row in rows)
    names_images = not {*map(str.lower, header)}.isdisjoint(IMAGE_COLUMNS)  # then the first cells are no names of rows
    is_short = is_short and (are_numbered or (all(map(FILE_CELL.fullmatch, first)) and not names_images))
    if is_short:  # as R writes the names of the rows
        header.insert(0, "")
    is_indexed = are_numbered and len(header) > 2 and header[0] in ("", "Unnamed: 0")
    if header[:1] == [""] and not is_indexed:
        header[0] = "image" if "image" not in header else "1"
    return Beginning(encoding, delimiter, int(sep_line is not None), header, has_header, is_short, is_indexed, rows)


def check_width(columns: int, path: Path) -> None:
    if columns > MOST_COLUMNS:
        message = f"the table has {columns:,} columns, over the limit of {MOST_COLUMNS:,}"
        raise LabelError(message, "write one label per line: image,class,value", path)


def _number_columns(rows: list[list[str]]) -> list[str]:
    """The names of columns without a header: their numbers, or those of a row per label if the third has its value."""
    values = {row[2].strip() for row in rows if len(row) == 3}
    if len(rows[0]) == 3 and values <= {"1", "0", "-1"} and not all(_NUMBERS.fullmatch(row[1]) for row in rows):
        return ["image", "class", "value"]
    return [str(number) for number in range(1, len(rows[0]) + 1)]


def _is_row(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first line of a table is a row: its cells are like those below, and none says otherwise."""
    if any(name.lower() in _HEADER_NAMES for name in first):
        return False
    columns = list(zip(*(row for row in rows if len(row) == len(first)), strict=True))
    if any(map(FILE_CELL.fullmatch, first[:2])):
        return True
    named = [cells for name, cells in zip(first, columns, strict=False) if FILE_CELL.fullmatch(name)]
    if any(FILE_CELL.fullmatch(cell) for cells in named for cell in cells):
        return True
    if not columns or "" in first:
        return False
    is_alike = False
    for name, cells in zip(first, columns, strict=True):
        filled = [text for cell in cells if (text := cell.strip())]
        if filled and all(_NUMBERS.fullmatch(text) for text in filled):
            if not _NUMBERS.fullmatch(name):
                return False
            is_alike = True
        elif filled and all(FILE_CELL.fullmatch(text) for text in filled):
            return False
        elif len(columns) > 1 and len(set(filled)) < len(filled) and name in filled:
            is_alike = True
    numbers = [int(name) for name in first if name.isdecimal()]
    are_classes = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return is_alike and not are_classes


def check_quotes(path: Path, delimiter: str, encoding: str = "utf-8") -> None:
    """Raise LabelError for a quote in the wrong place: Arrow would merge the lines up to the next quote."""
    is_multibyte = encoding.startswith(("utf-16", "utf-32"))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if not is_multibyte and data.find(b'"') < 0:  # nearly all large files
            return
        if encoding == "utf-8" and _has_cells_of_one_line(data, delimiter):
            return
    next_line = re.compile(
        rf"[\r\n]+[^\r\n{re.escape(delimiter)}]*{_IMAGE_ENDING}\"?{re.escape(delimiter)}", re.IGNORECASE
    )
    for line, record in read_records(path, delimiter, encoding):
        if long_cell := next(filter(next_line.search, record), None):
            message = f"a quote pulls {len(long_cell.splitlines())} lines into one cell"
            raise LabelError(message, "remove the quote that is opened here, or close it on this line", path, line=line)


def _has_cells_of_one_line(data: mmap.mmap, delimiter: str) -> bool:
    """Whether every quoted cell begins and ends at a delimiter, on one line: every other quote of a line opens."""
    first = len(codecs.BOM_UTF8) if data[:3] == codecs.BOM_UTF8 else 0
    ends = np.array([ord(delimiter), *b'\r\n"'], np.uint8)
    while first < len(data):
        end = data.find(b"\n", first + _BLOCK)
        end = len(data) if end < 0 else end + 1
        block = np.frombuffer(b"\n" + data[first:end] + b"\n", np.uint8)
        quotes = np.flatnonzero(block == ord('"'))
        of_line = np.searchsorted(quotes, np.flatnonzero(block == ord("\n")))  # quotes before each line end
        if (of_line & 1).any():
            return False
        if not (np.isin(block[quotes[::2] - 1], ends).all() and np.isin(block[quotes[1::2] + 1], ends).all()):
            return False
        first = end
    return True


def _not_text(what: str, encoding: str, path: Path, line: int) -> LabelError:
    with open(path, "rb") as file:
        beginning = file.read(1 << 20)
    return LabelError(f"{what} not {encoding.upper()} text", offer_encodings(beginning), path, line=line)


def offer_encodings(data: bytes) -> str:
    """The fix for text that is not UTF-8: encodings that can decode it, with a word of each, the likely ones first."""
    words: dict[str, tuple[float, str]] = {}
    for name in _ENCODINGS:
        try:
            text = data[: data.rfind(b"\n") + 1].decode(name)
        except UnicodeError:
            continue
        tokens = [token for token in re.split(r"[\x00-\x2f:-@\[-`{-\x7f]+", text) if not token.isascii()]
        odd = sum(not token.isalnum() or _MIXED.search(token) is not None for token in tokens)
        if tokens and (token := next((t for t in tokens if t.isalnum()), "")):
            words.setdefault(token, (odd / len(tokens), name))
    offers = (
        f"‹encoding={name}› (which reads {token!r})"
        for token, (_, name) in sorted(words.items(), key=lambda w: w[1][0])
    )
    best = " or ".join(islice(offers, 4))
    return f"add {best}" if best else "save the file as UTF-8, or state its encoding, such as ‹encoding=latin-1›"
