"""Labels are added to a copy of the user's own table: a line that gains nothing keeps its bytes, nothing is removed."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from halflabel.errors import LabelError, UserError
from halflabel.labels import formats
from halflabel.labels.formats import long, tags, wide
from halflabel.labels.formats._csv import raw_records
from halflabel.labels.formats._layout import table_form
from halflabel.labels.formats._sheets import CsvTable
from halflabel.labels.formats._unpack import unpack
from halflabel.labels.formats._workbook import is_workbook, write_changes
from halflabel.labels.formats._write import check_provenance, drop_uncertain
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Meaning, Policy, UndecidedValue, combine_stated, forget_stated, read_value
from halflabel.labels.table import Table
from halflabel.system.files import atomic_write
from halflabel.system.format import counted

_MARK = re.compile(r"[,;|\r\n]")
_Lists = dict[str, dict[str, int]]  # image -> class -> +1 or −1
_Change = Callable[[str, dict[str, str]], dict[str, str]]


@dataclass
class Added:
    labels: int = 0
    kept: int = 0  # labels of the table that contradict those to add
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> labels

    def lines(self) -> list[str]:
        """For the user, one sentence per line."""
        kept = f"{counted(self.kept, 'label')} of the table contradict the new ones and stay" if self.kept else ""
        reasons = (f"{counted(count, 'label')} left out: {reason}" for reason, count in self.left_out.items())
        return [f"{counted(self.labels, 'label')} added", *filter(None, (kept, *reasons))]


def add_to_table(
    labels: Labels | Table, source: Path, path: Path, *, without_sources: bool = False, without_uncertain: bool = False
) -> Added:
    """Write a copy of a table of tags, with a column per class or with a row per label, with the labels that it lacks.

    Rows, columns, order, encoding, line ends and separators stay, and in a workbook all but these cells. Other images
    are added at the end. Sources, scores and uncertain labels raise UserError unless their loss is accepted.
    """
    if path.exists() and path.samefile(source):
        raise UserError(f"{path} is the table itself", "name another file: to undo, remove that one")
    stated = combine_stated(source, {})
    kind = stated.pop("format", None) or formats.detect_format(source)
    kind = table_form(source, stated.get("encoding")) if kind == "wide" and "encoding" in stated else kind
    if kind in ("long", "wide") and "tag_column" in stated:
        kind = "tags"
    add = {"tags": _add_tags, "wide": _add_cells, "long": _add_rows}.get(kind)
    if add is None or source.suffix.lower() in (".parquet", ".json", ".jsonl", ".ndjson"):
        fix = "name a CSV file of tags, with a column per class, or with a row per label"
        raise UserError(f"{source} is no table that labels can be added to ({kind})", fix)
    rows = drop_uncertain(Labels.of(labels), kind, accepted=without_uncertain)
    if not without_sources:
        check_provenance(rows, np.zeros(len(rows), bool), kind)
    policy = Policy(**stated)
    table, split = source, policy.split
    if is_workbook(source):
        if path.suffix.lower() != source.suffix.lower():
            raise UserError(f"{path.name} would be a workbook, as {source.name}", f"let it end in {source.suffix}")
        table, policy = unpack(source, split).path, replace(policy, split=None)
    if kind == "long":
        long.read(table, replace(policy, unlisted=policy.unlisted or "unknown"))  # asks what the table leaves open
        policy = replace(policy, minus_one=policy.minus_one or "absent", zero=policy.zero or "unknown")
    copy = _Copy(CsvTable(table, encoding=policy.encoding), policy, table.read_bytes())
    known = rows.training
    wanted: _Lists = defaultdict(dict)
    for image, column, value in zip(*known.entries(), strict=True):
        wanted[known.images[image]][known.classes[column]] = int(value)
    result = Added()
    text = "".join(add(copy, wanted, result))
    if table != source:
        new = raw_records(text, copy.sheet.delimiter)
        write_changes(source, split, [fields for _, fields in copy.records()], [fields for _, fields in new], path)
    else:
        with atomic_write(path) as temporary:
            temporary.write_bytes(text.encode(copy.encoding))
    forget_stated(path)
    return result


@dataclass
class _Copy:
    """The records of a table as they are written in its file."""

    sheet: CsvTable
    policy: Policy
    data: bytes

    @cached_property
    def encoding(self) -> str:
        """That of the file; with byte order, so that its mark is a character of the text."""
        name = self.sheet.encoding
        order = {b"\xff": "-le", b"\xfe": "-be"}.get(self.data[:1], "")
        return name + order if name in ("utf-16", "utf-32") else name

    def records(self) -> Iterator[tuple[str, list[str]]]:
        return raw_records(self.data.decode(self.encoding), self.sheet.delimiter)

    def rewritten(self, image_column: str, wanted: _Lists, change: _Change) -> Iterator[str]:
        """The text of all records, changed by `change`, and one for each other image that gains a label."""
        header: list[str] = []
        raw = ""
        for raw, fields in self.records():
            names = [name.strip().lstrip("\ufeff") for name in fields[: len(self.sheet.header)]]
            is_above = not header and names != self.sheet.header
            if not fields or is_above:
                yield raw
            elif not header:
                header = self.sheet.header
                yield raw if raw.endswith(("\n", "\r")) else raw + "\n"
            else:
                cells = dict(zip(header, fields, strict=False))
                new = change(cells[image_column].strip(), cells)
                changed = [*(new.get(name, cell) for name, cell in cells.items()), *fields[len(cells) :]]
                yield self.line(changed, raw) if new else raw
        added = [{image_column: name, **cells} for name in list(wanted) if (cells := change(name, {}))]
        yield from self.new_lines(added, raw)

    def new_lines(self, added: list[dict[str, str]], last: str) -> Iterator[str]:
        """Lines after the `last` one, from their cells by column."""
        if added and not last.endswith(("\n", "\r")):
            yield self.line_end
        for cells in added:
            yield self.line([cells.get(name, "") for name in self.sheet.header])

    def line(self, fields: list[str], like: str = "") -> str:
        end = like[len(like.rstrip("\r\n")) :] if like else self.line_end
        are_all_quoted = like.startswith('"') and like.count('"') >= 2 * len(fields)
        quoting: Literal[0, 1] = csv.QUOTE_ALL if are_all_quoted else csv.QUOTE_MINIMAL
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self.sheet.delimiter, lineterminator=end, quoting=quoting).writerow(fields)
        return text.getvalue()

    @cached_property
    def line_end(self) -> str:
        first = next(self.records())[0]
        return first[len(first.rstrip("\r\n")) :] or "\n"

    def meaning(self, raw: str, all_values: frozenset[str]) -> Meaning:
        try:
            return read_value(raw, self.policy, all_values)
        except UndecidedValue as undecided:
            fix = f"{undecided.fix}, to halflabel inspect {self.sheet.path}: later commands know it then"
            raise LabelError(undecided.message, fix, self.sheet.path) from None

    def words(self, columns: Iterable[str]) -> dict[str, dict[int, str]]:
        """How each column writes present (1) and absent (−1): its own most frequent words, else those of the others."""
        counts: dict[str, Counter[tuple[int, str]]] = {}
        for name in columns:
            cells = Counter(self.sheet.column(name).to_pylist())
            meanings = {raw: self.meaning(raw, frozenset(cells)) for raw in cells}
            signs = {"present": 1, "absent": -1}
            known = {raw: signs[meaning] for raw, meaning in meanings.items() if meaning in signs}
            counts[name] = Counter({(sign, raw): cells[raw] for raw, sign in known.items()})
        together: Counter[tuple[int, str]] = sum(counts.values(), Counter())
        usual = {1: "1", -1: "-1" if self.policy.zero == "unknown" else "0"}
        result = {}
        for name, own in counts.items():
            result[name] = {
                sign: next((raw for each in (own, together) for (s, raw), _ in each.most_common() if s == sign), word)
                for sign, word in usual.items()
            }
        return result


class _Spelling:
    """How the table spells the classes to add: as they are, or the only class that differs in capitals alone."""

    def __init__(self, names: Iterable[str], wanted: _Lists) -> None:
        self.here, classes = dict.fromkeys(names), {label for labels in wanted.values() for label in labels}
        self.own, alike = Counter(map(_fold, classes)), Counter(map(_fold, self.here))
        self.only = {_fold(name): name for name in self.here if alike[_fold(name)] == self.own[_fold(name)] == 1}

    def __call__(self, name: str, line: Iterable[str] = ()) -> str:
        """`line` holds the classes on the line of the image: one of them may be another spelling of the name."""
        if name in line or self.own[_fold(name)] > 1:
            return name
        of_line = next((each for each in line if _fold(each) == _fold(name)), None)
        return of_line or (name if name in self.here else self.only.get(_fold(name), name))


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _add_tags(copy: _Copy, wanted: _Lists, result: Added) -> Iterator[str]:
    image_column, columns = tags.find_columns(copy.sheet, copy.policy)
    cells = pa.concat_arrays([copy.sheet.column(name) for name in columns])
    split = tags.detect_splitting(cells, copy.policy)
    written = [cell for cell in cells.to_pylist() if cell.strip()]
    if not (split.separator or split.is_bracketed or copy.policy.separator or any(map(_MARK.search, written))):
        split = tags.Splitting(re.escape(","), "")  # one tag per cell until now
    style = _ListStyle(split, written)
    spelled = _Spelling(tags.split_cells(cells, split)[0].to_pylist(), wanted)
    merged: _Lists = {}  # what each image has in all of its lines
    for name, sign in columns.items():
        pairs = (copy.sheet.column(each).to_pylist() for each in (image_column, name))
        for image, cell in zip(*pairs, strict=True):
            merged.setdefault(image.strip(), {}).update(dict.fromkeys(style.tags(cell), sign))

    def change(image: str, line: dict[str, str]) -> dict[str, str]:
        new: dict[str, str] = {}
        for label, sign in wanted.pop(image, {}).items():
            name = spelled(label, merged.get(image, ()))
            column = next((column for column, each in columns.items() if each == sign), None)
            here = merged.get(image, {}).get(name)
            if here is not None:
                result.kept += here != sign
            elif column is None:
                result.left_out["the table has no column of absent classes"] += 1
            else:
                new[column] = style.add(new.get(column, line.get(column, "")), name)
                result.labels += 1
        return new

    return copy.rewritten(image_column, wanted, change)


def _add_cells(copy: _Copy, wanted: _Lists, result: Added) -> Iterator[str]:
    policy = copy.policy
    image_column = policy.image_column or wide.find_image_column(copy.sheet.header)
    columns = [name for name in copy.sheet.header if name not in {image_column, *policy.ignore, *policy.where}]
    spelled = _Spelling(columns, wanted)
    wanted_columns = {spelled(label) for labels in wanted.values() for label in labels}
    classes = [name for name in columns if name in wanted_columns]
    words = copy.words(classes)
    all_values = frozenset(raw for name in classes for raw in copy.sheet.column(name).to_pylist())

    def change(image: str, line: dict[str, str]) -> dict[str, str]:
        new: dict[str, str] = {}
        for label, sign in wanted.pop(image, {}).items():
            name = spelled(label)
            if name not in words:
                result.left_out["the table has no column of their class"] += 1
                continue
            meaning = copy.meaning(line.get(name, ""), all_values)
            if meaning == "unknown" and not line.get(name, "").strip():
                new[name] = words[name][sign]
                result.labels += 1
            else:
                result.kept += meaning != {1: "present", -1: "absent"}[sign]
        return new

    return copy.rewritten(image_column, wanted, change)


def _add_rows(copy: _Copy, wanted: _Lists, result: Added) -> Iterator[str]:
    sheet = copy.sheet
    roles = long.find_roles(sheet.header, copy.policy.image_column)
    words = copy.words([roles["value"]])[roles["value"]] if "value" in roles else {1: ""}
    images, classes = (sheet.column(roles[role]).to_pylist() for role in ("image", "class"))
    spelled = _Spelling((name.strip() for name in classes), wanted)
    known: dict[tuple[str, str], str] = {}
    values = sheet.column(roles["value"]).to_pylist() if "value" in roles else [None] * len(sheet)
    for image, label, raw in zip(images, classes, values, strict=True):
        known[image.strip(), label.strip()] = "present" if raw is None else raw
    lines, new = [raw for raw, _ in copy.records()], []
    for image, labels in wanted.items():
        for label, sign in labels.items():
            name = spelled(label)
            raw = known.get((image, name), "")
            if raw.strip():
                result.kept += copy.meaning(raw, frozenset(known.values())) != {1: "present", -1: "absent"}[sign]
            elif sign not in words:
                result.left_out["the table has no column of values, so it cannot say absent"] += 1
            else:
                cells = {roles["image"]: image, roles["class"]: name}
                new.append({**cells, roles["value"]: words[sign]} if "value" in roles else cells)
                result.labels += 1
    return chain(lines, copy.new_lines(new, lines[-1]))


@dataclass
class _ListStyle:
    """How a table writes its lists of tags."""

    split: tags.Splitting
    cells: list[str]  # that are not blank

    def tags(self, cell: str) -> list[str]:
        return [str(tag) for tag in tags.split_cells(pa.array([cell]), self.split)[0].to_pylist()]

    def add(self, cell: str, tag: str) -> str:
        """The cell with one more tag; UserError if it would be read back otherwise."""
        text = cell.strip()
        if self.split.is_bracketed:
            is_list = text[:1] in ("[", "(", "{")
            inner, ends = (text[1:-1].strip(), text[0] + text[-1]) if is_list else ("", "[]")
            written = f"{ends[0]}{inner}{self.mark if inner else ''}{self.quoted(tag)}{ends[1]}"
        else:
            hash = "#" if self.split.separator == tags.NAMED_SEPARATORS["#"] else ""
            written = f"{text}{self.mark}{hash}{tag}" if text else hash + tag
        if self.tags(written) != [*self.tags(cell), tag]:
            raise UserError(f"the lists of this table cannot hold a class called {tag!r}", "rename the class")
        return written

    @cached_property
    def mark(self) -> str:
        """What is between two tags, as most cells have it."""
        if self.split.separator == tags.NAMED_SEPARATORS["#"]:
            return " "
        pattern = r",\s*" if self.split.is_bracketed and not self.split.separator else self.split.separator
        written = (re.findall(rf"\s*(?:{pattern})\s*", cell) for cell in self.cells if pattern)
        found = Counter(mark for marks in written for mark in marks)
        fitting = (mark for mark in (", ", "; ", "|", " ") if re.fullmatch(rf"\s*(?:{pattern})\s*", mark))
        return found.most_common(1)[0][0] if found else next(fitting, ", ")

    def quoted(self, tag: str) -> str:
        single, double = (sum(cell.count(mark) for cell in self.cells) for mark in "'\"")
        if single == double == 0:
            return tag
        return repr(tag) if single > double else json.dumps(tag, ensure_ascii=False)
