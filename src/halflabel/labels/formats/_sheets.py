"""Tables as columns of strings: ids keep their leading zeros, and a class may be called NA or None."""

from __future__ import annotations

import codecs
import mmap
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, error_summary
from halflabel.labels.audit import Audit
from halflabel.labels.formats._csv import (
    Beginning,
    check_quotes,
    check_width,
    csv_fault,
    existing_path,
    number_of,
    parse_float,
    read_beginning,
    read_records,
    wide_encoding,
)
from halflabel.labels.names import Names, first_duplicate
from halflabel.labels.policy import MINUS_ONE, ONE, VALUE_WORDS, ZERO, shorten_cell
from halflabel.system.files import is_utf8
from halflabel.system.memory import physical_memory

_NULL = "__HIVE_DEFAULT_PARTITION__"  # in the name of a folder
_MOST = float(np.finfo(np.float32).max)


class CsvTable:
    """Columns of strings from a CSV file, whose delimiter is detected."""

    selected: NDArray[np.int64] | None = None  # the rows that `select` has left; None for all
    has_header, is_indexed = True, False

    def __init__(self, path: str | Path, *, encoding: str | None = None) -> None:
        self.path = existing_path(path)
        self.encoding = self._check_encoding(encoding)
        beginning = read_beginning(self.path, self.encoding)
        self.header, self.delimiter, self.has_header = beginning.header, beginning.delimiter, beginning.has_header
        self.columns, self.is_indexed = self._read(beginning), beginning.is_indexed
        kept = [
            position
            for position, (name, column) in enumerate(zip(self.header, self.columns, strict=True))
            if (name or pc.any(pc.not_equal(column, "")).as_py()) and not (beginning.is_indexed and position == 0)
        ]
        self.header, self.columns = [self.header[i] for i in kept], [self.columns[i] for i in kept]
        self._check_header()
        if len(self) == 0:
            raise LabelError("the file has a header but no rows", "export the labels again", self.path)
        self._refuse_second_header()

    def __len__(self) -> int:
        return self._count() if self.selected is None else len(self.selected)

    def __contains__(self, name: str) -> bool:
        return name in self._position

    def _count(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def _cells(self, name: str) -> pa.Array:
        return self.columns[self._position[name]]

    def _line(self, row: int) -> int:
        """The line where a row of the file starts."""
        number = row + self.has_header
        with closing(read_records(self.path, self.delimiter, self.encoding)) as records:  # slow: for error messages
            return next(islice(records, number, None), (number + 1, []))[0]

    def check_columns(self, names: Iterable[str]) -> None:
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
        values: list[Any] = self.column(name).to_pylist()
        return values

    def repeated_names(self, name: str) -> tuple[Names, NDArray[np.int64]]:
        """The images in a column, and the number of each row's image; LabelError for a blank name."""
        names = self.column(name)
        if (blank := pc.index(names, pa.scalar("", names.type)).as_py()) >= 0:
            raise self.error("the image has no name", "fill it in", row=blank, column=name)
        coded = pc.dictionary_encode(names)
        return Names(coded.dictionary), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def note_form(self, audit: Audit) -> None:
        if not self.has_header:
            audit.note("there is no header line: the columns are named by their number")
        if self.is_indexed:
            audit.note("the first column numbers the rows: not used")

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
        return self._line(row if self.selected is None else int(self.selected[row]))

    def error(self, message: str, fix: str, *, row: int | None = None, **place: Any) -> LabelError:
        """A LabelError for this file; `row` is translated to its line."""
        if row is not None:
            place["line"] = self.line(row)
        return LabelError(message, fix, self.path, **place)

    def _check_encoding(self, encoding: str | None) -> str:
        """The normalized encoding: stated, by the byte order mark, or UTF-8; LabelError if it cannot be right."""
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            wide = wide_encoding(data[:4])
            encoding = encoding or wide or "utf-8"
            try:
                "".encode(encoding)
                encoding = codecs.lookup(encoding).name
            except (LookupError, UnicodeError, ValueError):
                raise LabelError(f"no encoding is called {encoding!r}", "try utf-8 or latin-1", self.path) from None
            if encoding.startswith(("utf-16", "utf-32")):
                return encoding
            if wide is not None:
                fix = f"add ‹encoding={wide}›, or save it as UTF-8"
                raise LabelError(f"the file is {wide.upper()}", fix, self.path)
            if (position := data.find(b"\0")) >= 0:
                line = data[:position].count(b"\n") + 1
                fix = "save the file as UTF-8, or add ‹encoding=utf-16-le› if that is what it is"
                raise LabelError("byte 0x00 is not allowed in a text file", fix, self.path, line=line)
        return encoding

    def _check_header(self) -> None:
        check_width(len(self.header), self.path)
        # A search in a list of 40,000 names for each of them would take a minute.
        self._position = {name: position for position, name in enumerate(self.header)}
        if "" in self.header:
            number = self.header.index("") + 1
            raise self.error(f"column {number} has no name", "give every column a name in the first line", line=1)
        if (name := first_duplicate(self.header)) is not None:
            raise self.error(f"the column {name!r} occurs twice", "rename or remove one of them", line=1, column=name)

    def _refuse_second_header(self) -> None:
        """Raise LabelError for a row that repeats the header, as two files joined by `cat` have it."""
        if not self.has_header:
            return
        names = pa.array([self.header[0], "\ufeff" + self.header[0]], self.columns[0].type)
        is_header = pc.is_in(self.columns[0], value_set=names)
        for name, column in zip(self.header[1:], self.columns[1:], strict=True):
            if not pc.any(is_header).as_py():
                return
            is_header = pc.and_(is_header, pc.equal(pc.utf8_trim_whitespace(column), name))
        if pc.any(is_header).as_py():
            message = "the header is repeated here: two files may have been joined"
            raise self.error(message, "remove this line", row=pc.index(is_header, True).as_py())

    def _read(self, beginning: Beginning) -> list[pa.Array]:
        import pyarrow.csv as pa_csv

        check_quotes(self.path, self.delimiter, self.encoding)
        # Columns get their numbers as names, so that no name can collide with Arrow's handling of headers.
        numbers = [str(i) for i in range(len(self.header))]
        rows_above = int(self.has_header and not beginning.is_short)
        try:
            table = pa_csv.read_csv(
                self.path,
                pa_csv.ReadOptions(
                    column_names=numbers,
                    skip_rows=beginning.lines_above,
                    skip_rows_after_names=self._line(0) - 1 - beginning.lines_above if beginning.is_short else 0,
                    encoding=self.encoding,
                    block_size=1 << 24,
                ),
                pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                pa_csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeError, OSError) as error:
            raise csv_fault(self.path, self.header, error, self.delimiter, self.encoding) from None
        return [_combine(column).slice(rows_above) for column in table.columns]


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


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or those of a folder and of its key=value folders, as Spark writes them."""
    if not path.is_dir():
        return [path] if path.suffix == ".parquet" else []
    inside = [path, *(each for each in path.rglob("*=*") if each.is_dir())]
    return sorted(file for folder in inside for file in folder.glob("*.parquet") if file.name[0] not in "_.")


def parquet_columns(path: Path, *, flat: bool = False) -> list[str]:
    """The columns of a Parquet table, by its first file; none without a file, or if `flat` and one is nested."""
    import pyarrow.parquet as pq

    try:
        for file in [file for file in parquet_files(path) if file.is_file()][:1]:
            schema = pq.read_schema(file)
            if not (flat and any(pa.types.is_nested(field.type) for field in schema)):
                return [*schema.names, *_partition(path, file)]
    except (pa.ArrowException, OSError):
        pass
    return []


def _partition(path: Path, file: Path) -> dict[str, str | None]:
    """The columns that the names of key=value folders hold."""
    pairs = [part.partition("=") for part in file.relative_to(path).parts[:-1]] if path.is_dir() else []
    return {key: None if value == _NULL else unquote(value) for key, _, value in pairs}


def read_parquet(path: Path, without: Collection[str] = ()) -> pa.Table:
    """The table in a Parquet file or a folder of them; LabelError if it would not fit into half of the memory."""
    if path.is_file():
        return _read_file(path, without)
    tables: list[pa.Table] = []
    size = 0
    for file in parquet_files(path):
        table = _read_file(file)
        for key, value in _partition(path, file).items():
            if key in table.column_names:
                raise LabelError(f"{key!r} is a column and a folder", "rename one of them", file)
            column = pa.repeat(pa.scalar(value, pa.string()), len(table))
            table = table.append_column(key, column.dictionary_encode())
        if tables and set(table.column_names) != set(tables[0].column_names):
            different = sorted(set(table.column_names) ^ set(tables[0].column_names))
            raise LabelError(f"not all files have the column {different[0]!r}", "write all files alike", file)
        tables.append(table.select(tables[0].column_names) if tables else table)
        size += table.nbytes
        check_memory(size, path)
    if not tables:
        raise LabelError("there are no Parquet files in this folder", "name a file or another folder", path)
    try:
        return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    except pa.ArrowException as error:
        reason = error_summary(error)
        raise LabelError(f"the files do not fit together ({reason})", "write all files alike", path) from None


def _read_file(path: Path, without: Collection[str] = ()) -> pa.Table:
    import pyarrow.parquet as pq

    if not path.is_file():  # reading a pipe would wait forever
        raise LabelError("is not a file", "name a Parquet file, or a folder of them", path)
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            check_width(metadata.num_columns, path)
            row_groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
            check_memory(
                4 * sum(part.column(c).num_values for part in row_groups for c in range(part.num_columns)), path
            )
            check_memory(sum(part.total_byte_size for part in row_groups), path)
            leaves = [file.schema.column(number) for number in range(len(file.schema.names))]
            # Text and bytes, also inside lists: a dictionary holds each distinct one once.
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        kept = {leaf.path.partition(".list.")[0] for leaf in leaves if leaf.path.rpartition(".")[2] not in without}
        table = pq.read_table(path, read_dictionary=texts, columns=list(kept) if without else None)
        table.validate(full=True)
        check_memory(sum(_decoded_size(chunk) for column in table.columns for chunk in column.chunks), path)
    # A damaged file can raise nearly anything, even MemoryError for an impossible size.
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = error_summary(error)
        raise LabelError(f"cannot be read as Parquet ({reason})", "write the file again", path) from None
    return table


def _decoded_size(values: pa.Array) -> int:
    """The bytes of text in a dictionary-encoded column, or in lists of such values, after decoding; 0 for numbers."""
    while isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        values = values.flatten()
    if pa.types.is_struct(values.type):
        return sum(map(_decoded_size, values.flatten()))
    if not pa.types.is_dictionary(values.type):
        return 0
    return pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0


def check_memory(size: int, path: Path) -> None:
    if size > physical_memory() // 2:
        message = f"the content of this file takes {size / 1e9:.3g} GB, more than half of the memory"
        raise LabelError(message, "split the file, or read it on a larger machine", path)


def open_sheet(path: str | Path, encoding: str | None = None) -> CsvTable:
    return ParquetTable(path) if parquet_files(Path(path)) else CsvTable(path, encoding=encoding)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    """One array of strings; with 64-bit offsets only if the text is too long for 32-bit ones."""
    text = column.cast(pa.string())
    return (text.cast(pa.large_string()) if text.nbytes >= 2**31 else text).combine_chunks()


_VALUE_CELLS = frozenset((*VALUE_WORDS, *ZERO, *MINUS_ONE))
_UNKNOWN_CELLS = frozenset(word for word, meaning in VALUE_WORDS.items() if meaning == "unknown")

# Numbers of any size in a column of these names are scores.
SCORE_NAMES = ("score", "conf", "prob", "likelihood", "certainty", "percent", "logit")


def possible_values(sheet: CsvTable, names: Iterable[str]) -> dict[str, str]:
    """The columns whose cells may be values or probabilities of the labels, with an example of each."""
    found = {}
    for name in names:
        try:
            column = sheet.column(name)
        except LabelError:  # objects or lists, which are not values
            continue
        cells = pc.unique(pc.utf8_lower(pc.utf8_trim_whitespace(column))).to_pylist()
        texts = {text for text in cells if text not in _UNKNOWN_CELLS}
        if texts and not texts <= {*ONE} and _may_be_values(name, texts):
            found[name] = shorten_cell(min(texts), 20)
    return found


def write_ignored(names: Iterable[str]) -> str:
    """The options that leave out columns, as a message has them after another option."""
    return "".join(f" ‹ignore={name}›" for name in names)


def refuse_values(sheet: CsvTable, values: Mapping[str, str], fix: str = "") -> None:
    """Raise LabelError for the first of the columns that `possible_values` found."""
    for name, example in values.items():
        says = "every row says present; if this column says it, call it 'value'"
        message = f"the cells, such as {example!r}, may say present or absent, or how probable the label is"
        raise sheet.error(message, fix or f"add{write_ignored(values)} ({says})", column=name)


def _may_be_values(name: str, texts: set[str]) -> bool:
    is_score = any(word in name.lower() for word in SCORE_NAMES)
    if is_score:  # also one number per tag
        texts = {part for text in texts for part in re.split(r"[\s,;|\[\]()]+", text) if part}
    numbers = [number for text in texts if (number := number_of(text)) is not None]
    if len(numbers) < len(texts):
        return texts <= _VALUE_CELLS
    return is_score or all(-1 <= number <= 1 for number in numbers)
