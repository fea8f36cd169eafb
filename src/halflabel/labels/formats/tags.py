"""Tags: a CSV file with one line per image and one column of lists, such as `a.jpg,"dog, cat"`.

A second column, `absent` or `negatives`, may list the absent classes. An empty cell means that nothing is listed; so do
nan, null and None beside lists in brackets.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import IMAGE_COLUMNS, csv_line
from halflabel.labels.formats._entries import IN_BOTH_LISTS, apply_unlisted_policy, require_unlisted
from halflabel.labels.formats._sheets import CsvTable, possible_values, refuse_values, write_ignored
from halflabel.labels.formats._write import keeps_no_provenance, split_by_image
from halflabel.labels.labels import Labels, is_model_source
from halflabel.labels.names import Names
from halflabel.labels.policy import MINUS_ONE, VALUE_WORDS, ZERO, Policy, shorten_cell
from halflabel.system.files import DuplicateKey, atomic_write, is_utf8, parse_json

USES = ("unlisted", "image_column", "tag_column", "ignore", "where", "separator", "encoding", "merge_names")
keeps_provenance = keeps_no_provenance

_ABSENT_NAMES = ("absent", "negatives")
LIST_COLUMNS = ("tags", "labels", "classes", "categories", "keywords", "hashtags", "keyword", "hashtag")
SINGULAR_NAMES = ("tag", "label", "class", "category", "class_name", "label_name")  # lists only with --format tags

# The names that --separator accepts, as regular expressions.
NAMED_SEPARATORS = {"none": "", "space": r"\s+", "newline": r"[\r\n]+", "tab": r"\t", "#": r"[\s,;|#]+"}

_HASHTAGS = r"^#[^\s#,;|]+([\s,;|]*#[^\s#,;|]+)*[\s,;|]*$"
OBJECTS = r"""^\[?\s*\{\s*"[^"]*"\s*:"""
_BRACKETS = r"""(?s)^(\[.*\]|\(\s*['"].*\)|\{\s*['"].*\})$"""  # lists, tuples and sets

# Marks of a tag that may deny it or doubt it, where the bare tag is a class too: -dog, not dog, dog?, dog=0.
_DENIAL = r"(?i)^(?:[-!~]|not?[ _])\s*|\s*\?$|\s*[:=]\s*-?\d*[.,]?\d+%?$"
_FOREIGN_SEPARATORS = "，、；،؛"

_SOURCE_NAMES = frozenset(("source", "annotator", "labeler", "labeller", "origin", "method"))
_MOST_CELLS = 5000  # that are looked at for blanks between tags

_AROUND_BRACKETS = r"^\s*\[|\]\s*$"

# One tag of a list in brackets and quotes, as Python and JSON write it.
_LIST_ITEM = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)

# Cells without a list, beside lists in brackets.
_NO_LIST = ("nan", "none", "null", "na", "n/a", "<na>")
_EMPTY = ("[]", "()", "{}", "set()")

# Cells with these values belong to a column per class, not to a list.
_VALUE_CELLS = frozenset((*VALUE_WORDS, *ZERO, *MINUS_ONE))


# Keys of the class in objects of JSON, the first of which counts; and those that say how sure a model is of it.
_NAME_KEYS = (
    *("label", "labels", "class", "classes", "classname", "class_name", "classtitle", "displayname", "tagname"),
    *("choices", "names", "name", "title", "categories", "category"),
)
_SCORE_KEYS = ("score", "confidence", "probability", "conf")


class Splitting(NamedTuple):
    """How cells are split: the separator and its description for the audit; or each cell is a list in brackets."""

    separator: str  # a regular expression; "": a cell is one tag
    description: str
    is_bracketed: bool = False
    is_json: bool = False


def sniff(path: Path) -> bool:
    """Never: `_layout.table_form` tells a table of tags from others by its columns."""
    return False


