"""Hugging Face ImageFolder: images next to a metadata.csv, .jsonl or .parquet with a `file_name` column.

Labels are in one column per class (true, false, null), or in a list of class names per image; a second list, `absent`
or `negatives`, may name the absent classes.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats import tags
from halflabel.labels.formats._csv import CsvTable, first_line
from halflabel.labels.formats._json import JsonLines
from halflabel.labels.formats._parquet import read_parquet
from halflabel.labels.formats._paths import existing_path
from halflabel.labels.formats._possible_values import refuse_possible_values
from halflabel.labels.formats._unlisted import apply_unlisted_policy, unlisted_not_stated
from halflabel.labels.formats._wide_values import decode_columns
from halflabel.labels.formats._write import keeps_no_provenance
from halflabel.labels.names import Names
from halflabel.labels.policy import MINUS_ONE, ONE, ZERO, Policy, UndecidedValue, quote_option
from halflabel.labels.rows import Rows
from halflabel.system.files import atomic_write

__all__ = ["IMAGE_COLUMN", "USES", "keeps_provenance", "read", "sniff", "write"]

USES = ("unlisted", "minus_one", "zero", "values", "ignore", "encoding")
keeps_provenance = keeps_no_provenance

METADATA_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
IMAGE_COLUMN = "file_name"
ABSENT_COLUMNS = ("absent", "negatives")

_IMAGE_ENDINGS = frozenset(
    {".apng", ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"}
    | {".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)


class Columns(Protocol):
    """The interface of a metadata file of any kind; null is read as ""."""

    path: Path
    header: list[str]

    def column(self, name: str) -> pa.Array: ...
    def is_list(self, name: str) -> bool: ...
    def lists(self, name: str) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.bool_]]: ...
    def line(self, row: int) -> int: ...
    def error(self, message: str, fix: str, *, row: int | None = None, **place: Any) -> LabelError: ...


class _CsvMetadata(CsvTable):
    """Columns of a CSV file, which has no lists."""

    def is_list(self, name: str) -> bool:
        return False

    def lists(self, name: str) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.bool_]]:
        raise self.error("a CSV file has no lists", "use metadata.jsonl", column=name)


def sniff(path: Path) -> bool:
    """A folder with a metadata file, such a file itself, or any .jsonl file with the key file_name."""
    try:
        if path.is_dir():
            return any((path / name).is_file() for name in METADATA_FILES)
        if path.suffix == ".jsonl":
            return f'"{IMAGE_COLUMN}"' in first_line(path)
        if path.name == "metadata.csv":
            return IMAGE_COLUMN in first_line(path)
        if path.name == "metadata.parquet":
            import pyarrow.parquet as pq

            return IMAGE_COLUMN in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        pass
    return False


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the metadata, and from a folder also the images missing in it: Hugging Face would drop those silently."""
    path = Path(path)
    file = _metadata_file(path)
    if file.suffix == ".csv" and tags.sniff(file):
        policy.check(tags.USES, "imagefolder, with a column of tags")
        rows, audit = tags.read(file, policy)
        return LabelImport(_add_missing_images(rows, path, audit) if path.is_dir() else rows, audit)
    metadata = _open_metadata(file, policy.encoding)
    if IMAGE_COLUMN not in metadata.header:
        raise metadata.error(
            f"there is no column {IMAGE_COLUMN!r}; found: {', '.join(map(repr, metadata.header[:12]))}",
            f"name the images in a column {IMAGE_COLUMN!r}",
        )
    for name in policy.ignore:
        if name not in metadata.header:
            raise metadata.error(
                f"there is no column {name!r} to ignore", f"leave out {quote_option('--ignore', name)}"
            )
    images = _image_names(metadata)
    audit = Audit("imagefolder", [str(file)])
    columns = [name for name in metadata.header if name != IMAGE_COLUMN and name not in policy.ignore]
    lists = [name for name in columns if metadata.is_list(name)]
    if not columns:
        raise metadata.error("no column is left for the labels", "check the names of the columns")
    if policy.ignore:
        audit.note(f"columns ignored: {', '.join(policy.ignore)}")
    if lists:
        rows = _read_lists(metadata, images, lists, policy, audit)
        unused = [name for name in columns if name not in lists]
        refuse_possible_values(metadata, unused)
        if unused:
            audit.note(f"columns not used: {', '.join(unused)}")
    else:
        rows = _read_columns(metadata, images, columns, policy, audit)
    if path.is_dir():
        rows = _add_missing_images(rows, path, audit)
    return LabelImport(rows, audit)


