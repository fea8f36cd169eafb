"""Helpers for the tests of label readers: golden files, and errors that must tell the user what to do."""

from __future__ import annotations

import gzip
import io
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from halflabel.cli import app
from halflabel.errors import LabelError, UserError
from halflabel.labels.labels import Labels
from halflabel.labels.policy import Policy

GOLDEN_FILES = Path(__file__).parents[1] / "golden"

_MOST_STEPS = 2

Reader = Callable[[Path, Policy], Any]


def label_error(read: Reader, path: Path, policy: Policy | None = None) -> LabelError:
    """The LabelError that reading a file raises; it must suggest a fix."""
    with pytest.raises(LabelError) as caught:
        read(path, policy or Policy())
    assert caught.value.fix
    return caught.value


def is_readable(read: Reader, path: Path, policy: Policy | None = None) -> bool:
    """Whether a file can be read. A UserError must suggest a fix; any other exception fails the test."""
    fault = None
    try:
        read(path, policy or Policy())
    except UserError as error:
        fault = error
    assert fault is None or fault.fix
    return fault is None


def source_of(rows: Labels) -> list[str]:
    """The source of each row."""
    return [rows.sources[number] for number in rows.source]


def packed(kind: str, text: str) -> bytes:
    """A table in a gzip file, in a zip file, or as an Excel workbook with a second, blank sheet."""
    if kind == "gz":
        return gzip.compress(text.encode())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        if kind == "zip":
            archive.writestr("folder/labels.csv", text)
        else:
            office = "http://schemas.openxmlformats.org/"
            main = f'xmlns="{office}spreadsheetml/2006/main"'
            relations = f'xmlns:r="{office}officeDocument/2006/relationships"'
            sheets = "".join(f'<sheet name="S{n}" r:id="r{n}"/>' for n in (1, 2))
            targets = "".join(f'<Relationship Id="r{n}" Target="worksheets/sheet{n}.xml"/>' for n in (1, 2))
            names = sorted({cell for line in text.split() for cell in line.split(",") if not cell.isdecimal()})
            rows = ""
            for number, line in enumerate(text.split(), 1):
                cells = "".join(
                    f'<c r="{chr(65 + column)}{number}"><v>{cell}</v></c>'
                    if cell.isdecimal()
                    else f'<c r="{chr(65 + column)}{number}" t="s"><v>{names.index(cell)}</v></c>'
                    for column, cell in enumerate(line.split(","))
                    if cell
                )
                rows += f'<row r="{number}">{cells}</row>'
            archive.writestr("xl/workbook.xml", f"<workbook {main} {relations}><sheets>{sheets}</sheets></workbook>")
            archive.writestr("xl/_rels/workbook.xml.rels", f"<Relationships>{targets}</Relationships>")
            strings = "".join(f"<si><t>{name}</t></si>" for name in names)
            archive.writestr("xl/sharedStrings.xml", f"<sst {main}>{strings}</sst>")
            for n, data in ((1, rows), (2, "")):
                sheet = f"<worksheet {main}><sheetData>{data}</sheetData></worksheet>"
                archive.writestr(f"xl/worksheets/sheet{n}.xml", sheet)
    return file.getvalue()


def run(words: list[str]) -> tuple[bool, str]:
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 2), (words, result.output, result.exception)
    return result.exit_code == 0, result.output


def follow(words: list[str]) -> int:
    """The number of refusals until a command succeeds; each next command is the first that the refusal proposes."""
    for step in range(_MOST_STEPS + 1):
        succeeded, output = run(words)
        if succeeded:
            return step
        _, mark, fix = output.partition("fix: halflabel ")
        assert mark, output
        words = shlex.split(fix.splitlines()[0], comments=True)
    raise AssertionError(output)
