"""The recipes: how each published table is to be run, in the words of `protocol`.

Where a value is not in a paper's text, `unsaid` names it and the comment says where it comes from. "Released code" is
what the authors, or the authors of the literature they follow, have published; only facts about it are used.
"""

from __future__ import annotations

from halflabel.errors import UserError
from halflabel.papers.recipes import cevikalp_2019, durand_2019, huynh_2020, wang_2023, zhou_2022
from halflabel.papers.spec import Table

__all__ = ["TABLES", "recipe_for"]

_MODULES = (huynh_2020, durand_2019, cevikalp_2019, wang_2023, zhou_2022)
TABLES: dict[str, Table] = {table.id: table for module in _MODULES for table in module.TABLES}


def recipe_for(id: str) -> Table:
    """The recipe of a table, such as S2-table4."""
    if id not in TABLES:
        raise UserError(f"no recipe is called {id!r}", f"use one of: {', '.join(TABLES)}")
    return TABLES[id]
