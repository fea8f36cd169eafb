"""Wide CSV: one line per image, one column per class, one value per cell."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from halflabel.errors import LabelError, UserError
from halflabel.labels.audit import Audit, LabelImport
from halflabel.labels.formats._csv import CsvTable, csv_line, first_line
from halflabel.labels.formats._wide_values import CLASS_NUMBER_COLUMNS, decode_columns
from halflabel.labels.formats._write import keeps_no_provenance, table_lines
from halflabel.labels.formats.long import IMAGE_COLUMNS, has_values
from halflabel.labels.formats.open_images import REQUIRED_COLUMNS
from halflabel.labels.formats.tags import LIST_COLUMNS
from halflabel.labels.formats.unsupported import IMAGE_ENDINGS
from halflabel.labels.labels import Labels
from halflabel.labels.names import Names
from halflabel.labels.policy import (
    MINUS_ONE,
    VALUE_WORDS,
    ZERO,
    Policy,
    UndecidedValue,
    quote_option,
    shorten_cell,
)
from halflabel.system.files import atomic_write

HOLDS_UNCERTAIN = True
USES = ("minus_one", "zero", "values", "image_column", "ignore", "where", "encoding")
keeps_provenance = keeps_no_provenance

_LONG = "write the long form instead (--to long)"


def sniff(path: Path) -> bool:
    """Any CSV file with at least two columns that no earlier format recognized."""
    return path.suffix.lower() in (".csv", ".tsv", ".txt") and any(d in first_line(path) for d in ",;\t|")


def read(path: Path, policy: Policy) -> LabelImport:
    """Read a wide table: blank, NaN and ? are unknown, 1 present, 0 absent; −1 must be stated."""
    sheet = CsvTable(path, encoding=policy.encoding)
    image_column = policy.image_column or _image_column(sheet.header)
    selected = sheet.filter(policy.where) if policy.where else np.arange(len(sheet))
    index = pa.array(selected)
    sheet.check_columns((image_column, *policy.ignore))
    not_classes = {image_column, *policy.ignore, *policy.where}
    classes = [name for name in sheet.header if name not in not_classes]
    if (unnamed := next((name for name in classes if re.fullmatch(r"Unnamed: \d+", name)), None)) is not None:
        fix = f"add {quote_option('--ignore', unnamed)}"
        raise sheet.error("this column numbers the rows, as pandas writes it, and is not a class", fix, column=unnamed)
    if policy.image_column is None and image_column.lower() not in IMAGE_COLUMNS:
        _check_first_line(sheet, classes)
    if not classes:
        raise sheet.error("no column is left for the classes", "check the header line", line=1)
    images = sheet.image_names(image_column, selected)

    def make_error(undecided: UndecidedValue, name: str, raw: str, row: int) -> LabelError:
        fix = undecided.fix
        if "not a label" in undecided.message:
            fix += f"; if {name!r} is not a class, add {quote_option('--ignore', name)}"
            if shorten_cell(raw) == raw:
                fix += f" or {quote_option('--where', f'{name}={raw}')}"
            if name.lower() in LIST_COLUMNS or len(classes) == 1:
                fix += "; if it lists the present classes, add --format tags"
            if image_column.lower() not in IMAGE_COLUMNS:
                fix += "; if the file has no header line, add one, such as image,class,value"
        return sheet.error(undecided.message, fix, row=int(selected[row]), column=name)

    audit = Audit("wide", [str(path)])
    columns = ((name, sheet.column(name).take(index)) for name in classes)
    labels = decode_columns(columns, policy, audit, make_error, blank="blank")
    audit.note_names("columns ignored", policy.ignore)
    if policy.where:
        audit.note(f"{len(sheet) - len(selected)} of {len(sheet)} rows left out by --where")
    image, column = np.nonzero(labels)
    return LabelImport(Labels.build(images, Names(classes), image, column, labels[image, column]), audit)


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


def _image_column(header: list[str]) -> str:
    """The first column with a usual name for images, else the first column."""
    for name in header:
        if name.lower() in IMAGE_COLUMNS:
            return name
    return header[0]


def _check_first_line(sheet: CsvTable, classes: list[str]) -> None:
    """Raise LabelError if the first line is not a header but already labels, or names the images."""
    if classes and {name.lower() for name in classes} <= {*VALUE_WORDS, *ZERO, *MINUS_ONE}:
        message = f"the first line is not a header: it has values, such as {classes[0]!r}"
        raise sheet.error(message, "add a line above it, such as image,dog,cat", line=1)
    if classes and all(Path(name).suffix.lower() in IMAGE_ENDINGS for name in classes):
        message = f"the columns are images, such as {classes[0]!r}, and the lines are classes"
        raise sheet.error(message, "exchange lines and columns: one line per image", line=1)
