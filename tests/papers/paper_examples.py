"""The command line and the figures of a result, for the tests of the papers' tables."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from halflabel.cli import app
from halflabel.papers.result import Reproduction, TableFigure


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "220"})


def figure(result: Reproduction, row: str, measure: str, condition: str | None = None) -> TableFigure:
    (match,) = [
        cell
        for cell in result.figures
        if cell.row == row and cell.measure == measure and condition in (None, cell.condition)
    ]
    return match
