"""Paths, lines and tables that readers are given: CSV and Parquet as columns of strings, errors with the line.

Everything stays a string: ids keep their leading zeros, and a class may be called NA or None.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, error_summary
from halflabel.labels.audit import Audit
from halflabel.labels.formats._parquet import parquet_files, read_parquet
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.policy import MINUS_ONE, ONE, VALUE_WORDS, ZERO, shorten_cell
from halflabel.system.files import WRITING_MARK, is_utf8

csv.field_size_limit(1 << 30)  # characters of a cell; Python's limit of 131,072 is too low for a long list of tags

_BLOCK = 1 << 24  # bytes in which quotes are looked for at a time
_MOST = float(np.finfo(np.float32).max)
_DELIMITERS = ",;\t|"
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
_SEP_LINE = re.compile(r"sep=([,;\t|])\s*")

# An image name in the first line: the file has no header.
_IMAGE_ENDING = r"\.(?:jpe?g|png|gif|bmp|webp|tiff?|heic|avif)"
_IMAGE_NAME = re.compile(f".+{_IMAGE_ENDING}", re.IGNORECASE)

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
    if (path / WRITING_MARK).exists():
        fix = "write it again, such as with halflabel convert --force"
        raise LabelError("the folder is a mixture: writing it was interrupted", fix, path)
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
    """The first line that is neither blank nor Excel's `sep=;`, for detecting formats; "" if there is no file.

    Bytes that are neither UTF-8 nor UTF-16 or UTF-32 with a byte order mark are replaced.
    """
    return next((line for line in _beginning(path) if not _SEP_LINE.fullmatch(line)), "")


def _beginning(path: Path) -> Iterator[str]:
    """The lines that are not blank, with undecodable bytes replaced; of UTF-16 and -32 only the first megabyte."""
    try:
        if not path.is_file():  # reading a pipe would wait forever
            return
        with open(path, "rb") as file:
            wide = _wide_encoding(file.read(4))
            file.seek(0)
            if wide is not None:
                text = file.read(1 << 20).decode(wide, errors="replace")
                yield from filter(None, re.split("[\r\n]+", text))
                return
            while raw := file.readline(1 << 20):
                yield from filter(None, re.split("[\r\n]+", raw.decode(errors="replace").lstrip("\ufeff")))
    except OSError:
        return


def _wide_encoding(beginning: bytes) -> str | None:
    """UTF-16 or UTF-32, by its byte order mark; None for other files."""
    return next((name for mark, name in _WIDE_ENCODINGS.items() if beginning.startswith(mark)), None)


def parse_float(text: str) -> float:
    """The number in a text; ValueError also for 1_0, which Python reads as 10."""
    return float(text.replace("_", "?"))


def detect_delimiter(line: str) -> str:
    """The delimiter (comma, semicolon, tab or bar) that is most frequent outside quotes.

    >>> detect_delimiter('image;"cat, dog, or both"')
    ';'
    """
    bare = re.sub(r'"[^"]*("|$)', "", line)
    return max(_DELIMITERS, key=bare.count)


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


def read_records(path: Path, delimiter: str, encoding: str = "utf-8") -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of each record of a CSV file that is not blank. Slow: for headers and error messages."""
    reader = csv.reader(read_lines(path, encoding), delimiter=delimiter, strict=True)
    line = 1
    try:
        for record in reader:
            if record and not (line == 1 and _SEP_LINE.fullmatch(delimiter.join(record))):
                yield line, record
            line = reader.line_num + 1
    except csv.Error as fault:
        raise LabelError(f"not CSV ({fault})", _FIX_QUOTES, path, line=line) from None


def record_line(path: Path, number: int, delimiter: str, encoding: str = "utf-8") -> int:
    """The line of a record, counted from 0 and with the header. Slow: reads the file again, for error messages."""
    line, _ = next(islice(read_records(path, delimiter, encoding), number, None), (number + 1, []))
    return line


def csv_fault(path: Path, header: list[str], error: Exception, delimiter: str, encoding: str = "utf-8") -> LabelError:
    """The error for a file that Arrow cannot read, with the first faulty line."""
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


def check_quotes(path: Path, delimiter: str, encoding: str = "utf-8") -> None:
    """Raise LabelError for a quote in the wrong place: Arrow would merge the lines up to the next quote.

    A quoted cell must end at a delimiter or a line end, and must not contain what looks like the next line.
    """
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
    """Whether every quoted cell begins and ends at a delimiter, on one line; quotes in it are written twice.

    Of the quotes of a line every other one opens. False where another form of quoting may be valid too.
    """
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
    return LabelError(
        f"{what} not {encoding.upper()} text",
        "save the file as UTF-8, or state its encoding, such as ‹encoding=latin-1›",
        path,
        line=line,
    )


