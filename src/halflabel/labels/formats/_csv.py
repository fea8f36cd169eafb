"""Sheet: a CSV file read as text, column by column, that can still say on which line a row stood.

Everything stays a string: ids keep their leading zeros and a class may be called NA or None.
"""

from __future__ import annotations

import codecs
import csv
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError
from halflabel.labels.formats._paths import existing_path
from halflabel.labels.policy import quote_option
from halflabel.system.memory import physical_memory

__all__ = [
    "CsvTable",
    "ParquetTable",
    "csv_line",
    "detect_delimiter",
    "first_line",
    "read_lines",
    "read_parquet",
    "read_records",
]

_DELIMITERS = ",;\t|"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SPECIAL = re.compile('[,;\t|"\r\n]')

# What Excel may write before the header, to say which delimiter it used.
_STATED = re.compile(r"sep=([,;\t|])\s*")

# In place of a column's name: the first line of a file that has no header.
_PICTURE = re.compile(r".+\.(jpe?g|png|gif|bmp|webp|tiff?|heic|avif)", re.IGNORECASE)

# How Python stands in for a byte that does not decode ("surrogateescape"): no real text contains these.
_BAD_BYTE = re.compile("[\udc80-\udcff]")


def first_line(path: Path) -> str:
    """The first line that is not blank nor Excel's `sep=;`, for telling formats apart; "" where there is no file.

    Bytes that are not UTF-8, or UTF-16 with its mark, are replaced.
    """
    return next((line for line in _beginning(path) if not _STATED.fullmatch(line)), "")


def _beginning(path: Path) -> Iterator[str]:
    """The lines that are not blank, decoded as well as may be; those of UTF-16 within the first megabyte."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return
        with open(path, "rb") as file:
            if file.read(2) in _UTF_16:
                file.seek(0)
                text = file.read(1 << 20).decode("utf-16", errors="replace")
                yield from filter(None, re.split("[\r\n]+", text))
                return
            file.seek(0)
            while raw := file.readline(1 << 20):
                yield from filter(None, re.split("[\r\n]+", raw.decode("utf-8-sig", errors="replace")))
    except OSError:
        return


def detect_delimiter(line: str) -> str:
    """The delimiter (comma, semicolon, tab or bar) that is most frequent outside quotes.

    >>> detect_delimiter('image;"cat, dog, or both"')
    ';'
    """
    bare = re.sub(r'"[^"]*("|$)', "", line)
    return max(_DELIMITERS, key=bare.count)


def csv_line(fields: Iterable[str]) -> str:
    """One line of a CSV file, with quotes where a field has a delimiter, a quote or a line end in it.

    Any delimiter, so that `detect_delimiter` the line is the comma; any line end, which csv.writer sees to only partly.

    >>> csv_line(["a;b", "c, d", "e"]).strip()
    '"a;b","c, d",e'
    """
    quoted = ('"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text for text in fields)
    return ",".join(quoted) + "\n"


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file with their line ends; a byte that does not decode is an error with its line."""
    number = 0
    if not path.is_file():  # a pipe would be waited for
        raise LabelError("this is not a file" if path.exists() else "no such file", "put the file in its place", path)
    # Line ends stay as they are, so that quoted ones survive; a bare carriage return ends a line too.
    with open(path, encoding=encoding, errors="surrogateescape", newline="") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.isascii() and (bad := _BAD_BYTE.search(line)):
                    raise _not_text(f"byte 0x{ord(bad.group()) - 0xDC00:02x} is", encoding, path, number)
                yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeError:
            raise _not_text("some bytes are", encoding, path, number + 1) from None


