"""Cells of an Excel workbook changed in place, for `_into`: all else in it, such as formats and formulas, stays."""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from halflabel.errors import UserError
from halflabel.labels.formats._csv import read_records
from halflabel.labels.formats._unpack import column_position, sheet_member, unpack
from halflabel.system.files import atomic_write

_ROW = re.compile(r"<row\b[^>]*?(?:/>|>.*?</row>)", re.DOTALL)
_CELL = re.compile(r"<c\b[^>]*?(?:/>|>.*?</c>)", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})")

_Cells = dict[int, str]  # column, from 0 -> text


def is_workbook(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "xl/workbook.xml" in archive.namelist()


def write_changes(
    table: Path, split: str | None, old: Sequence[list[str]], new: Sequence[list[str]], path: Path
) -> None:
    """Write a copy of a workbook whose sheet has the `new` records; `old` are those that it has."""
    changes: dict[int, _Cells] = defaultdict(dict)  # by row, from 1
    for row, cells in enumerate(new, 1):
        before = old[row - 1] if row <= len(old) else []
        for column, text in enumerate(cells):
            if text != (before[column] if column < len(before) else ""):
                changes[row][column] = text
    with zipfile.ZipFile(table) as archive, atomic_write(path) as temporary:
        member = f"xl/{sheet_member(archive, table, split)}"
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as copy:
            for item in archive.infolist():
                data = archive.read(item)
                copy.writestr(item, _change(data.decode(), changes).encode() if item.filename == member else data)
        written = read_records(unpack(temporary, split).path, ",")
        if [_trimmed(fields) for _, fields in written] != [_trimmed(cells) for cells in new if any(cells)]:
            raise UserError(f"{table} cannot be changed in place", "save the sheet as a CSV file, and name that")


def _change(sheet: str, changes: dict[int, _Cells]) -> str:
    """The XML of a sheet with other cells; rows that it lacks are added at the end."""
    left, number = dict(changes), 0

    def change_row(row: re.Match[str]) -> str:
        nonlocal number
        stated = re.match(r"<row\b[^>]*?\br=\"(\d+)\"", row[0])
        number = int(stated[1]) if stated else number + 1
        return _change_row(row[0], number, left.pop(number)) if number in left else row[0]

    sheet = _ROW.sub(change_row, sheet)
    rows = "".join(_change_row(f'<row r="{row}"></row>', row, cells) for row, cells in sorted(left.items()))
    return sheet.replace("<sheetData/>", "<sheetData></sheetData>").replace("</sheetData>", f"{rows}</sheetData>", 1)


def _change_row(row: str, number: int, cells: _Cells) -> str:
    if row.endswith("/>"):
        row = f"{row[:-2]}></row>"
    start, end = row.index(">") + 1, row.rindex("</row>")
    found: dict[int, str] = {}
    for cell in _CELL.findall(row[start:end]):
        stated = re.match(r"<c\b[^>]*?\br=\"([A-Z]+)\d+\"", cell)
        found[column_position(stated[1] if stated else "", max(found, default=-1) + 1)] = cell
    for column, text in cells.items():
        style = re.match(r"<c\b[^>]*?(\bs=\"\d+\")", found.get(column, ""))
        kept = f" {style[1]}" if style else ""
        name = f'r="{_letters(column)}{number}"{kept}'
        content = f'<is><t xml:space="preserve">{escape(text)}</t></is>'
        is_number = _NUMBER.fullmatch(text)
        found[column] = f"<c {name}><v>{text}</v></c>" if is_number else f'<c {name} t="inlineStr">{content}</c>'
    return row[:start] + "".join(found[column] for column in sorted(found)) + row[end:]


def _letters(column: int) -> str:
    letters, column = "", column + 1
    while column:
        column, place = divmod(column - 1, 26)
        letters = chr(65 + place) + letters
    return letters


def _trimmed(fields: list[str]) -> list[str]:
    while fields and not fields[-1]:
        fields = fields[:-1]
    return fields