def write(rows: Rows, path: Path) -> None:
    """Write true, false or null per class: metadata.jsonl in a folder, or the named .jsonl, .csv or .parquet file."""
    path = Path(path)
    if path.is_dir() or not path.suffix:
        path = path / "metadata.jsonl"
    writers = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise UserError(
            f"metadata files cannot be {path.suffix} files", f"name a folder, or one of {', '.join(METADATA_FILES)}"
        )
    if IMAGE_COLUMN in rows.classes:
        raise UserError(f"a class is called {IMAGE_COLUMN!r}, like the column of images", "write the long form instead")
    writers[path.suffix](rows, path)


def _metadata_file(path: Path) -> Path:
    """The one metadata file of a folder, or the file itself."""
    if not path.is_dir():
        return existing_path(path)
    files = [name for name in METADATA_FILES if (path / name).is_file()]
    if len(files) == 1:
        return path / files[0]
    if files:
        raise LabelError(f"there are {' and '.join(files)}", "remove all but one, or name the file to read", path)
    subfolders = sorted(
        {str(file.parent.relative_to(path)) for name in METADATA_FILES for file in path.glob(f"*/{name}")}
    )
    fix = f"name the folder to read: {', '.join(subfolders[:8])}" if subfolders else "add one with a column 'file_name'"
    raise LabelError("there is no metadata.csv, .jsonl or .parquet in this folder", fix, path)


def _open_metadata(path: Path, encoding: str | None) -> Columns:
    """The columns of a metadata file, by its ending."""
    if path.suffix == ".csv":
        return _CsvMetadata(path, encoding=encoding)
    if path.suffix == ".jsonl":
        return JsonLines(path, encoding)
    if path.suffix == ".parquet":
        return _ParquetMetadata(path)
    raise LabelError("metadata files are .csv, .jsonl or .parquet", "name such a file, or its folder", path)


def _image_names(metadata: Columns) -> Names:
    """The images in the order of the metadata; LabelError for an empty or repeated name."""
    names = metadata.column(IMAGE_COLUMN)
    codes = pc.dictionary_encode(names).indices.to_numpy(zero_copy_only=False)
    blank = pc.equal(names, "").to_numpy(zero_copy_only=False)
    if blank.any():
        raise metadata.error("the image has no name", "fill it in", row=int(np.argmax(blank)), column=IMAGE_COLUMN)
    _, first = np.unique(codes, return_index=True)
    if len(repeats := np.setdiff1d(np.arange(len(codes)), first)):
        row = int(repeats[0])
        before = metadata.line(int(np.argmax(codes == codes[row])))
        message = f"image {names[row].as_py()!r} is already on line {before}"
        raise metadata.error(message, "leave one line per image", row=row, column=IMAGE_COLUMN)
    return Names(names)


def _read_columns(metadata: Columns, images: Names, classes: list[str], policy: Policy, audit: Audit) -> Rows:
    """Read one column per class; null and blank are unknown, −1 must be stated."""
    if policy.unlisted is not None:
        message = "every class has its own column, so nothing is unlisted"
        raise metadata.error(message, "leave --unlisted out: null is unknown, false is absent")

    def make_error(undecided: UndecidedValue, name: str, raw: str, row: int) -> LabelError:
        fix = f"{undecided.fix}; if {name!r} is not a class, add {quote_option('--ignore', name)}"
        return metadata.error(undecided.message, fix, row=row, column=name)

    columns = ((name, metadata.column(name)) for name in classes)
    labels = decode_columns(columns, policy, audit, make_error, blank="null or blank")
    image, column = np.nonzero(labels)
    return Rows.build(images, Names(classes), image, column, labels[image, column])


