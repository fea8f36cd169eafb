"""Tables in Parquet files, and in folders of them (part-*.parquet, also in key=value folders, as Spark writes them)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from halflabel.errors import LabelError, error_summary
from halflabel.labels.formats._csv import check_width
from halflabel.system.memory import physical_memory

_NULL = "__HIVE_DEFAULT_PARTITION__"


def parquet_files(path: Path) -> list[Path]:
    """The Parquet files of a table: the file itself, or those of a folder and its key=value folders, in order.

    Names that begin with _ or . are skipped, as by Spark and Arrow. Empty if it is neither.
    """
    if not path.is_dir():
        return [path] if path.suffix == ".parquet" else []
    inside = [path, *(each for each in path.rglob("*=*") if each.is_dir())]
    return sorted(file for folder in inside for file in folder.glob("*.parquet") if file.name[0] not in "_.")


def parquet_columns(path: Path, *, flat: bool = False) -> list[str]:
    """The names of the columns of a Parquet table, by its first file; empty if there is none.

    With `flat` also empty if a column is nested, such as images with their bytes.
    """
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
    """The table in a Parquet file or in a folder of them, with text columns as dictionaries.

    Raises LabelError if it would not fit into half of the memory: a file of a few kilobytes can hold billions of rows,
    or a long text in each of millions.
    """
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
    """Raise LabelError if `size` bytes are more than half of the memory."""
    if size > physical_memory() // 2:
        message = f"the content of this file takes {size / 1e9:.3g} GB, more than half of the memory"
        raise LabelError(message, "split the file, or read it on a larger machine", path)
