"""Write long rows, `image,class,value,source,score`, block by block: for the format `long`, for `fill` and others.

Rows among which are answers have a sixth column, the inclusion weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.labels.formats._csv import csv_line
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.table import UNCERTAIN
from halflabel.system.files import atomic_write

COLUMNS = ("image", "class", "value", "source", "score")
WEIGHT_COLUMN = "inclusion_weight"

_TYPES = (pa.string(), pa.string(), pa.int8(), pa.string(), pa.float32(), pa.float32())
_SCHEMA = pa.schema(list(zip((*COLUMNS, WEIGHT_COLUMN), _TYPES, strict=True)))
_BLOCK = 1 << 18


def appear_in_order(index: NDArray[np.int32], count: int) -> bool:
    """Whether all of 0 … count − 1 appear, each for the first time after the one before."""
    first = np.full(count, -1)
    seen, first_row = np.unique(index, return_index=True)
    first[seen] = first_row
    return bool(np.all(first >= 0) and np.all(np.diff(first) > 0))


def columns_of(*parts: Labels | None) -> Sequence[str]:
    """The columns of a file with these rows: the inclusion weight only if somebody was asked."""
    is_answered = any(bool(rows.is_answer().any()) for rows in parts if rows is not None)
    return (*COLUMNS, WEIGHT_COLUMN) if is_answered else COLUMNS


def write_blocks(parts: Iterable[pa.RecordBatch], path: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Write these columns of blocks as they come, one in memory at a time: Parquet if the name ends so, else CSV.

    The file appears when all blocks are written; after an exception the old file is unchanged.
    """
    with atomic_write(path) as temporary:
        if Path(path).suffix == ".parquet":
            import pyarrow.parquet as pq

            schema = pa.schema([_SCHEMA.field(name) for name in columns])
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for block in parts:
                    writer.write_batch(block.select(columns))
        else:
            with open(temporary, "wb") as file:
                file.write((",".join(columns) + "\n").encode())
                for block in parts:
                    file.write(csv_text(block.select(columns)))


def record_batches(rows: Labels) -> Iterator[pa.RecordBatch]:
    """The rows in blocks for `write_blocks`, with names instead of indices."""
    sources = pa.array(rows.sources, pa.string())
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        columns = [
            rows.images.array.take(pa.array(rows.image[part])).cast(pa.string()),
            rows.classes.array.take(pa.array(rows.column[part])).cast(pa.string()),
            pa.array(rows.value[part]),
            sources.take(pa.array(rows.source[part])),
            *(pa.array(numbers[part], from_pandas=True) for numbers in (rows.score, rows.weight)),
        ]
        yield pa.record_batch(columns, schema=_SCHEMA)


def declaration_blocks(role: str, names: Names) -> Iterator[pa.RecordBatch]:
    """Rows that declare classes (or images), without a label."""
    for start in range(0, len(names), _BLOCK):
        part = names.array.slice(start, _BLOCK).cast(pa.string())
        blank = pa.repeat("", len(part))
        image, label = (part, blank) if role == "image" else (blank, part)
        value, number = pa.nulls(len(part), pa.int8()), pa.nulls(len(part), pa.float32())
        yield pa.record_batch([image, label, value, blank, number, number], schema=_SCHEMA)


def csv_text(block: pa.RecordBatch) -> bytes:
    """CSV lines of a block; only names that need it are quoted, so that files are easy to read and to compare."""
    import pyarrow.csv as pa_csv

    # Arrow writes the fewest digits that give the same number: 0.7, not 0.699999988.
    columns = [column.cast(pa.string()) for column in block.columns]
    if (value := block.schema.get_field_index("value")) >= 0:
        columns[value] = pc.replace_substring(columns[value], str(UNCERTAIN), "uncertain")
    block = pa.record_batch(columns, names=block.schema.names)
    try:
        text = pa.BufferOutputStream()
        pa_csv.write_csv(block, text, pa_csv.WriteOptions(include_header=False, quoting_style="none"))
        return bytes(text.getvalue())
    except pa.ArrowInvalid:
        rows = zip(*(pc.fill_null(column, "").to_pylist() for column in columns), strict=True)
        return "".join(map(csv_line, rows)).encode()
