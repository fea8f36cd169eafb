"""Files that are recognized but not read as labels, so that one line tells the user what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from halflabel.errors import LabelError
from halflabel.labels.formats._csv import first_line
from halflabel.labels.formats._json import head_and_tail
from halflabel.labels.formats._sheets import parquet_columns
from halflabel.labels.labels import WEIGHT_COLUMN
from halflabel.labels.policy import shorten_cell

PREDICTION_COLUMNS = ("image", "class", "probability", "present", "error")  # predict --format csv
QUESTION_COLUMNS = ("image", "class", "probability", "why", WEIGHT_COLUMN)  # next

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
# Folders of these names divide a data set; they are not classes.
SPLITS = {
    *("all", "dev", "holdout", "image", "images", "img", "imgs", "photos", "pictures", "test", "testing", "train"),
    *("training", "unlabeled", "unlabelled", "val", "valid", "validation"),
}
_MAX_ENTRIES = 200  # entries of a folder that are examined

# The first bytes of files that are not labels, what they are, and what to do.
_UNPACK = "unpack it, and name the file inside"
_OTHER_CONTENT = {
    b"\x1f\x8b": ("a gzip archive", _UNPACK),
    b"PK\x03\x04": ("a zip archive, or a spreadsheet of Excel or LibreOffice", f"{_UNPACK}, or save the sheet as CSV"),
    b"\xd0\xcf\x11\xe0": ("a spreadsheet of an old Excel", "save the sheet as CSV"),
    b"BZh": ("a bzip2 archive", _UNPACK),
    b"\xfd7zXZ": ("an xz archive", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("a zstd archive", _UNPACK),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"%PDF": ("a PDF document", "export the labels as CSV"),
    b"SQLite format 3": ("an SQLite database", "export its table as CSV"),
    b"version https://git-lfs": ("a Git LFS pointer, not the file itself", "fetch the file: git lfs pull"),
    b"<!doctype html": ("a web page", "download the file itself"),
    b"<html": ("a web page", "download the file itself"),
}
_LABEL_ENDINGS = (".json", ".jsonl", ".ndjson", ".manifest", ".xml", ".csv", ".tsv")
_KEY = re.compile(r'"([^"\\\n]{1,40})"\s*:')
_COCO_KEYS = {"images", "annotations", "categories", "image_id", "category_id"}  # its reader knows what is wrong
_WRITE = "write a CSV file with the header image,tags and one line per image, such as"


def unsupported_format_error(path: Path) -> LabelError | None:
    """The error that says what a file or folder is; None if it is not recognized."""
    if not path.is_dir():
        text = head_and_tail(path) if path.suffix.lower() == ".json" else ""
        keys = list(dict.fromkeys(_KEY.findall(text)))
        if not keys or not _COCO_KEYS.isdisjoint(keys):
            return None
        message = f"this JSON has no known format; its keys are {', '.join(keys[:8])}"
        return LabelError(message, f"{_WRITE} a.jpg,dog;cat", path)
    if any(name.lower().endswith(IMAGE_ENDINGS) for name in _entry_names(path)):
        message = "this folder has images, but no labels in a known format"
        return LabelError(message, "name the file with the labels", path)
    if not (class_folders := folders_with_images(path)):
        return None
    examples = ", ".join(name for name, _ in class_folders[:3]) + (", …" if len(class_folders) > 3 else "")
    name, image = class_folders[0]
    other = f"name the file with the labels, or {_WRITE} {name}/{image},dog;cat"
    message = f"folders of images ({examples}), which may be classes, splits or parts"
    return LabelError(message, f"if they are classes, add ‹format=class-folders›; else {other}", path)


def refuse_other_content(path: Path) -> None:
    """Raise LabelError for a file whose first bytes say that it is an archive, a spreadsheet, a web page …"""
    if not path.is_file():
        return
    try:
        with open(path, "rb") as file:
            beginning = file.read(1000).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:  # the reader says why
        return
    is_parquet = beginning.startswith(b"PAR1")
    if path.suffix.lower() in (".csv", ".tsv", ".txt", ".json", ".jsonl") and is_parquet:
        raise LabelError("this is a Parquet file", "give its name the ending .parquet", path)
    if path.suffix.lower() == ".parquet" and not is_parquet:
        raise LabelError("this is not a Parquet file", "write it again, or name it .csv if it is text", path)
    for mark, (what, fix) in _OTHER_CONTENT.items():
        if beginning.lower().startswith(mark.lower()):
            raise LabelError(f"this is {what}", fix, path)


def describe_beginning(path: Path) -> str:
    """The first line of a text file, or the columns of a Parquet file, in words for an error message; else ""."""
    if path.suffix.lower() == ".parquet":
        names = parquet_columns(path)
        if not names:
            return ": the file is damaged, or has no columns"
        needed = "long needs image, class and value; imagefolder is called metadata.parquet and needs file_name"
        return f": the columns are {', '.join(names[:8])}, but {needed}"
    line = first_line(path)
    if not path.is_file() or not line.isprintable():
        return ""
    return f": the first line is {shorten_cell(line)!r}" if line.strip() else ": there are only blank lines"


def own_output_error(header: list[str]) -> tuple[str, str] | None:
    """The message and fix for a table that halflabel wrote and that does not hold labels; None for other tables."""
    if set(PREDICTION_COLUMNS[:4]) <= set(header):
        return "these are predictions of a model, not labels", (
            "add labels with `halflabel fill`, which marks them as made by a model; or answer questions with "
            "`halflabel review`"
        )
    if set(QUESTION_COLUMNS[:4]) <= set(header) and "value" not in header:
        return (
            "these are questions of `halflabel next`, not labels",
            "answer them: halflabel review RUN --questions FILE, or in a column value: 1 present, -1 absent",
        )
    return None


def places_inside(path: Path) -> Iterator[Path]:
    """The folders in a folder, and the files in it and in those that may hold labels."""
    for name in sorted(_entry_names(path)) if path.is_dir() else ():
        if name.lower().endswith(_LABEL_ENDINGS) or ((path / name).is_dir() and not name.startswith(".")):
            yield path / name
            inner = (path / name / each for each in sorted(_entry_names(path / name)))
            yield from (place for place in inner if place.name.lower().endswith(_LABEL_ENDINGS))


def folders_with_images(path: Path) -> list[tuple[str, str]]:
    """The folders in a folder that hold images, each with one of its images."""
    folders = []
    for name in sorted(_entry_names(path)):
        if images := [file for file in _entry_names(path / name) if file.lower().endswith(IMAGE_ENDINGS)]:
            folders.append((name, min(images)))
    return folders


def _entry_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    except OSError:
        return []
