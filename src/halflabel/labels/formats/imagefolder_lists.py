"""Hugging Face ImageFolder with lists: metadata.jsonl with `file_name`, `labels` and `absent`.

One list of present classes and one of absent classes, so that a thousand classes do not need a thousand columns. Scores
and sources, if any, are in parallel lists: `labels_score`, `labels_source`, `absent_score` and `absent_source`. Files
without these are read by `imagefolder`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import LabelError
from halflabel.labels.audit import LabelImport
from halflabel.labels.formats._csv import first_line
from halflabel.labels.formats._entries import Entries
from halflabel.labels.formats._json import MAX_SCORE, JsonLines
from halflabel.labels.formats._write import shortest_float, split_by_image
from halflabel.labels.formats.imagefolder import IMAGE_COLUMN
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

USES = ("encoding",)

FILE = "metadata.jsonl"

_LISTS = {"labels": 1, "absent": -1}
_MARKS = ('"labels_score"', '"labels_source"')
_Fail = Callable[..., LabelError]


def sniff(path: Path) -> bool:
    """A metadata.jsonl, or its folder, whose lists have parallel lists of scores or sources."""
    file = path / FILE if path.is_dir() else path
    try:
        line = first_line(file) if file.suffix == ".jsonl" and file.is_file() else ""
    except OSError:
        return False
    return f'"{IMAGE_COLUMN}"' in line and any(mark in line for mark in _MARKS)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the lists with their scores and sources; classes in neither list are unknown."""
    file = path / FILE if path.is_dir() else path
    if file.suffix != ".jsonl":
        raise LabelError("lists with scores are in .jsonl files", "add ‹format=imagefolder›", file)
    sheet = JsonLines(file, policy.encoding)
    sheet.check_columns((IMAGE_COLUMN, *_LISTS))
    entries = Entries("imagefolder-lists", file)
    for row, record in enumerate(sheet.records):

        def fail(message: str, fix: str, column: str = IMAGE_COLUMN, row: int = row) -> LabelError:
            return sheet.error(message, fix, row=row, column=column)

        add_record(entries, record.get(IMAGE_COLUMN), record, fail)
    if not entries.classes:
        raise sheet.error("every list is empty, so there are no classes", "export the labels again")
    names = ((entries.images, IMAGE_COLUMN), (entries.classes, "labels"), (entries.sources, "sources"))
    for texts, what in names:
        sheet._encode(list(texts), "a name", what)  # raises for half a surrogate pair
    return entries.read(policy)


def add_record(entries: Entries, image: Any, record: dict[str, Any], fail: _Fail) -> None:
    """Add the labels of one image; `fail(message, fix, key)` makes the error that names the place."""
    if not isinstance(image, str) or not image:
        raise fail("the image has no name", "fill it in")
    if image in entries.images:
        raise fail(f"image {image!r} occurs twice", "leave one line per image")
    entries.add_image(image)
    # Present comes last, so that it wins if a class is in both lists.
    for name, sign in reversed(_LISTS.items()):
        for label, source, score in _entries(record, name, fail):
            entries.add(image, label, sign, f"in {name}", source, score)


def image_records(rows: Labels) -> Iterator[dict[str, Any]]:
    """Yield the lists of each image: present and absent classes, with scores and sources if there are any."""
    holding = rows.holding()
    has_score = not bool(np.isnan(rows.score[holding]).all())
    has_source = any(rows.sources[number] for number in np.unique(rows.source[holding]))
    for part in split_by_image(rows, holding)[: len(rows.images)]:  # without images there is one empty part
        listed = {name: part[rows.value[part] == sign] for name, sign in _LISTS.items()}
        record: dict[str, Any] = {name: [rows.classes[c] for c in rows.column[k]] for name, k in listed.items()}
        for name, k in listed.items():
            if has_score:
                record[f"{name}_score"] = [None if np.isnan(x) else shortest_float(x) for x in rows.score[k]]
            if has_source:
                record[f"{name}_source"] = [rows.sources[number] for number in rows.source[k]]
        yield record


def _entries(record: dict[str, Any], name: str, fail: _Fail) -> list[tuple[str, str, float]]:
    """(class, source, score) of one image's list; the parallel lists have the same length or are missing."""
    labels = record.get(name) or []
    if not isinstance(labels, list) or not all(isinstance(item, str) and item for item in labels):
        raise fail("this is not a list of class names", "write one, or []", name)
    parallel = {}
    for kind in ("source", "score"):
        column = f"{name}_{kind}"
        parallel[kind] = record.get(column) or [None] * len(labels)
        if not isinstance(parallel[kind], list) or len(parallel[kind]) != len(labels):
            message = f"this is not one {kind} for each of the {len(labels)} in {name!r}"
            raise fail(message, "make the lists the same length", column)
    try:
        scores = [math.nan if score is None else float(score) for score in parallel["score"]]
    except (TypeError, ValueError):
        raise fail("a score is not a number", "use numbers or null", f"{name}_score") from None
    if any(abs(score) > MAX_SCORE for score in scores):
        raise fail("this is not a score", "give it a number from 0 to 1", f"{name}_score")
    sources = ["" if source is None else str(source) for source in parallel["source"]]
    return list(zip(labels, sources, scores, strict=True))
