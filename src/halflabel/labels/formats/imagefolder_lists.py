"""Hugging Face ImageFolder with lists: metadata.jsonl with `file_name`, `labels` and `absent`.

One list of the classes that are there and one of those that are not, so that a thousand classes need no thousand
columns; scores and sources, where there are any, stand in lists beside them: `labels_score`, `labels_source`,
`absent_score` and `absent_source`. Lists without those are read by `imagefolder`.
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
from halflabel.labels.formats.imagefolder import IMAGE
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
    """A metadata.jsonl, or the folder it is in, whose lists have scores or sources beside them."""
    file = path / FILE if path.is_dir() else path
    try:
        line = first_line(file) if file.suffix == ".jsonl" and file.is_file() else ""
    except OSError:
        return False
    return f'"{IMAGE}"' in line and any(mark in line for mark in _MARKS)


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the lists with what stands beside them; what neither list names is unknown."""
    file = path / FILE if path.is_dir() else path
    if file.suffix != ".jsonl":
        raise LabelError("lists with scores are kept in .jsonl files", "add --format imagefolder", file)
    sheet = JsonLines(file, policy.encoding)
    for name in (IMAGE, *_LISTS):
        if name not in sheet.header:
            found = ", ".join(map(repr, sheet.header[:12]))
            raise sheet.error(f"there is no {name!r}; found: {found}", f"name the column {name!r}")
    images: dict[str, int] = {}
    classes: dict[str, int] = {}
    sources: dict[str, int] = {}
    rows: list[tuple[int, int, int, int, float]] = []
    for row, record in enumerate(sheet.records):
        title = record.get(IMAGE)
        if not isinstance(title, str) or not title:
            raise sheet.error("the image has no name", "fill it in", row=row, column=IMAGE)
        if title in images:
            raise sheet.error(f"image {title!r} occurs twice", "leave one line per image", row=row, column=IMAGE)
        image = images.setdefault(title, len(images))
        # Present goes last: it wins where an entry is in both lists.
        for name, sign in reversed(_LISTS.items()):
            for label, source, score in _entries(sheet, row, name):
                column = classes.setdefault(label, len(classes))
                rows.append((image, column, sign, sources.setdefault(source, len(sources)), score))
    if not classes:
        raise sheet.error("every list is empty, so there are no classes", "export the labels again")
    for texts, what in ((images, IMAGE), (classes, "labels"), (sources, "sources")):
        sheet._encode(list(texts), "a name", what)  # half a character is refused
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
    """Write metadata.jsonl into a folder, or the .jsonl file named: the last row of each (image, class).

    Classes come back in the order in which they first appear; a class of which nothing is known has no place.
    """
    if path.suffix not in ("", ".jsonl"):
        raise UserError(f"lists are not kept in {path.suffix} files", f"name a folder, or {FILE}")
    last = rows.holding()
    silent = np.bincount(rows.column[last], minlength=len(rows.classes)) == 0
    if silent.any():
        name = rows.classes[int(np.argmax(silent))]
        raise UserError(
            f"nothing is known of the class {name!r}, so no list names it", "write the format imagefolder, or long"
        )
    check_names(rows)
    has_score = not bool(np.isnan(rows.score[last]).all())
    has_source = any(rows.sources[number] for number in np.unique(rows.source[last]))
    parts = split_by_image(rows, last)
    file = path if path.suffix else path / FILE
    with atomic_write(file) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        for title, part in zip(rows.images, parts, strict=False):  # no image at all still splits into one part
            record: dict[str, Any] = {IMAGE: title}
            record |= {name: [rows.classes[c] for c in rows.column[_of(rows, part, name)]] for name in _LISTS}
            for name in _LISTS:
                at = _of(rows, part, name)
                if has_score:
                    record[f"{name}_score"] = [None if np.isnan(x) else shortest_float(x) for x in rows.score[at]]
                if has_source:
                    record[f"{name}_source"] = [rows.sources[number] for number in rows.source[at]]
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _of(rows: Rows, part: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = part[rows.value[part] == _LISTS[name]]
    return chosen


def _entries(sheet: JsonLines, row: int, name: str) -> list[tuple[str, str, float]]:
    """(class, source, score) of one image's list; lists beside it are as long as it, or not there."""
    record = sheet.records[row]
    labels = record.get(name) or []
    if not isinstance(labels, list) or not all(isinstance(item, str) and item for item in labels):
        raise sheet.error("this is not a list of names of classes", "write one, or []", row=row, column=name)
    beside = {}
    for what in ("source", "score"):
        column = f"{name}_{what}"
        beside[what] = record.get(column) or [None] * len(labels)
        if not isinstance(beside[what], list) or len(beside[what]) != len(labels):
            message = f"this is not one {what} for each of the {len(labels)} in {name!r}"
            raise sheet.error(message, "make the lists equally long", row=row, column=column)
    try:
        given = [math.nan if score is None else float(score) for score in beside["score"]]
    except (TypeError, ValueError):
        fix = "use numbers or null"
        raise sheet.error("a score is not a number", fix, row=row, column=f"{name}_score") from None
    scores = [read_score(score, sheet.path, f"{name}_score", sheet.line(row)) for score in given]
    sources = ["" if source is None else str(source) for source in beside["source"]]
    return list(zip(labels, sources, scores, strict=True))
