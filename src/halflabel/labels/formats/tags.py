"""Tags: a CSV file with one line per image and one column of lists, such as `a.jpg,"dog, cat"`.

A second column, `absent` or `negatives`, may list the classes that are not there. What stands between two tags is found
out from the cells: a comma, a semicolon, a bar or a line end; hashtags (#dog #cat) and lists as Python and JSON write
them (['dog', 'cat']) are known by their marks. An image with an empty cell is one of which nothing is listed.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import CsvTable, csv_line, detect_delimiter, first_line, read_records
from halflabel.labels.formats._unlisted import apply_unlisted_policy, unlisted_not_stated
from halflabel.labels.formats._write import split_by_image
from halflabel.labels.formats.long import IMAGE_COLUMNS
from halflabel.labels.names import Names
from halflabel.labels.policy import MINUS_ONE, VALUE_WORDS, ZERO, Policy
from halflabel.labels.rows import Rows
from halflabel.system.files import atomic_write

__all__ = ["LISTS", "USES", "read", "sniff", "write"]

USES = ("unlisted", "image_column", "ignore", "where", "separator", "encoding")

_ABSENT = ("absent", "negatives")
LISTS = ("tags", "labels", "classes", "categories", "keywords", "hashtags", "keyword", "hashtag")
_SINGLE = ("tag", "label", "class", "category", "class_name", "label_name")  # lists only where the user says so

# What --separator may say besides the characters themselves, as regular expressions.
_STATED = {"none": "", "space": r"\s+", "newline": r"[\r\n]+", "tab": r"\t", "#": r"[\s,;|#]+"}

_HASHTAGS = r"^#[^\s#,;|]+([\s,;|]*#[^\s#,;|]+)*[\s,;|]*$"
_BRACKETS, _AROUND_BRACKETS = r"(?s)^\[.*\]$", r"^\s*\[|\]\s*$"
_QUOTED, _AROUND_QUOTED = r"""(?s)^\[\s*(['"].*['"])?\s*\]$""", r"""^\s*\[\s*['"]?|['"]?\s*\]\s*$"""

# A cell that says yes or no of one class, not which classes there are.
_VALUES = frozenset((*VALUE_WORDS, *ZERO, *MINUS_ONE))


class _Split(NamedTuple):
    """How cells are taken apart: where, how the audit calls it, and what is left out around the list first."""

    at: str  # a regular expression; blank: a cell is one tag
    told: str
    around: str = ""


def sniff(path: Path) -> bool:
    """A CSV file with one column called tags, labels, … whose cells are text, and no column of values beside it.

    A column of 1, 0 and blank is a class: with one the table is wide, even where another's name is "tags".
    """
    line = first_line(path)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt") or not any(name in line.lower() for name in LISTS):
        return False
    delimiter = detect_delimiter(line)
    try:
        header = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return False
    lists = [name for name in header if name.lower() in LISTS]
    if len(lists) != 1 or len(header) < 2 or "value" in map(str.lower, header):
        return False
    # Columns not yet known to hold text; the image's may hold anything.
    unclear = {at for at, name in enumerate(header) if name.lower() not in IMAGE_COLUMNS} - {
        _image_at(header, lists[0])
    }
    values: set[int] = set()
    rows = read_records(path, delimiter)
    try:
        next(rows, None)
        for _, record in rows:
            said = {at: record[at].strip().lower() for at in unclear if at < len(record)}
            values |= {at for at, word in said.items() if word}
            unclear -= {at for at, word in said.items() if word not in _VALUES}
            if not unclear:
                break
    except LabelError:  # to be told by the reader, with its place
        return True
    return header.index(lists[0]) not in unclear and not unclear & values


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the lists: a tag is present, once however often it stands there; `unlisted` must be stated."""
    sheet = CsvTable(path, encoding=policy.encoding)
    image_column, lists = _columns(sheet, policy)
    keep = sheet.filter(policy.where) if policy.where else np.arange(len(sheet))
    index = pa.array(keep)
    names = pc.utf8_trim_whitespace(sheet.column(image_column).take(index))
    nameless = pc.equal(names, "").to_numpy(zero_copy_only=False)
    if nameless.any():
        row = int(keep[np.argmax(nameless)])
        raise sheet.error("the image has no name", "fill it in, or remove the line", row=row, column=image_column)
    coded = pc.dictionary_encode(names)
    images, image_of = Names(coded.dictionary), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    cells = {name: sheet.column(name).take(index) for name in lists}
    split = _how(pa.concat_arrays(list(cells.values())), policy)
    parts = {name: _tags(column, split) for name, column in cells.items()}
    present = next(iter(lists))
    _refuse_values(sheet, present, parts[present][0])
    classes = Names(pc.unique(pa.concat_arrays([items for items, _ in parts.values()])))
    if not len(classes):
        raise sheet.error("every cell is empty, so there are no classes", "export the tags again", column=present)
    if len(lists) == 1 and policy.unlisted is None:
        message, fix = unlisted_not_stated(f"the tags ({split.told}) say present and nothing says absent")
        raise sheet.error(message, fix, column=present)

    audit = Audit("tags", [str(path)])
    audit.note(f"tags {split.told}")
    keys = {name: image_of[row] * len(classes) + classes.index(items) for name, (items, row) in parts.items()}
    once = {name: _distinct(key) for name, key in keys.items()}
    for name, sign in lists.items():
        audit.add(f"in {name}", "present" if sign > 0 else "absent", len(once[name]))
    # Present goes last: it wins where an entry is in both lists.
    key = np.concatenate([once[name] for name in reversed(lists)])
    value = np.repeat(np.array(list(reversed(lists.values())), np.int8), [len(once[name]) for name in reversed(lists)])
    rows = Rows.build(images, classes, key // len(classes), key % len(classes), value)
    _note(audit, sheet, rows, len(keep), sum(len(keys[name]) - len(once[name]) for name in lists))
    rows = apply_unlisted_policy(rows, policy, audit)
    known = {image_column, *lists, *policy.ignore, *policy.where}
    if unused := [name for name in sheet.header if name not in known]:
        audit.note(f"columns not used: {', '.join(unused)}")
    return LabelImport(rows, audit)


def write(rows: Rows, path: Path) -> None:
    """Write `image,tags,absent`, lists with commas: what neither list names is unknown.

    The last row of each (image, class) counts; sources and scores have no place in this form, and classes come back in
    the order in which they first appear.
    """
    last = rows.holding()
    silent = np.bincount(rows.column[last], minlength=len(rows.classes)) == 0
    if silent.any():
        name = rows.classes[int(np.argmax(silent))]
        raise UserError(f"nothing is known of the class {name!r}, so no list names it", "write --to long instead")
    for name in rows.classes:
        if not name or name != name.strip() or re.search(r"[,;|\r\n]|^[#\[]", name):
            raise UserError(f"a list of tags cannot hold a class called {name!r}", "write --to long instead")
    for name in rows.images:
        if not name or name != name.strip():
            raise UserError(f"an image called {name!r} does not survive in a list of tags", "write --to long instead")
    tagged = {rows.classes[int(column)] for column in np.unique(rows.column[last][rows.value[last] > 0])}
    if not tagged or {name.lower() for name in tagged} <= _VALUES:
        raise UserError("no class with a telling name is present anywhere", "write --to long instead")
    parts = split_by_image(rows, last)
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write("image,tags,absent\n")
        for title, part in zip(rows.images, parts, strict=True):
            lists = (", ".join(rows.classes[c] for c in rows.column[part[rows.value[part] == v]]) for v in (1, -1))
            file.write(csv_line([title, *lists]))


def _image_at(header: list[str], lists: str) -> int:
    """The column with a usual name for images, the most telling first; else the first that is not the list."""
    lower = [name.lower() for name in header]
    found = next((lower.index(name) for name in IMAGE_COLUMNS if name in lower), None)
    return found if found is not None else int(header[0] == lists)


def _columns(sheet: CsvTable, policy: Policy) -> tuple[str, dict[str, int]]:
    """The column of images, and the lists with what they say: present first, then perhaps absent."""
    for name in (*policy.ignore, *((policy.image_column,) if policy.image_column else ())):
        sheet.column(name)  # raises, when the user names a column that is not there
    free = [name for name in sheet.header if name not in (*policy.ignore, *policy.where, policy.image_column)]
    negative = [name for name in free if name.lower() in _ABSENT]
    for usual in (LISTS, _SINGLE):
        if positive := [name for name in free if name.lower() in usual]:
            break
    else:
        images = () if policy.image_column or not free else (free[_image_at(free, "")],)
        positive = [name for name in free if name not in (*negative, *images)]
    if len(positive) != 1 or len(negative) > 1 or len(sheet.header) < 2:
        found = ", ".join(map(repr, sheet.header[:12]))
        raise sheet.error(
            f"it is not clear which column lists the tags; found: {found}",
            "call it 'tags', or add --ignore COLUMN for every column that is no list",
            line=1,
        )
    image_column = policy.image_column or sheet.header[_image_at(sheet.header, positive[0])]
    return image_column, {positive[0]: 1, **dict.fromkeys(negative, -1)}


def _how(cells: pa.Array, policy: Policy) -> _Split:
    """How these cells are taken apart: as stated; else by their marks; else at the separator in most of them."""
    if policy.separator is not None:
        if not policy.separator:
            raise UserError("--separator says nothing", "write --separator space, newline or none, or the character")
        at = _STATED.get(policy.separator, re.escape(policy.separator))
        return _Split(at, f"split at {policy.separator!r}" if at else "one per cell")
    distinct = pc.utf8_trim_whitespace(pc.unique(cells))
    distinct = distinct.filter(pc.not_equal(distinct, ""))

    def all_are(pattern: str) -> bool:
        return len(distinct) > 0 and bool(pc.all(pc.match_substring_regex(distinct, pattern)).as_py())

    if all_are(_HASHTAGS):
        return _Split(_STATED["#"], "split at '#'")
    if all_are(_QUOTED):
        return _Split(r"""['"]\s*,\s*['"]""", "lists in brackets and quotes", _AROUND_QUOTED)
    brackets = all_are(_BRACKETS)
    inner = pc.replace_substring_regex(distinct, _AROUND_BRACKETS, "") if brackets else distinct
    return _most_frequent(inner, _AROUND_BRACKETS if brackets else "")


def _most_frequent(cells: pa.Array, around: str) -> _Split:
    """The separator that is in most of the cells; none where two are in equally many."""
    found = {mark: pc.sum(pc.match_substring(cells, mark)).as_py() or 0 for mark in ",;|"}
    most = max(found.values())
    first = [mark for mark, count in found.items() if count == most]
    if not most:
        lines = bool(pc.any(pc.match_substring_regex(cells, r"[\r\n]")).as_py())
        told = "split at line ends" if lines else "one per cell: no separator is there"
        return _Split(_STATED["newline"] if lines else "", told, around)
    if len(first) > 1:
        marks = " and ".join(map(repr, first))
        return _Split(
            "", f"one per cell: {marks} are there equally often, and --separator says which to split at", around
        )
    others = " and ".join(repr(mark) for mark, count in found.items() if count and mark != first[0])
    told = f"split at {first[0]!r}" + (f", and not at {others}" if others else "")
    return _Split(re.escape(first[0]), told, around)


def _tags(cells: pa.Array, split: _Split) -> tuple[pa.Array, NDArray[np.int64]]:
    """All tags of all cells, and the row of each."""
    if split.around:
        cells = pc.replace_substring_regex(cells, split.around, "")
    if split.at:
        lists = pc.split_pattern_regex(cells, split.at)
        items, row = pc.list_flatten(lists), np.asarray(pc.list_parent_indices(lists), dtype=np.int64)
    else:
        items, row = cells, np.arange(len(cells))
    items = pc.utf8_trim_whitespace(items)
    named = pc.not_equal(items, "")
    return items.filter(named), row[named.to_numpy(zero_copy_only=False)]


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each number once, ascending: by sorting, which for millions is several times faster than np.unique's hashing."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) > 0]


def _refuse_values(sheet: CsvTable, name: str, items: pa.Array) -> None:
    if len(items) and set(pc.unique(pc.utf8_lower(items)).to_pylist()) <= _VALUES:
        message = f"the cells are values, such as {items[0].as_py()!r}, and not lists of tags"
        raise sheet.error(message, "add --format wide, where every column is a class", column=name)


def _note(audit: Audit, sheet: CsvTable, rows: Rows, lines: int, again: int) -> None:
    """What a person should see: rows left out, lines put together, tags said twice, contradictions, odd classes."""
    if lines < len(sheet):
        audit.note(f"{len(sheet) - lines} of {len(sheet)} rows left out by --where")
    if lines > len(rows.images):
        audit.note(f"{lines - len(rows.images)} lines are of an image named before: their tags are put together")
    if again:
        audit.note(f"{again} tags were said before of the same image: counted once")
    if conflicts := rows.count_conflicts():
        audit.note(f"{conflicts} entries are in both lists: present wins, both rows are kept")
    if empty := int(np.count_nonzero(np.bincount(rows.image, minlength=len(rows.images)) == 0)):
        audit.note(f"nothing is listed for {empty} images")
    if same := len(rows.classes) - pc.count_distinct(pc.utf8_lower(rows.classes.array)).as_py():
        audit.note(f"{same} classes differ from another by capital letters only")