def _read_lists(metadata: Columns, images: Names, lists: list[str], policy: Policy, audit: Audit) -> Rows:
    """Read a list of present classes, and perhaps one of absent classes; a null list means nothing is known."""
    for option in ("minus_one", "zero", "values"):
        if getattr(policy, option) != getattr(Policy(), option):
            flag = "--value" if option == "values" else "--" + option.replace("_", "-")
            raise metadata.error(f"{flag} means nothing for lists of class names", f"leave {flag} out")
    negative = [name for name in lists if name in ABSENT_COLUMNS]
    positive = [name for name in lists if name not in ABSENT_COLUMNS]
    if len(positive) != 1 or len(negative) > 1:
        choice = " and ".join(map(repr, lists))
        message = f"the lists are {choice}: one must name the classes present, and at most one those absent"
        raise metadata.error(message, "rename a column, or add --ignore NAME for those that are not labels")
    if not negative and policy.unlisted is None:
        message, fix = unlisted_not_stated("the lists say present and nothing says absent")
        raise metadata.error(message, fix, column=positive[0])
    parts = [(name, -1, *metadata.lists(name)) for name in negative]
    parts += [(name, 1, *metadata.lists(name)) for name in positive]
    for name, _, values, row, _ in parts:
        _refuse_multi_hot(metadata, name, values, row)
    # Classes of the present lists come first, in any order of the columns.
    coded = pc.dictionary_encode(pa.concat_arrays([values for _, _, values, _, _ in reversed(parts)]))
    classes = Names(coded.dictionary)
    if not len(classes):
        raise metadata.error("every list is empty, so there are no classes", "export the labels again")
    keys = [np.unique(row * len(classes) + classes.index(values)) for _, _, values, row, _ in parts]
    for (name, sign, *_), key in zip(reversed(parts), reversed(keys), strict=True):
        audit.add(f"in {name}", "present" if sign > 0 else "absent", len(key))
    image, column = np.divmod(np.concatenate(keys), len(classes))
    value = np.repeat(np.array([sign for _, sign, *_ in parts], np.int8), [len(key) for key in keys])
    rows = Rows.build(images, classes, image, column, value)

    is_null = parts[-1][-1]
    if is_null.any():
        audit.note(
            f"{int(is_null.sum())} images have null instead of a list: nothing is known of them from {positive[0]}"
        )
    rows = apply_unlisted_policy(rows, policy, audit, images=~is_null)
    if conflicts := rows.count_conflicts():
        audit.note(f"{conflicts} entries are in both lists: present wins, both rows are kept")
    return rows


def _refuse_multi_hot(metadata: Columns, name: str, values: pa.Array, row: NDArray[np.int64]) -> None:
    """Raise LabelError for lists such as [0, 1, 1, 0], one value per class: repeats tell them from class names."""
    if not set(pc.unique(values).to_pylist()) <= {*ONE, *ZERO, *MINUS_ONE}:
        return
    codes = pc.dictionary_encode(values).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    key = row * (int(codes.max(initial=0)) + 1) + codes
    _, first = np.unique(key, return_index=True)
    if len(first) < len(key):
        bad_row = int(row[np.setdiff1d(np.arange(len(key)), first)[0]])
        message = "the list holds one value per class, not the names of classes"
        raise metadata.error(
            message, "write one column per class, or the names of those present", row=bad_row, column=name
        )


def _add_missing_images(rows: Rows, folder: Path, audit: Audit) -> Rows:
    """Add the images of the folder that are not in the metadata, without labels."""
    listed = {os.path.normpath(name) for name in rows.images}
    on_disk, unreadable = _find_images(folder)
    unlisted_images = sorted(name for name in on_disk if os.path.normpath(name) not in listed)
    if unlisted_images:
        audit.note(
            f"{len(unlisted_images)} images in the folder are not in the metadata (Hugging Face drops such images): "
            "added, with nothing known"
        )
    if missing := len(listed - {os.path.normpath(name) for name in on_disk}):
        audit.note(f"{missing} of {len(rows.images)} images in the metadata are not in the folder")
    if unreadable:
        audit.note(f"{unreadable} images have a file name that is not Unicode: left out")
    images = rows.images.union(Names(unlisted_images))
    return Rows(images, rows.classes, rows.image, rows.column, rows.value, rows.source, rows.score, rows.sources)


