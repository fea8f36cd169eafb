"""Wide CSV: one line per image, one column per class, one value per cell; imagefolder decodes such columns too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import IMAGE_COLUMNS, csv_line, first_line
from halflabel.labels.formats._sheets import CsvTable
from halflabel.labels.formats._write import keeps_no_provenance, table_lines
from halflabel.labels.formats.long import has_values
from halflabel.labels.formats.open_images import REQUIRED_COLUMNS
from halflabel.labels.formats.tags import LIST_COLUMNS
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import (
    LABEL_VALUES,
    MINUS_ONE,
    ONE,
    VALUE_WORDS,
    ZERO,
    Meaning,
    Policy,
    UndecidedValue,
    read_value,
    shorten_cell,
)
from halflabel.system.files import atomic_write

HOLDS_UNCERTAIN = True
USES = ("minus_one", "zero", "values", "image_column", "ignore", "where", "encoding", "repeats")
keeps_provenance = keeps_no_provenance

# The only column with labels, of this name and with 0 and 1, may hold numbers of classes.
CLASS_NUMBER_COLUMNS = ("label", "class", "category", "target", "y", "label_id", "class_id", "category_id", "classes")

_MOST_PROBLEMS = 8  # named in a message
_MOST_ODD_VALUES = 2  # values of a class that are not labels; a column with more of them is not a class
_MOST_COUNTS = 50
_LONG = "write the long form instead (‹to=long›)"


def sniff(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv", ".txt") and any(d in first_line(path) for d in ",;\t|")


def read(path: Path, policy: Policy) -> LabelImport:
    """Read a wide table: blank, NaN and ? are unknown, 1 present, 0 absent; −1 must be stated."""
    sheet, audit = CsvTable(path, encoding=policy.encoding), Audit("wide", [str(path)])
    sheet.note_form(audit)
    image_column = policy.image_column or find_image_column(sheet.header)
    sheet.select(policy.where, audit)
    sheet.check_columns((image_column, *policy.ignore))
    not_classes = {image_column, *policy.ignore, *policy.where}
    classes = [name for name in sheet.header if name not in not_classes]
    if not classes:
        raise sheet.error("no column is left for the classes", "check the header line", line=1)
    rows = decode_columns(sheet, image_column, classes, policy, audit)
    audit.note_names("columns ignored", policy.ignore)
    return LabelImport(rows, audit)


def write(rows: Labels, path: Path) -> None:
    """Write 1, 0, uncertain or blank per cell; sources and scores are not written."""
    table = rows.training
    for name in table.classes:
        if name == "image" or name != name.strip() or not name:
            raise UserError(f"a wide table cannot have a class called {name!r} in its header", _LONG)
    header = ["image", *table.classes]
    if has_values(header) or set(REQUIRED_COLUMNS) <= set(header):
        form = "long" if has_values(header) else "open-images"
        raise UserError(f"with these classes a wide table would be read as {form}: {', '.join(header[:9])}", _LONG)
    if len(table.classes) == 1 and header[1].lower() in CLASS_NUMBER_COLUMNS:
        raise UserError(f"a wide table cannot have {header[1]!r} as its only class", _LONG)
    if "" in table.images:
        raise UserError("an image has no name", "give every image a name")
    with atomic_write(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        file.write(csv_line(header))
        for name, cells in table_lines(table, ("0", "", "1", "uncertain")):
            # Cells are not passed to csv_line: there are many, and none of the values needs quotes.
            file.write(csv_line([name])[:-1] + "," + ",".join(cells) + "\n")


def decode_columns(sheet: CsvTable, image_column: str, classes: Sequence[str], policy: Policy, audit: Audit) -> Labels:
    """Turn a column per class into labels, and add the meaning of each value to the audit, the most frequent first."""
    images, image_of = sheet.repeated_names(image_column)

    def make_error(undecided: UndecidedValue, name: str, raw: str, row: int) -> LabelError:
        fix = undecided.fix
        if "not a label" in undecided.message:
            others = {each.strip().lower() for each in coded[name].dictionary.to_pylist()} - {raw.strip().lower(), ""}
            is_value = bool(others & {*VALUE_WORDS, *ZERO, *MINUS_ONE}) or not others
            fix = fix if is_value and fix.startswith("add ") else "add "
            offers = [f"‹ignore={name}› (if it is not a class)"]
            if shorten_cell(raw) == raw and audit.format == "wide":  # other formats do not select rows
                offers.append(f"‹where={name}={raw}› (only these rows)")
            if audit.format == "wide" and (name.lower() in LIST_COLUMNS or len(classes) == 1):
                offers.append("‹format=tags› (if it lists the present classes)")
            fix += (" or " if len(fix) > 4 else "") + " or ".join(offers)
        return sheet.error(undecided.message, fix, row=row, column=name)

    coded = {name: pc.dictionary_encode(sheet.column(name)) for name in classes}
    all_values = frozenset(raw for column in coded.values() for raw in column.dictionary.to_pylist())
    are_numbers = {*ZERO} & all_values and {raw.strip() for raw in all_values} <= {*ZERO, *ONE, ""}
    only = next(iter(coded)) if len(coded) == 1 else ""
    is_number_column = only.lower() in CLASS_NUMBER_COLUMNS or (bool(only) and not sheet.has_header)
    if are_numbers and is_number_column and policy.zero is None:
        fix = f"add ‹zero=absent› (1 says present) or ‹tag_column={only}› ‹separator=none› (two classes, 0 and 1)"
        if audit.format != "wide":
            fix = f"name the column after the class that 1 means, or add ‹zero=absent› if the class is called {only!r}"
        undecided = UndecidedValue("0 and 1 may be the numbers of two classes, or say absent and present", fix)
        raise make_error(undecided, only, "0", 0)
    labels = np.zeros((len(image_of), len(coded)), np.int8)
    counts: Counter[tuple[str, Meaning]] = Counter()
    for number, (name, cells) in enumerate(coded.items()):
        codes = cells.indices.to_numpy(zero_copy_only=False)
        raws = cells.dictionary.to_pylist()
        value_of = np.zeros(len(raws), np.int8)
        for code, (raw, count) in enumerate(zip(raws, np.bincount(codes, minlength=len(raws)), strict=True)):
            try:
                meaning = read_value(raw, policy, all_values)
            except UndecidedValue as undecided:
                error = make_error(undecided, name, raw, int(np.argmax(codes == code)))
                distinct = {each: values.dictionary.to_pylist() for each, values in coded.items()}
                problems, options = _open_questions(distinct, policy)
                if len(problems) > 1:
                    shown = "; ".join(problems[:_MOST_PROBLEMS]) + (" …" if len(problems) > _MOST_PROBLEMS else "")
                    error.message += f"; in all, {len(problems)} things must be stated: {shown}"
                    error.fix = f"add {' '.join(options)} (or what is true of your file)"
                raise error from None
            value_of[code] = LABEL_VALUES[meaning]
            counts[raw.strip(), meaning] += int(count)
        labels[:, number] = value_of[codes]
    for (raw, meaning), count in sorted(counts.items(), key=lambda item: -item[1]):
        audit.add(raw or "blank", meaning, count)
    labels = _merge_lines(sheet, image_column, labels, image_of, policy, audit)
    image, column = np.nonzero(labels)
    return Labels.build(images, Names(coded), image, column, labels[image, column])


def _merge_lines(
    sheet: CsvTable,
    image_column: str,
    labels: NDArray[np.int8],
    image_of: NDArray[np.int64],
    policy: Policy,
    audit: Audit,
) -> NDArray[np.int8]:
    """The labels of each image; LabelError if lines of one image differ and `repeats` is not stated."""
    if not len(labels) or image_of[-1] == len(labels) - 1:  # images are numbered by first appearance: all differ
        return labels
    order = np.argsort(image_of, kind="stable")
    first = np.flatnonzero(np.diff(image_of[order], prepend=-1))
    lines, of_image = labels[order], image_of[order]
    differs = (lines[1:] != lines[:-1]).any(axis=1) & (of_image[1:] == of_image[:-1])
    same = "" if differs.any() else ", with the same labels: they count once"
    audit.note_count(len(labels) - len(first), f"lines repeat an image{same}")
    last = lines[np.append(first[1:], len(order)) - 1]
    if differs.any() and policy.repeats is None:
        position = int(np.argmax(differs))
        row, before = int(order[position + 1]), int(order[position])
        message = f"image {sheet.column(image_column)[row].as_py()!r} has other labels on line {sheet.line(before)}"
        fix = (
            "add ‹repeats=present› (present if any line says so) or ‹repeats=last› (the last line counts) or "
            "‹repeats=unknown› (unknown where they disagree)"
        )
        raise sheet.error(message, fix, row=row, column=image_column)
    if not differs.any() or policy.repeats == "last":
        return np.asarray(last)
    is_present = np.maximum.reduceat(lines == 1, first, axis=0)
    least = np.minimum.reduceat(np.where(lines == 0, 9, lines), first, axis=0)
    most = np.maximum.reduceat(np.where(lines == 0, -9, lines), first, axis=0)
    agreed = np.where(least == most, most, 0)
    return np.where(is_present & (policy.repeats == "present"), 1, agreed).astype(np.int8)


def _open_questions(columns: Mapping[str, Sequence[str]], policy: Policy) -> tuple[list[str], list[str]]:
    """Ambiguities of the file and the options that usually resolve them, from the distinct values of each column."""
    known = {*policy.values, *MINUS_ONE, *ZERO, *VALUE_WORDS}
    problems, options, of_classes = [], [], set[str]()
    odd = {raw.strip() for raws in columns.values() for raw in raws if raw.strip().lower() not in VALUE_WORDS} - known
    if odd and all(map(str.isdecimal, odd)) and any({*ZERO} & {*raws} for raws in columns.values()):
        counts = sorted(odd, key=lambda text: (len(text), text))[:_MOST_COUNTS]
        return [f"what the number {text} means" for text in counts], [f"‹values={text}=present›" for text in counts]
    for name, raws in columns.items():
        texts = {raw.strip() for raw in raws}
        strange = sorted(text for text in texts if text not in known and text.lower() not in VALUE_WORDS)
        is_tick = len(texts) == 2 and "" in texts
        has_values = any(text and text.lower() in {*VALUE_WORDS, *ZERO, *MINUS_ONE} for text in texts)
        if len(strange) > _MOST_ODD_VALUES or (strange and not is_tick and not has_values):
            problems.append(f"{shorten_cell(name)!r} does not look like a class ({shorten_cell(strange[0], 20)!r})")
            options.append(f"‹ignore={name}›")
            continue
        of_classes |= texts
        for text in strange:
            problems.append(f"what {shorten_cell(text, 20)!r} in {shorten_cell(name)!r} means")
            options.append(f"‹values={text}={'present' if is_tick else 'unknown'}›")
    minus_one = of_classes.intersection(MINUS_ONE) - set(policy.values)
    # Beside 1, 0 and blank cells, -1 is usually "uncertain", as in chest X-ray data sets.
    usual = "uncertain" if of_classes & {*ZERO} and "" in of_classes else "absent"
    if minus_one and policy.minus_one is None:
        problems.append("what -1 means")
        options.append(f"‹minus_one={usual}›")
    if minus_one and (policy.minus_one or usual) == "absent" and of_classes & {*ZERO} and policy.zero is None:
        problems.append("what 0 means beside it")
        options.append("‹zero=unknown›")
    return problems, list(dict.fromkeys(options))


def find_image_column(header: list[str]) -> str:
    """The first column with a usual name for images, else the first column."""
    for name in header:
        if name.lower() in IMAGE_COLUMNS:
            return name
    return header[0]
