"""Selecting rows and conditions of a table by name."""

from __future__ import annotations

import pytest

from halflabel.errors import UserError
from halflabel.papers.run import select_by_name
from halflabel.papers.tables import TABLES


def test_rows_are_selected_by_name_part_or_method() -> None:
    rows = TABLES["S2-table4"].rows

    def chosen(*words: str) -> list[str]:
        return [row.name for row in select_by_name("row", words, rows, lambda row: (row.name, row.method or ""))]

    assert chosen("BCE, not fine-tuned") == ["BCE, not fine-tuned"]
    assert chosen("bce,partial-bce") == ["BCE", "partial-BCE"]
    assert chosen("relabeling") == ["partial-BCE + relabeling", "partial-BCE + GNN + relabeling"]
    assert chosen("plcl") == [row.name for row in rows]
    with pytest.raises(UserError, match="'nothing'"):
        chosen("nothing")