def read(path: Path, policy: Policy) -> LabelImport:
    """Read the lists: a tag is present, and repeats count once; `unlisted` must be stated."""
    sheet, audit = CsvTable(path, encoding=policy.encoding), Audit("tags", [str(path)])
    sheet.note_form(audit)
    image_column, lists = find_columns(sheet, policy)
    sheet.select(policy.where, audit)
    names = pc.utf8_trim_whitespace(sheet.column(image_column))
    if (blank := pc.index(names, pa.scalar("", names.type)).as_py()) >= 0:
        raise sheet.error("the image has no name", "fill it in, or remove the line", row=blank, column=image_column)
    coded = pc.dictionary_encode(names)
    images, image_of = Names(coded.dictionary), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    cells = {name: sheet.column(name) for name in lists}
    split = detect_splitting(pa.concat_arrays(list(cells.values())), policy)
    parts = {name: split_cells(column, split) for name, column in cells.items()}
    present = next(iter(lists))
    items = parts[present][0]
    is_vector = pc.match_substring_regex(items, r"^[01]([ /]+[01])+$")
    is_value = pc.is_in(pc.utf8_lower(items), value_set=pa.array(_VALUE_CELLS, items.type))
    # With the separator "none" the user says that each cell is a tag.
    if policy.separator != "none" and len(items) and pc.all(pc.or_(is_vector, is_value)).as_py():
        message = f"the cells are values, such as {shorten_cell(items[0].as_py())!r}, and not lists of tags"
        raise sheet.error(message, "add ‹format=wide›, where every column is a class", column=present)
    _refuse_signs(sheet, present, pc.unique(items))
    classes = Names(pc.unique(pa.concat_arrays([items for items, _ in parts.values()])))
    if not len(classes):
        raise sheet.error("every cell is empty, so there are no classes", "export the tags again", column=present)
    used = {image_column, *lists, *policy.ignore, *policy.where}
    unused = [name for name in sheet.header if name not in used]
    values = possible_values(sheet, unused)
    if len(lists) == 1 and policy.unlisted is None:
        counts = f"{len(images):,} images, {len(classes):,} classes, {len(parts[present][0]):,} present"
        names = ", ".join(map(repr, classes.array.slice(0, 4).to_pylist())) + ", …" * (len(classes) > 4)
        places = f"images in {image_column!r}, tags in {present!r} ({split.description}): {counts}: {names}"
        not_used = f". Not used: {', '.join(map(repr, unused[:8]))}" if unused else ""
        reason = f"{places}{not_used}. Nothing says absent" + (f" in {present!r}" if values else "")
        require_unlisted(policy, reason, path, also=write_ignored(values))

    audit.note(f"tags {split.description}")
    column = {name: classes.index(items) for name, (items, _) in parts.items()}
    if policy.merge_names:
        frequency = np.bincount(np.concatenate(list(column.values())), minlength=len(classes))
        kept, merged = np.unique(classes.merge_look_alikes(frequency), return_inverse=True)
        audit.note_count(len(classes) - len(kept), "spellings are read as the most frequent one")
        classes, column = classes.take(kept), {name: merged[numbers] for name, numbers in column.items()}

    def rows_of(is_part: NDArray[np.bool_] | None) -> Labels:
        parsed = {}
        for name, sign in lists.items():
            row = parts[name][1]
            kept = slice(None) if is_part is None else is_part[row]
            parsed[name] = sign, image_of[row[kept]], column[name][kept]
        return _rows_of_lists(images, classes, parsed, audit)

    by_model, is_open = _is_by_model(sheet, unused), _is_open(cells[present], split)
    if by_model is None:
        rows, by_model = rows_of(None), np.zeros(len(sheet), bool)
    else:
        audit.note_count(int(by_model.sum()), "lines are by a model, as a column says: their tags are a model's labels")
        rows = replace(rows_of(by_model), sources=("model",)).append(rows_of(~by_model))
    audit.note_count(int(is_open.sum()), "lines have no list, not even an empty one: nothing is known of them")
    by_people = np.bincount(image_of[~by_model & ~is_open], minlength=len(images)) > 0
    if empty := [name for name in rows.classes if name.lower() in _NO_LIST]:
        audit.note(f"the tag {empty[0]!r} is read as a class: leave the cell empty if nothing is listed")
    audit.note_count(len(sheet) - len(images), "lines repeat an image: their tags are merged")
    without_tags = int(np.count_nonzero(np.bincount(rows.image, minlength=len(images)) == 0))
    audit.note_count(without_tags, "images have no tags")
    rows = apply_unlisted_policy(rows, policy, audit, images=by_people)
    refuse_values(sheet, values)
    audit.note_names("columns not used", (name for name in sheet.header if name in {*unused, *policy.ignore}))
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write `image,tags,absent`, without sources and scores; classes are read back in order of first appearance."""
    holding = rows.holding()
    known = set(rows.column[holding].tolist())
    for number, name in enumerate(rows.classes):
        if number not in known:
            message = f"the class {name!r} has no known labels, so the file would not name it"
            raise UserError(message, "write ‹to=long› instead")
        is_denial = re.search(_DENIAL, name) is not None and re.sub(_DENIAL, "", name) in rows.classes
        is_split = re.search(rf"[,;|\r\n{_FOREIGN_SEPARATORS}]|^[#\[]", name) is not None
        if not name or name != name.strip() or is_denial or is_split:
            raise UserError(f"a list of tags cannot hold a class called {name!r}", "write ‹to=long› instead")
    for name in rows.images:
        if not name or name != name.strip():
            raise UserError(f"an image called {name!r} does not survive in a list of tags", "write ‹to=long› instead")
    tagged = {rows.classes[int(column)] for column in np.unique(rows.column[holding][rows.value[holding] > 0])}
    if not tagged or {name.lower() for name in tagged} <= _VALUE_CELLS:
        raise UserError("all present classes have names that look like values", "write ‹to=long› instead")
    lists = {
        name: tuple([rows.classes[c] for c in rows.column[part[rows.value[part] == v]]] for v in (1, -1))
        for name, part in zip(rows.images, split_by_image(rows, holding), strict=True)
    }
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write("image,tags,absent\n")
        for name, tags in lists.items():
            file.write(csv_line([name, *map(", ".join, tags)]))


def _rows_of_lists(
    images: Names, classes: Names, lists: Mapping[str, tuple[int, NDArray[np.int64], NDArray[np.int64]]], audit: Audit
) -> Labels:
    """The rows of lists of classes, the present ones first: name -> (+1 or −1, image and class of each item)."""
    signs, keys, repeats = [], [], 0
    for name, (sign, image, column) in lists.items():
        key = np.sort(image * len(classes) + column)  # faster than np.unique
        signs.append(sign)
        keys.append(key[np.diff(key, prepend=-1) > 0])
        repeats += len(key) - len(keys[-1])
        audit.add(f"in {name}", "present" if sign > 0 else "absent", len(keys[-1]))
    # Present comes last, so that it wins if a class is in both lists.
    key, value = np.concatenate(keys[::-1]), np.repeat(np.array(signs[::-1], np.int8), [len(key) for key in keys[::-1]])
    rows = Labels.build(images, classes, key // len(classes), key % len(classes), value)
    audit.note_count(repeats, "tags are repeated for the same image: counted once")
    audit.note_count(rows.count_conflicts(), IN_BOTH_LISTS)
    return rows


def find_columns(sheet: CsvTable, policy: Policy) -> tuple[str, dict[str, int]]:
    """The image column, and the list columns with their value: present (1), then perhaps absent (−1)."""
    sheet.check_columns(name for name in (*policy.ignore, policy.image_column, policy.tag_column) if name is not None)
    names = [name for name in sheet.header if name not in (*policy.ignore, *policy.where)]
    lower = {name.lower(): name for name in reversed(sheet.header)}
    image = policy.image_column or next((lower[name] for name in IMAGE_COLUMNS if name in lower), None)
    negative = [name for name in names if name.lower() in _ABSENT_NAMES and name != policy.image_column]
    choices = ((policy.tag_column.lower(),),) if policy.tag_column else (LIST_COLUMNS, SINGULAR_NAMES)
    named = ([each for each in names if each.lower() in usual and each != policy.image_column] for usual in choices)
    others = [name for name in names if name not in (*negative, image or names[0])]
    positive = next(filter(None, named), others)
    if len(positive) != 1 or len(negative) > 1 or len(sheet.header) < 2:
        found = ", ".join(map(repr, sheet.header[:12]))
        message = f"it is not clear which column lists the tags; found: {found}"
        raise sheet.error(message, "name it with ‹tag_column=COLUMN›", line=1)
    image = image or sheet.header[int(sheet.header[0] == positive[0])]
    return image, {positive[0]: 1, **dict.fromkeys(negative, -1)}


def detect_splitting(cells: pa.Array, policy: Policy) -> Splitting:
    """How to split these cells: as stated; else as hashtags or bracketed lists; else at the usual separator."""
    if policy.separator is not None:
        if not policy.separator:
            raise UserError("‹separator› is empty", "write ‹separator=space›, newline or none, or the character")
        separator = NAMED_SEPARATORS.get(policy.separator, re.escape(policy.separator))
        return Splitting(separator, f"split at {policy.separator!r}" if separator else "one per cell")
    distinct = pc.utf8_trim_whitespace(pc.unique(cells))
    distinct = distinct.filter(pc.not_equal(distinct, ""))

    def all_are(pattern: str) -> bool:
        return len(distinct) > 0 and bool(pc.all(pc.match_substring_regex(distinct, pattern)).as_py())

    if all_are(_HASHTAGS):
        return Splitting(NAMED_SEPARATORS["#"], "split at '#'")
    is_list = pc.match_substring_regex(distinct, _BRACKETS)
    if pc.any(pc.match_substring_regex(distinct, OBJECTS)).as_py():
        return Splitting("", "the names in objects of JSON", is_json=True)
    if pc.any(is_list).as_py():
        others = distinct.filter(
            pc.invert(pc.or_(is_list, pc.is_in(pc.utf8_lower(distinct), pa.array(_NO_LIST + _EMPTY))))
        )
        if not len(others):
            lists = distinct.filter(is_list)
            if pc.any(pc.match_substring_regex(lists, "['\"]")).as_py():
                return Splitting("", "lists in brackets and quotes", is_bracketed=True)
            inner = pc.replace_substring_regex(lists, _AROUND_BRACKETS, "")
            return _most_frequent_separator(inner)._replace(is_bracketed=True)
        examples = [shorten_cell(cells[0].as_py()) for cells in (distinct.filter(is_list), others)]
        raise UserError(
            f"some cells are lists in brackets, such as {examples[0]!r}, and others are not, such as {examples[1]!r}",
            "write all of them in one way, or add ‹separator›",
        )
    return _most_frequent_separator(distinct)


def _most_frequent_separator(cells: pa.Array) -> Splitting:
    """Split at the separator that occurs in most cells; not at all if two occur in equally many."""
    counts = {mark: pc.sum(pc.match_substring(cells, mark)).as_py() or 0 for mark in ",;|"}
    largest = max(counts.values())
    winners = [mark for mark, count in counts.items() if count == largest]
    if not largest:
        foreign = pc.match_substring_regex(cells, f"[{_FOREIGN_SEPARATORS}]")
        if pc.any(foreign).as_py():
            example = cells.filter(foreign)[0].as_py()
            mark = next(mark for mark in _FOREIGN_SEPARATORS if mark in example)
            message = f"{mark!r} in {shorten_cell(example)!r} may separate tags, or be part of a name"
            raise UserError(message, f"add ‹separator={mark}› or ‹separator=none›")
        if pc.any(pc.match_substring_regex(cells, r"[\r\n]")).as_py():
            return Splitting(NAMED_SEPARATORS["newline"], "split at line ends")
        texts = cells.slice(0, _MOST_CELLS).to_pylist()
        if (separate := separates(texts)) is None:
            example = next(text for text in texts if " " in text)
            message = f"the blanks in {shorten_cell(example)!r} may separate tags, or be part of a name"
            raise UserError(message, "add ‹separator=space› (several tags) or ‹separator=none› (one name)")
        description = "split at blanks" if separate else "one per cell: there is no separator"
        return Splitting(NAMED_SEPARATORS["space"] if separate else "", description)
    if len(winners) > 1:
        marks = " and ".join(map(repr, winners))
        return Splitting("", f"one per cell: {marks} are equally frequent; ‹separator› chooses one")
    others = " and ".join(repr(mark) for mark, count in counts.items() if count and mark != winners[0])
    description = f"split at {winners[0]!r}" + (f", and not at {others}" if others else "")
    return Splitting(re.escape(winners[0]), description)


def separates(cells: Sequence[str], separator: str = r"\s+") -> bool | None:
    """Whether a separator divides these distinct cells into tags, and is not part of names; None if it may be.

    In lists every word is in several cells, in cells of several lengths, and never twice in a cell.

    >>> separates(["traffic light", "stop sign", "dog"]), separates(["0 3", "0 2 3", "3", "2 3"])
    (False, True)
    >>> separates(["red car", "blue car", "red bus", "blue bus"])
    """
    lists = [[word for word in map(str.strip, re.split(separator, cell.strip())) if word] for cell in cells]
    several = [words for words in lists if len(words) > 1]
    count = Counter(word for words in lists for word in set(words))
    if not several or sum(len(set(words)) < len(words) for words in several) * 20 > len(several):
        return False
    shared = sum(all(count[word] > 1 for word in words) for words in several) / len(several)
    is_varied = len({len(words) for words in lists}) > 1
    least = 0.5 if all(map(str.isdecimal, count)) else 0.8
    if is_varied and shared > least and (least < 0.8 or 2 * len(count) <= len(cells)):
        return True
    return None if shared > 0.5 else False


def split_cells(cells: pa.Array, split: Splitting) -> tuple[pa.Array, NDArray[np.int64]]:
    """All tags of all cells, and the row of each."""
    if split.is_bracketed or split.is_json:
        coded = pc.dictionary_encode(cells)
        texts = coded.dictionary.to_pylist()
        lists = [_parse_json(cell) if split.is_json else _parse_list(cell, split.separator) for cell in texts]
        distinct = pa.array(lists, pa.list_(pa.string()))
        lists = distinct.take(coded.indices)
        return pc.list_flatten(lists), np.asarray(pc.list_parent_indices(lists), dtype=np.int64)
    if split.separator:
        lists = pc.split_pattern_regex(cells, split.separator)
        items, row = pc.list_flatten(lists), np.asarray(pc.list_parent_indices(lists), dtype=np.int64)
    else:
        items, row = cells, np.arange(len(cells))
    items = pc.utf8_trim_whitespace(items)
    is_tag = pc.not_equal(items, "")
    return items.filter(is_tag), row[is_tag.to_numpy(zero_copy_only=False)]


def _parse_list(cell: str, separator: str) -> list[str]:
    """The tags of a list in brackets: in quotes, with the escapes of JSON and Python, or bare with a separator.

    NumPy writes no commas, and dots for what it leaves out.

    >>> _parse_list("['dog' 'cat']", ""), _parse_list("[dog, cat]", ","), _parse_list("nan", ",")
    (['dog', 'cat'], ['dog', 'cat'], [])
    """
    text = cell.strip()
    if text[:1] not in ("[", "(", "{"):  # blank, or a word such as nan
        return []
    inner = text[1:-1]
    if separator and "..." not in inner:
        return [tag.strip() for tag in re.split(separator, inner) if tag.strip()]
    try:
        if _LIST_ITEM.sub("", inner).replace(",", "").strip():
            raise ValueError
        items = _LIST_ITEM.finditer(inner)
        tags = [str(json.loads(m[0], strict=False) if m[0][0] == '"' else ast.literal_eval(m[0])) for m in items]
        "".join(tags).encode()
    except (ValueError, SyntaxError):  # text outside of quotes, or invalid escapes
        raise UserError(f"{shorten_cell(cell)!r} is not a list of tags", "write it like ['dog', 'cat']") from None
    return [tag.strip() for tag in tags if tag.strip()]


def _parse_json(cell: str) -> list[str]:
    """The names of classes in a cell of JSON; a cell that is no JSON is one name.

    >>> _parse_json('[{"label": "dog", "x": 0.5}, {"rectanglelabels": ["cat"]}]'), _parse_json("dog")
    (['dog', 'cat'], ['dog'])
    """
    text = cell.strip()
    if text[:1] not in ("[", "{"):
        return [text] if text and text.lower() not in _NO_LIST + _EMPTY else []
    try:
        value = parse_json(text)
    except (ValueError, RecursionError, DuplicateKey):
        raise UserError(f"{shorten_cell(cell)!r} is not JSON", "write a list of names, or the name alone") from None
    return list(dict.fromkeys(name for each in _names_in(value) if (name := each.strip()) and is_utf8(name)))


def _names_in(value: Any) -> Iterator[str]:
    """The names that a value of JSON gives to classes, also deeper in it."""
    if isinstance(value, list):
        for item in value:
            yield from _names_in(item)
    elif isinstance(value, dict):
        lower = {key.lower(): item for key, item in value.items()}
        if any(isinstance(lower.get(key), float) and lower[key] not in (0, 1, 100) for key in _SCORE_KEYS):
            message = "the labels have scores, as those of a model have"
            raise UserError(message, "write a line per label: image,class,score")
        keys = [key for key in _NAME_KEYS if key in lower] or [key for key in lower if key.endswith("labels")]
        if not keys and len(lower) == 1:
            keys = list(lower)
        for item in [lower[keys[0]]] if keys else [item for item in lower.values() if isinstance(item, dict | list)]:
            yield from _names_in(item)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)


def _refuse_signs(sheet: CsvTable, name: str, tags: pa.Array) -> None:
    """Raise LabelError for tags that carry a number (dog:0.9), or a mark that may mean absent (-dog beside dog)."""
    carries_number = pc.match_substring_regex(tags, r"^.+[:=]\s*-?\d*[.,]?\d+%?$")
    if len(tags) and pc.all(carries_number).as_py():
        message = f"the tags carry numbers, such as {shorten_cell(tags[0].as_py())!r}"
        raise sheet.error(message, "write the names alone, or one row per label: image,class,value", column=name)
    marked = tags.filter(pc.match_substring_regex(tags, _DENIAL))
    denied = marked.filter(pc.is_in(pc.replace_substring_regex(marked, _DENIAL, ""), value_set=tags))
    if len(denied):
        message = f"the tag {shorten_cell(denied[0].as_py())!r} may mean that the class is absent, or not certain"
        raise sheet.error(message, "list the absent classes in a column 'absent'", column=name)


def _is_open(cells: pa.Array, split: Splitting) -> NDArray[np.bool_]:
    """Whether a cell has no list, in a file that writes the empty list where there is nothing: nobody looked."""
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(cells))
    writes_empty = split.is_json or pc.any(pc.is_in(texts, pa.array(_EMPTY, texts.type))).as_py()
    is_open = pc.is_in(texts, pa.array(("", *_NO_LIST), texts.type)).to_numpy(zero_copy_only=False)
    return np.asarray(is_open & ((split.is_json or split.is_bracketed) and writes_empty))


def _is_by_model(sheet: CsvTable, names: list[str]) -> NDArray[np.bool_] | None:
    """Whether one of the columns that are not used says that a model made the labels of a row; None if none does."""
    by_model = np.zeros(len(sheet), bool)
    for name in names:
        if not _SOURCE_NAMES.isdisjoint(re.findall("[a-z]+", name.lower())):
            coded = pc.dictionary_encode(sheet.column(name))
            is_model = np.array([is_model_source(source) for source in coded.dictionary.to_pylist()], bool)
            by_model |= is_model[coded.indices.to_numpy(zero_copy_only=False)]
    return by_model if by_model.any() else None
