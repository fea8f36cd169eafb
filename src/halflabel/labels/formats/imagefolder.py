"""Hugging Face ImageFolder: images next to a metadata.csv, .jsonl or .parquet with a `file_name` column.

Labels are in one column per class (true, false, null), or in a list of class names per image; a second list, `absent`
or `negatives`, may name the absent classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats import tags
from halflabel.labels.formats._csv import existing_path, first_line
from halflabel.labels.formats._json import JsonLines, Node
from halflabel.labels.formats._layout import table_form
from halflabel.labels.formats._records import ImageRecord, Label, RecordFormat
from halflabel.labels.formats._sheets import CsvTable, open_sheet, parquet_columns, possible_values, refuse_values
from halflabel.labels.formats._write import keeps_no_provenance, table_lines
from halflabel.labels.formats.wide import decode_columns
from halflabel.labels.labels import Labels
from halflabel.labels.policy import MINUS_ONE, ONE, ZERO, Policy
from halflabel.system.files import atomic_write

USES = ("unlisted", "minus_one", "zero", "values", "ignore", "encoding", "repeats")
keeps_provenance = keeps_no_provenance

METADATA_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
IMAGE_COLUMN = "file_name"
ABSENT_COLUMNS = ("absent", "negatives")


def sniff(path: Path) -> bool:
    """A folder with a metadata file, such a file itself, or any .jsonl file with the key file_name."""
    if path.is_dir():
        return any((path / name).is_file() for name in METADATA_FILES)
    if path.suffix == ".jsonl":
        return f'"{IMAGE_COLUMN}"' in first_line(path)
    if path.name == "metadata.csv":
        return IMAGE_COLUMN in first_line(path)
    return path.name == "metadata.parquet" and IMAGE_COLUMN in parquet_columns(path)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read a list of classes per image, or a column per class; CSV as tags where it has lists."""
    file = _metadata_file(path)
    if file.suffix == ".csv" and table_form(file) == "tags":
        policy.check(tags.USES, "imagefolder, with a column of tags")
        return tags.read(file, policy)
    if file.suffix not in (".csv", ".jsonl", ".parquet"):
        raise LabelError("metadata files are .csv, .jsonl or .parquet", "name such a file, or its folder", file)
    metadata = JsonLines(file, policy.encoding) if file.suffix == ".jsonl" else open_sheet(file, policy.encoding)
    metadata.check_columns((IMAGE_COLUMN, *policy.ignore))
    columns = [name for name in metadata.header if name != IMAGE_COLUMN and name not in policy.ignore]
    if not columns:
        raise metadata.error("no column is left for the labels", "check the names of the columns")
    if lists := [name for name in columns if metadata.is_list(name)]:
        policy.check(set(USES) - {"minus_one", "zero", "values", "repeats"}, "imagefolder, with lists of class names")
        form = RecordFormat(
            "imagefolder",
            lambda path, policy: _records(metadata, lists),
            USES,
            sniff,
            complete="the lists are complete",
            has_paths=False,
        )
        rows, audit = form.read(file, policy)
        unused = [name for name in columns if name not in lists]
        refuse_values(metadata, possible_values(metadata, unused))
        audit.note_names("columns not used", unused)
    else:
        if policy.unlisted is not None:
            message = "every class has its own column, so nothing is unlisted"
            raise metadata.error(message, "leave ‹unlisted› out: null is unknown, false is absent")
        audit = Audit("imagefolder", [str(file)])
        rows = decode_columns(metadata, IMAGE_COLUMN, columns, policy, audit)
    audit.note_names("columns ignored", policy.ignore)
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write true, false or null per class: metadata.jsonl in a folder, or the named .jsonl file."""
    path = Path(path)
    path = path / "metadata.jsonl" if path.is_dir() or not path.suffix else path
    if path.suffix != ".jsonl":
        raise UserError(f"metadata is not written as a {path.suffix} file", "name a folder, or metadata.jsonl")
    if IMAGE_COLUMN in rows.classes:
        raise UserError(f"a class is called {IMAGE_COLUMN!r}, like the column of images", "write the long form instead")
    table = rows.training
    keys = [json.dumps(name, ensure_ascii=False) for name in table.classes]
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        for name, words in table_lines(table, ("false", "null", "true")):
            cells = "".join(f", {key}: {word}" for key, word in zip(keys, words, strict=True))
            file.write(f'{{"{IMAGE_COLUMN}": {json.dumps(name, ensure_ascii=False)}{cells}}}\n')


def _metadata_file(path: Path) -> Path:
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


def _records(metadata: CsvTable, lists: list[str]) -> Iterator[ImageRecord]:
    """The list of present classes of each image, and perhaps one of absent ones; null means that nothing is known."""
    negative = [name for name in lists if name in ABSENT_COLUMNS]
    positive = [name for name in lists if name not in ABSENT_COLUMNS]
    if len(positive) != 1 or len(negative) > 1:
        choice = " and ".join(map(repr, lists))
        message = f"the lists are {choice}: one must name the classes present, and at most one those absent"
        raise metadata.error(message, "rename a column, or add ‹ignore=NAME› for those that are not labels")
    names = metadata.column(IMAGE_COLUMN).to_pylist()
    values = {name: metadata.lists(name) for name in (*positive, *negative)}
    _refuse_multi_hot(metadata, positive[0], values[positive[0]])
    for row, name in enumerate(names):
        labels = [
            Label(label, f"in {column}", -1 if column in negative else 1)
            for column, of_images in values.items()
            for label in of_images[row] or ()
        ]
        is_labelled = values[positive[0]][row] is not None
        yield ImageRecord(Node(name, metadata.path, key=metadata.line(row)), labels, is_labelled, bool(negative))


def _refuse_multi_hot(metadata: CsvTable, name: str, of_images: list[list[str] | None]) -> None:
    """Raise LabelError for lists such as [0, 1, 1, 0], one value per class: repeats tell them from class names."""
    are_values = all({*ONE, *ZERO, *MINUS_ONE}.issuperset(items or ()) for items in of_images)
    twice = next((row for row, items in enumerate(of_images) if items and len(set(items)) < len(items)), None)
    if are_values and twice is not None:
        message = "the list holds one value per class, not the names of classes"
        fix = "write one column per class, or the names of those present"
        raise metadata.error(message, fix, row=twice, column=name)