def _find_images(folder: Path) -> tuple[list[str], int]:
    """Image files below a folder, with `/`; a subfolder with its own metadata is another data set."""
    images, unreadable = [], 0
    for current, folders, files in os.walk(folder):
        if current != str(folder) and any(name in files for name in METADATA_FILES):
            folders.clear()
            continue
        for name in files:
            if os.path.splitext(name)[1].lower() in _IMAGE_ENDINGS:
                relative = (Path(current) / name).relative_to(folder).as_posix()
                try:
                    relative.encode()
                    images.append(relative)
                except UnicodeEncodeError:
                    unreadable += 1
    return images, unreadable


class _ParquetMetadata(CsvTable):
    """Columns of a Parquet file, of single values or lists; a line is the row number, counted from 1."""

    def __init__(self, path: Path) -> None:
        self.path = existing_path(path)
        self.table = read_parquet(self.path)
        self.header = list(self.table.column_names)
        self._check_header()
        if not len(self.table):
            raise LabelError("the file has no rows", "export the labels again", self.path)

    def __len__(self) -> int:
        return len(self.table)

    def is_list(self, name: str) -> bool:
        kind = self.table.schema.field(name).type
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

    def column(self, name: str) -> pa.Array:
        return pc.fill_null(self._cast(name, pa.string()), "")

    def lists(self, name: str) -> tuple[pa.Array, NDArray[np.int64], NDArray[np.bool_]]:
        column = self._cast(name, pa.large_list(pa.string()))
        items = pc.fill_null(pc.list_flatten(column), "")
        row = np.asarray(pc.list_parent_indices(column), dtype=np.int64)
        blank = pc.equal(items, "").to_numpy(zero_copy_only=False)
        if blank.any():
            message = "a class has no name"
            raise self.error(message, "write its name", row=int(row[np.argmax(blank)]), column=name)
        return items, row, np.asarray(column.is_null().to_numpy(zero_copy_only=False))

    def line(self, row: int) -> int:
        return row + 1

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self.table.column(name)
        try:
            return pa.chunked_array(column.cast(kind).chunks, kind).combine_chunks()
        except pa.ArrowException:
            message = f"a column of type {column.type} cannot hold labels"
            raise self.error(
                message, f"store text, numbers, true or false, or add {quote_option('--ignore', name)}", column=name
            ) from None


def _write_jsonl(rows: Rows, path: Path) -> None:
    table = rows.resolve()
    cell_words = np.array(["false", "null", "true"])
    keys = [json.dumps(name, ensure_ascii=False) for name in table.classes]
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for first in range(0, len(table), 4096):
            block = np.arange(first, min(first + 4096, len(table)))
            for position, row_words in zip(block, cell_words[table.rows(block) + 1].tolist(), strict=True):
                image_name = json.dumps(table.images[int(position)], ensure_ascii=False)
                cells = "".join(f", {key}: {word}" for key, word in zip(keys, row_words, strict=True))
                file.write(f'{{"{IMAGE_COLUMN}": {image_name}{cells}}}\n')


def _write_csv(rows: Rows, path: Path) -> None:
    table = rows.resolve()
    unwritable = [name for name in table.classes if name != name.strip() or set(name) & set(";\t|\r\n\0")]
    unwritable += [name for name in table.images if set(name) & set("\r\n\0")]
    if unwritable:
        raise UserError(f"the name {unwritable[0]!r} cannot be written to CSV", "write metadata.jsonl instead")
    cell_words = np.array(["false", "", "true"])
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([IMAGE_COLUMN, *table.classes])
        for first in range(0, len(table), 4096):
            block = np.arange(first, min(first + 4096, len(table)))
            for position, cells in zip(block, cell_words[table.rows(block) + 1].tolist(), strict=True):
                writer.writerow([table.images[int(position)], *cells])


def _write_parquet(rows: Rows, path: Path) -> None:
    import pyarrow.parquet as pq

    table = rows.resolve()
    labels = table.dense()
    columns = [pa.array(labels[:, number] > 0, mask=labels[:, number] == 0) for number in range(len(table.classes))]
    with atomic_write(path) as temporary:
        pq.write_table(pa.table([table.images.array, *columns], names=[IMAGE_COLUMN, *table.classes]), temporary)