class CsvTable:
    """Columns of strings from a CSV file.

    The delimiter (comma, semicolon, tab or bar) is detected from the header, or read from Excel's `sep=;` above it. A
    byte order mark is skipped.
    """

    selected: NDArray[np.int64] | None = None  # the rows that `select` has left; None for all

    def __init__(self, path: str | Path, *, encoding: str | None = None) -> None:
        self.path = existing_path(path)
        self.encoding = self._check_encoding(encoding or "utf-8")
        sep_line = _SEP_LINE.fullmatch(next(_beginning(self.path), ""))
        self.delimiter = sep_line[1] if sep_line else detect_delimiter(first_line(self.path))
        self._lines_above_header = 1 if sep_line else 0
        first_record = next(read_records(self.path, self.delimiter, self.encoding), (1, []))[1]
        self.header = [name.strip() for name in first_record]
        self._check_first_line()
        ends_in_delimiter = len(self.header) > 1 and not self.header[-1]
        self.columns = self._read()
        if ends_in_delimiter and not pc.any(pc.not_equal(self.columns[-1], "")).as_py():
            del self.header[-1], self.columns[-1]
        self._check_header()
        if len(self) == 0:
            raise LabelError("the file has a header but no rows", "export the labels again", self.path)
        self._refuse_second_header()

    def __len__(self) -> int:
        return self._count() if self.selected is None else len(self.selected)

    def __contains__(self, name: str) -> bool:
        return name in self._position

    def _count(self) -> int:
        """The number of rows of the file."""
        return len(self.columns[0]) if self.columns else 0

    def _cells(self, name: str) -> pa.Array:
        """A column of text, with all rows of the file."""
        return self.columns[self._position[name]]

    def _line(self, row: int) -> int:
        """The line where a row of the file starts."""
        return record_line(self.path, row + 1, self.delimiter, self.encoding)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise LabelError with the existing columns if one of these is missing."""
        for name in names:
            if name not in self._position:
                columns = ", ".join(map(repr, self.header[:12]))
                fix = f"add the column {name!r} or check the names of the columns"
                raise self.error(f"there is no column {name!r}; found: {columns}", fix, line=1)

    def column(self, name: str) -> pa.Array:
        """A column of text by name, with the selected rows."""
        self.check_columns((name,))
        cells = self._cells(name)
        return cells if self.selected is None else cells.take(pa.array(self.selected))

    def is_list(self, name: str) -> bool:
        """Whether a column holds lists, as Parquet and JSON can."""
        return False

    def lists(self, name: str) -> list[list[str] | None]:
        """The lists of class names in a column; None where a row has null instead."""
        values = self._values(name)
        for row, value in enumerate(values):
            if not isinstance(value, list | None):
                message = "this is not a list, as on other lines"
                raise self.error(message, "write a list on every line: [], or null", row=row, column=name)
            for item in value or ():
                if not isinstance(item, str) or not item or not is_utf8(item):
                    raise self.error(f"{item!r} is not the name of a class", "write its name", row=row, column=name)
        return values

    def _values(self, name: str) -> list[Any]:
        """A column as Python values."""
        values: list[Any] = self.column(name).to_pylist()
        return values

    def image_names(self, name: str) -> Names:
        """The images in a column; LabelError for a blank or repeated name."""
        names = self.column(name)
        if (blank := pc.index(names, pa.scalar("", names.type)).as_py()) >= 0:
            raise self.error("the image has no name", "fill it in", row=blank, column=name)
        codes = pc.dictionary_encode(names).indices.to_numpy(zero_copy_only=False)
        _, first = np.unique(codes, return_index=True)
        if len(repeats := np.setdiff1d(np.arange(len(codes)), first)):
            row, before = int(repeats[0]), int(np.argmax(codes == codes[repeats[0]]))
            message = f"image {names[row].as_py()!r} is already on line {self.line(before)}"
            fix = "leave one line per image, or use the long form to keep contradicting labels"
            raise self.error(message, fix, row=row, column=name)
        return Names(names)

    def numbers(self, name: str | None, fix: str, *, least: float = -_MOST, most: float = _MOST) -> NDArray[np.float32]:
        """A column of numbers in a range; NaN for a blank cell, and everywhere if there is no such column."""
        if name is None or name not in self:
            return np.full(len(self), np.nan, np.float32)
        column = self.column(name)
        text = pc.if_else(pc.equal(column, ""), None, column)
        try:
            numbers = np.asarray(pc.cast(text, pa.float32()).to_numpy(zero_copy_only=False), dtype=np.float32)
        except pa.ArrowInvalid:  # Python reads some numbers that Arrow does not, such as with blanks around them
            numbers = np.array([self._number(name, row, cell) for row, cell in enumerate(column.to_pylist())])
            with np.errstate(over="ignore"):  # numbers that are too large become infinite
                numbers = numbers.astype(np.float32)
        if (is_outside := (numbers < least) | (numbers > most)).any():
            row = int(np.argmax(is_outside))
            what = "too large" if numbers[row] > most else "negative" if least == 0 else "too small"
            raise self.error(f"{name} {column[row].as_py()!r:.60} is {what}", fix, row=row, column=name)
        return numbers

    def _number(self, name: str, row: int, cell: str) -> float:
        try:
            return parse_float(cell.strip() or "nan")
        except ValueError:
            message = f"{name} {cell!r:.60} is not a number"
            raise self.error(message, "use a number or blank", row=row, column=name) from None

    def select(self, where: Mapping[str, str], audit: Audit) -> None:
        """Select the rows whose columns have these values; the others are left out of every column."""
        keep = np.ones(len(self), bool)
        for name, value in where.items():
            match = pc.equal(self.column(name), value).to_numpy(zero_copy_only=False)
            if not match.any():
                found = ", ".join(map(repr, pc.unique(self.column(name)).to_pylist()[:8]))
                message = f"no row has {value!r} here; found: {found}"
                raise self.error(message, f"use ‹where={name}=VALUE› with one of these", column=name)
            keep &= match
        if not keep.any():
            conditions = " and ".join(f"{name}={value}" for name, value in where.items())
            raise self.error(f"no row has {conditions} together", "leave one ‹where› out, or change its value")
        audit.note_count(int(np.count_nonzero(~keep)), f"of {len(self)} rows left out by ‹where›")
        if where:
            self.selected = np.flatnonzero(keep) if self.selected is None else self.selected[keep]

    def line(self, row: int) -> int:
        """The line of the file where a selected row starts."""
        return self._line(row if self.selected is None else int(self.selected[row]))

    def error(self, message: str, fix: str, *, row: int | None = None, **place: Any) -> LabelError:
        """A LabelError for this file; `row` is translated to its line."""
        if row is not None:
            place["line"] = self.line(row)
        return LabelError(message, fix, self.path, **place)

    def _check_encoding(self, encoding: str) -> str:
        """The normalized encoding; LabelError if the file is UTF-16 but another encoding is stated."""
        try:
            "".encode(encoding)
            encoding = codecs.lookup(encoding).name
        except (LookupError, UnicodeError, ValueError):
            raise LabelError(f"no encoding is called {encoding!r}", "try utf-8 or latin-1", self.path) from None
        if encoding.startswith(("utf-16", "utf-32")):
            return encoding
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if (wide := _wide_encoding(data[:4])) is not None:
                raise LabelError(
                    f"the file is {wide.upper()}", f"save it as UTF-8, or add ‹encoding={wide}›", self.path
                )
            if (position := data.find(b"\0")) >= 0:
                raise LabelError(
                    "byte 0x00 is not allowed in a text file",
                    "save the file as UTF-8, or add ‹encoding=utf-16-le› if that is what it is",
                    self.path,
                    line=data[:position].count(b"\n") + 1,
                )
        return encoding

    def _check_first_line(self) -> None:
        """Raise LabelError if the first line is not a header but already the first image."""
        if self.header and _IMAGE_NAME.fullmatch(self.header[0]):
            raise self.error(
                f"the first line is not a header: it begins with the image {self.header[0]!r}",
                "add a line above it, such as image,class,value or image,tags",
                line=1 + self._lines_above_header,
            )

    def _check_header(self) -> None:
        # A search in a list of 40,000 names for each of them would take a minute.
        self._position = {name: position for position, name in enumerate(self.header)}
        if "" in self.header:
            number = self.header.index("") + 1
            raise self.error(f"column {number} has no name", "give every column a name in the first line", line=1)
        if (name := first_duplicate(self.header)) is not None:
            raise self.error(f"the column {name!r} occurs twice", "rename or remove one of them", line=1, column=name)

    def _refuse_second_header(self) -> None:
        """Raise LabelError for a row that repeats the header, as two files joined by `cat` have it."""
        names = pa.array([self.header[0], "\ufeff" + self.header[0]], self.columns[0].type)
        is_header = pc.is_in(self.columns[0], value_set=names)
        for name, column in zip(self.header[1:], self.columns[1:], strict=True):
            if not pc.any(is_header).as_py():
                return
            is_header = pc.and_(is_header, pc.equal(pc.utf8_trim_whitespace(column), name))
        if pc.any(is_header).as_py():
            message = "the header is repeated here: two files may have been joined"
            raise self.error(message, "remove this line", row=pc.index(is_header, True).as_py())

    def _read(self) -> list[pa.Array]:
        import pyarrow.csv as pa_csv

        check_quotes(self.path, self.delimiter, self.encoding)
        # Columns get their numbers as names, so that no name can collide with Arrow's handling of headers.
        numbers = [str(i) for i in range(len(self.header))]
        try:
            table = pa_csv.read_csv(
                self.path,
                pa_csv.ReadOptions(
                    column_names=numbers, skip_rows=self._lines_above_header, encoding=self.encoding, block_size=1 << 24
                ),
                pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                pa_csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeError, OSError) as error:
            raise csv_fault(self.path, self.header, error, self.delimiter, self.encoding) from None
        return [_combine(column).slice(1) for column in table.columns]


class ParquetTable(CsvTable):
    """Columns of text or lists from a Parquet file or a folder of them; a "line" is the row number, counted from 1."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path) if Path(path).is_dir() else existing_path(path)
        self.table = read_parquet(self.path)
        self.header = list(self.table.column_names)
        self._check_header()
        if len(self) == 0:
            raise LabelError("the file has no rows", "export the labels again", self.path)

    def _count(self) -> int:
        return len(self.table)

    def _line(self, row: int) -> int:
        return row + 1

    def is_list(self, name: str) -> bool:
        kind = self.table.schema.field(name).type
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

    def _cells(self, name: str) -> pa.Array:
        column = self.table.column(name)
        with self._refuse_type(name):
            if pa.types.is_dictionary(column.type) and pa.types.is_binary(column.type.value_type):
                column = column.cast(pa.binary())
            return pc.fill_null(_combine(column), "")

    def _values(self, name: str) -> list[Any]:
        with self._refuse_type(name):
            values: list[Any] = self.table.column(name).cast(pa.large_list(pa.string())).to_pylist()
        return values

    @contextmanager
    def _refuse_type(self, name: str) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException:
            message = f"a column of type {self.table.schema.field(name).type} cannot hold labels"
            fix = f"store text, numbers, true or false, or add ‹ignore={name}›"
            raise self.error(message, fix, column=name) from None