def read_records(path: Path, delimiter: str, encoding: str = "utf-8") -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of each record of a CSV file that is not blank: slow, for headers and error messages."""
    reader = csv.reader(read_lines(path, encoding), delimiter=delimiter)
    line = 1
    try:
        for record in reader:
            if record and not (line == 1 and _STATED.fullmatch(delimiter.join(record))):
                yield line, record
            line = reader.line_num + 1
    except csv.Error as fault:
        raise LabelError(f"not CSV ({fault})", "repair the quoting on this line", path, line=line) from None


def _not_text(what: str, encoding: str, path: Path, line: int) -> LabelError:
    return LabelError(
        f"{what} not {encoding.upper()} text",
        "save the file as UTF-8, or state its encoding, such as --encoding latin-1",
        path,
        line=line,
    )


class CsvTable:
    """Columns of strings from a CSV file.

    The delimiter (comma, semicolon, tab or bar) is taken from the header, or from Excel's `sep=;` above it.
    A byte order mark is skipped.
    """

    def __init__(self, path: str | Path, *, encoding: str | None = None, header: list[str] | None = None) -> None:
        """Read the whole file. `header` names the columns of a file that has no header line."""
        self.path = existing_path(path)
        self.encoding = self._check_text(encoding or "utf-8")
        stated = _STATED.fullmatch(next(_beginning(self.path), ""))
        self.delimiter = stated[1] if stated else detect_delimiter(first_line(self.path))
        self._above = 1 if stated else 0
        self._skip = 1 if header is None else 0
        self.header = [name.strip() for name in (header or next(self._records(), (1, []))[1])]
        if header is None:
            self._check_first_line()
        self._check_header()
        self.columns = self._read()
        if len(self) == 0:
            raise LabelError("there is a header but not one row", "export the labels again", self.path)

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def __contains__(self, name: str) -> bool:
        return name in self.header

    def column(self, name: str) -> pa.Array:
        """A column by name; a missing one is an error that lists what there is."""
        if name not in self.header:
            raise self.error(
                f"there is no column {name!r}; found: {', '.join(repr(h) for h in self.header[:12])}",
                f"add the column {name!r} or check the header line",
                line=1,
            )
        return self.columns[self.header.index(name)]

    def filter(self, where: Mapping[str, str]) -> NDArray[np.int64]:
        """The rows whose columns have the given values."""
        keep = np.ones(len(self), bool)
        for name, value in where.items():
            match = pc.equal(self.column(name), value).to_numpy(zero_copy_only=False)
            if not match.any():
                values = pc.unique(self.column(name)).to_pylist()[:8]
                raise self.error(
                    f"no row has {value!r} here; found: {', '.join(map(repr, values))}",
                    f"use {quote_option('--where', name + '=VALUE')} with one of these",
                    column=name,
                )
            keep &= match
        if not keep.any():
            said = " and ".join(f"{name}={value}" for name, value in where.items())
            raise self.error(f"no row has {said} together", "leave one --where out, or change its value")
        return np.flatnonzero(keep)

    def line(self, row: int) -> int:
        """The line of the file on which a row starts (slow: reads the file again, for error messages)."""
        for number, (line, _) in enumerate(self._records()):
            if number == row + self._skip:
                return line
        return row + 1 + self._skip

    def error(self, message: str, fix: str, *, row: int | None = None, **place: Any) -> LabelError:
        if row is not None:
            place["line"] = self.line(row)
        return LabelError(message, fix, self.path, **place)

    def _check_text(self, encoding: str) -> str:
        """The encoding under its usual name, once it is sure that the file is no UTF-16 taken for something else."""
        try:
            "".encode(encoding)
            encoding = codecs.lookup(encoding).name
        except (LookupError, UnicodeError, ValueError):
            raise LabelError(f"no encoding is called {encoding!r}", "try utf-8 or latin-1", self.path) from None
        if encoding.startswith(("utf-16", "utf-32")):
            return encoding
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:2] in _UTF_16:
                raise LabelError("the file is UTF-16", "save it as UTF-8, or add --encoding utf-16", self.path)
            if (at := data.find(b"\0")) >= 0:
                raise LabelError(
                    "byte 0x00 does not belong in a text file",
                    "save the file as UTF-8, or add --encoding utf-16-le if that is what it is",
                    self.path,
                    line=data[:at].count(b"\n") + 1,
                )
        return encoding

    def _check_first_line(self) -> None:
        """The names of columns, and not the first image with its labels."""
        if self.header and _PICTURE.fullmatch(self.header[0]):
            raise self.error(
                f"the first line names no columns: it begins with the image {self.header[0]!r}",
                "add a line above it, such as image,class,value or image,tags",
                line=1 + self._above,
            )

    def _check_header(self) -> None:
        seen: set[str] = set()
        for number, name in enumerate(self.header, 1):
            if not name:
                raise self.error(f"column {number} has no name", "give every column a name in the first line", line=1)
            if name in seen:
                raise self.error(
                    f"the column {name!r} is there twice", "rename or remove one of them", line=1, column=name
                )
            seen.add(name)

    def _read(self) -> list[pa.Array]:
        import pyarrow.csv as pa_csv

        # Columns are read under their numbers, so that no name can clash with Arrow's own handling of headers.
        numbers = [str(i) for i in range(len(self.header))]
        try:
            table = pa_csv.read_csv(
                self.path,
                pa_csv.ReadOptions(
                    column_names=numbers, skip_rows=self._above, encoding=self.encoding, block_size=1 << 24
                ),
                pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                pa_csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeError, OSError) as error:
            raise self._diagnose(error) from None
        self._check_quotes(table.column(table.num_columns - 1))
        return [_whole(column).slice(self._skip) for column in table.columns]

    def _check_quotes(self, last: pa.ChunkedArray) -> None:
        """A quote that is never closed takes the rest of the file into one cell, the last: that cell is looked at."""
        if len(last) and "\n" in last[-1].as_py():
            reader = csv.reader(read_lines(self.path, self.encoding), delimiter=self.delimiter, strict=True)
            line = 1
            try:
                for _ in reader:
                    line = reader.line_num + 1
            except csv.Error as fault:
                raise self.error(f"not CSV ({fault})", "close the quote that is opened here", line=line) from None

    def _diagnose(self, error: Exception) -> LabelError:
        """Find the first faulty line by reading the file slowly."""
        if not self.header:
            return LabelError("there are only blank lines", "export the labels again, with a header line", self.path)
        try:
            for line, record in self._records():
                if len(record) != len(self.header):
                    return LabelError(
                        f"{len(record)} fields where the first line has {len(self.header)}",
                        f"add or remove {self.delimiter!r} on this line; quote fields that contain it",
                        self.path,
                        line=line,
                    )
        except LabelError as found:
            return found
        reason = str(error).splitlines()[0]
        return LabelError(f"cannot be read as CSV ({reason})", "check the quoting and the encoding", self.path)

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        return read_records(self.path, self.delimiter, self.encoding)


class ParquetTable(CsvTable):
    """Columns of strings from a Parquet file; a "line" is the row's number, from 1."""

    def __init__(self, path: str | Path) -> None:
        self.path = existing_path(path)
        table = read_parquet(self.path)
        self.header = list(table.column_names)
        self.columns = [self._text(name, column) for name, column in zip(self.header, table.columns, strict=True)]
        self._check_header()
        if len(self) == 0:
            raise LabelError("the file has not one row", "export the labels again", self.path)

    def line(self, row: int) -> int:
        return row + 1

    def _text(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        try:
            return pc.fill_null(_whole(column), "")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            message = f"a column of type {column.type} cannot hold labels"
            raise LabelError(message, "store text or numbers", self.path, column=name) from None


def read_parquet(path: Path) -> pa.Table:
    """The table in a Parquet file, text as dictionaries; what would not fit into half of the memory is refused.

    A file of a few kilobytes can stand for billions of rows, or for one long text in each of millions.
    """
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            about = file.metadata
            parts = [about.row_group(k) for k in range(about.num_row_groups)]
            _check_room(4 * sum(part.column(c).num_values for part in parts for c in range(part.num_columns)), path)
            names = [item.name for item in file.schema_arrow if item.type in (pa.string(), pa.large_string())]
        table = pq.read_table(path, read_dictionary=names)
        table.validate(full=True)
        for column in table.columns:
            if pa.types.is_dictionary(column.type):
                lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
                _check_room(sum(pc.sum(length).as_py() or 0 for length in lengths), path)
    # Damage shows as nearly anything, a size that cannot be had among it.
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LabelError(f"cannot be read as Parquet ({reason})", "write the file again", path) from None
    return table


def _check_room(size: int, path: Path) -> None:
    if size > physical_memory() // 2:
        message = f"what is in this file takes {size / 1e9:.3g} GB of memory, more than half of what there is"
        raise LabelError(message, "split the file, or read it on a larger machine", path)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array of strings, with 64-bit offsets only where the text is too long for 32-bit ones."""
    text = column.cast(pa.string())
    return (text.cast(pa.large_string()) if text.nbytes >= 2**31 else text).combine_chunks()
