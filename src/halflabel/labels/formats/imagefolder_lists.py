"""Hugging Face ImageFolder with lists: metadata.jsonl with `file_name`, `labels` and `absent`.

One list of present classes and one of absent classes, so that a thousand classes do not need a thousand columns. Scores
and sources, if any, are in parallel lists: `labels_score`, `labels_source`, `absent_score` and `absent_source`. Files
without these are read by `imagefolder`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import first_line
from halflabel.labels.formats._json import JsonLines, read_score
from halflabel.labels.formats._unlisted import apply_unlisted_policy
from halflabel.labels.formats._write import check_names, shortest_float, split_by_image
from halflabel.labels.formats.imagefolder import IMAGE_COLUMN
from halflabel.labels.names import Names
from halflabel.labels.policy import Policy
from halflabel.labels.rows import Rows
from halflabel.system.files import atomic_write

__all__ = ["USES", "read", "sniff", "write"]

USES = ("encoding",)

FILE = "metadata.jsonl"

_LISTS = {"labels": 1, "absent": -1}
_MARKS = ('"labels_score"', '"labels_source"')


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
        raise LabelError("lists with scores are in .jsonl files", "add --format imagefolder", file)
    sheet = JsonLines(file, policy.encoding)
    for name in (IMAGE_COLUMN, *_LISTS):
        if name not in sheet.header:
            columns = ", ".join(map(repr, sheet.header[:12]))
            raise sheet.error(f"there is no {name!r}; found: {columns}", f"name the column {name!r}")
    images: dict[str, int] = {}
    classes: dict[str, int] = {}
    sources: dict[str, int] = {}
    rows: list[tuple[int, int, int, int, float]] = []
    for row, record in enumerate(sheet.records):
        image_name = record.get(IMAGE_COLUMN)
        if not isinstance(image_name, str) or not image_name:
            raise sheet.error("the image has no name", "fill it in", row=row, column=IMAGE_COLUMN)
        if image_name in images:
            raise sheet.error(
                f"image {image_name!r} occurs twice", "leave one line per image", row=row, column=IMAGE_COLUMN
            )
        image = images.setdefault(image_name, len(images))
        # Present comes last, so that it wins if a class is in both lists.
        for name, sign in reversed(_LISTS.items()):
            for label, source, score in _entries(sheet, row, name):
                column = classes.setdefault(label, len(classes))
                rows.append((image, column, sign, sources.setdefault(source, len(sources)), score))
    if not classes:
        raise sheet.error("every list is empty, so there are no classes", "export the labels again")
    for texts, what in ((images, IMAGE_COLUMN), (classes, "labels"), (sources, "sources")):
        sheet._encode(list(texts), "a name", what)  # raises for half a surrogate pair
    image_at, column_at, value, source_at, score_at = (np.array(part) for part in zip(*rows, strict=True))
    result = Rows.build(Names(images), Names(classes), image_at, column_at, value, source_at, score_at, list(sources))
    audit = Audit("imagefolder-lists", [str(file)])
    for name, sign in _LISTS.items():
        audit.add(f"in {name}", "present" if sign > 0 else "absent", int(np.count_nonzero(result.value == sign)))
    apply_unlisted_policy(result, policy, audit)
    if conflicts := result.count_conflicts():
        audit.note(f"{conflicts} entries are in both lists: present wins, both rows are kept")
    return LabelImport(result, audit)


def write(rows: Rows, path: Path) -> None:
    """Write metadata.jsonl into a folder, or the named .jsonl file: the last row of each (image, class).

    Classes are read back in order of first appearance; a class without known labels cannot be written.
    """
    if path.suffix not in ("", ".jsonl"):
        raise UserError(f"lists cannot be written to {path.suffix} files", f"name a folder, or {FILE}")
    holding = rows.holding()
    has_no_labels = np.bincount(rows.column[holding], minlength=len(rows.classes)) == 0
    if has_no_labels.any():
        name = rows.classes[int(np.argmax(has_no_labels))]
        raise UserError(
            f"the class {name!r} has no known labels, so it is in no list", "write the format imagefolder, or long"
        )
    check_names(rows)
    has_score = not bool(np.isnan(rows.score[holding]).all())
    has_source = any(rows.sources[number] for number in np.unique(rows.source[holding]))
    parts = split_by_image(rows, holding)
    file = path if path.suffix else path / FILE
    with atomic_write(file) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        for image_name, part in zip(rows.images, parts, strict=False):  # without images there is one empty part
            record: dict[str, Any] = {IMAGE_COLUMN: image_name}
            record |= {name: [rows.classes[c] for c in rows.column[_rows_of_list(rows, part, name)]] for name in _LISTS}
            for name in _LISTS:
                list_rows = _rows_of_list(rows, part, name)
                if has_score:
                    record[f"{name}_score"] = [
                        None if np.isnan(x) else shortest_float(x) for x in rows.score[list_rows]
                    ]
                if has_source:
                    record[f"{name}_source"] = [rows.sources[number] for number in rows.source[list_rows]]
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _rows_of_list(rows: Rows, part: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """The rows of one image that belong to a list."""
    chosen: NDArray[np.int64] = part[rows.value[part] == _LISTS[name]]
    return chosen


def _entries(sheet: JsonLines, row: int, name: str) -> list[tuple[str, str, float]]:
    """(class, source, score) of one image's list; the parallel lists have the same length or are missing."""
    record = sheet.records[row]
    labels = record.get(name) or []
    if not isinstance(labels, list) or not all(isinstance(item, str) and item for item in labels):
        raise sheet.error("this is not a list of class names", "write one, or []", row=row, column=name)
    parallel = {}
    for kind in ("source", "score"):
        column = f"{name}_{kind}"
        parallel[kind] = record.get(column) or [None] * len(labels)
        if not isinstance(parallel[kind], list) or len(parallel[kind]) != len(labels):
            message = f"this is not one {kind} for each of the {len(labels)} in {name!r}"
            raise sheet.error(message, "make the lists the same length", row=row, column=column)
    try:
        values = [math.nan if score is None else float(score) for score in parallel["score"]]
    except (TypeError, ValueError):
        fix = "use numbers or null"
        raise sheet.error("a score is not a number", fix, row=row, column=f"{name}_score") from None
    scores = [read_score(score, sheet.path, f"{name}_score", sheet.line(row)) for score in values]
    sources = ["" if source is None else str(source) for source in parallel["source"]]
    return list(zip(labels, sources, scores, strict=True))