def open_sheet(path: str | Path, encoding: str | None = None) -> CsvTable:
    """A Parquet file, a folder of them, or a CSV file."""
    return ParquetTable(path) if parquet_files(Path(path)) else CsvTable(path, encoding=encoding)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    """One array of strings; with 64-bit offsets only if the text is too long for 32-bit ones."""
    text = column.cast(pa.string())
    return (text.cast(pa.large_string()) if text.nbytes >= 2**31 else text).combine_chunks()


_VALUE_CELLS = frozenset((*VALUE_WORDS, *ZERO, *MINUS_ONE))
_UNKNOWN_CELLS = frozenset(word for word, meaning in VALUE_WORDS.items() if meaning == "unknown")

# Numbers of any size in a column of these names are scores.
_SCORE_NAMES = ("score", "conf", "prob", "likelihood", "certainty", "percent", "logit")


def refuse_possible_values(sheet: CsvTable, names: Iterable[str]) -> None:
    """Raise LabelError for a column whose cells may be the values or the probabilities of the labels.

    A column of nothing but 1 may be ignored: it says present, as the rows themselves do.
    """
    for name in names:
        try:
            column = sheet.column(name)
        except LabelError:  # objects or lists, which are not values
            continue
        cells = pc.unique(pc.utf8_lower(pc.utf8_trim_whitespace(column))).to_pylist()
        texts = {text for text in cells if text not in _UNKNOWN_CELLS}
        if not texts or texts <= {*ONE} or not _may_be_values(name, texts):
            continue
        example = shorten_cell(min(texts), 20)
        raise sheet.error(
            f"the cells, such as {example!r}, may say present or absent, or how probable the label is",
            f"call the column 'value' if it does; if every row says present, add ‹ignore={name}›",
            column=name,
        )


def _may_be_values(name: str, texts: set[str]) -> bool:
    is_score = any(word in name.lower() for word in _SCORE_NAMES)
    if is_score:  # also one number per tag
        texts = {part for text in texts for part in re.split(r"[\s,;|\[\]()]+", text) if part}
    numbers = [number for text in texts if (number := _number(text)) is not None]
    if len(numbers) < len(texts):
        return texts <= _VALUE_CELLS
    return is_score or all(-1 <= number <= 1 for number in numbers)


def _number(text: str) -> float | None:
    """The finite number in a cell, also as a percentage or with a decimal comma."""
    try:
        number = parse_float(text.removesuffix("%").replace(",", "."))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
