"""The published tables by id: the numbers as printed (PRINTED) and the protocols to run them again (TABLES).

Each paper has one module with its protocols, and one TOML file with the numbers as printed. Where a paper does not
state a value, `unsaid` names the setting and a comment gives the source of the value. "Released code" is code that the
authors, or the authors of the literature they follow, have published; only facts about it are used. Numbers that appear
only in a diagram are not included; `drawn` has the protocols of such diagrams.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

from halflabel.errors import UserError
from halflabel.papers.spec import PaperTable, PrintedTable, read_printed
from halflabel.papers.tables import cevikalp_2019, drawn, durand_2019, huynh_2020, wang_2023, zhou_2022

PAPERS = {
    "S1": "Huynh, Elhamifar 2020: Interactive Multi-Label CNN Learning with Partial Labels",
    "S2": "Durand, Mehrasa, Mori 2019: Learning a Deep ConvNet for Multi-label Classification with Partial Labels",
    "S3": "Cevikalp, Benligiray, Gerek, Saribas 2019: Semi-Supervised Robust Deep Neural Networks for Multi-Label "
    "Classification",
    "S4": "Wang, Wan, Xiang, Zeng 2023: Saliency Regularization for Self-Training with Partial Annotations",
    "S5": "Zhou, Chen, Wang, Chen, Heng 2022: Acknowledging the Unknown for Multi-label Learning with Single Positive "
    "Labels",
}


def _read_numbers(paper: str) -> dict[str, PrintedTable]:
    content = tomllib.loads((files(__package__) / f"{paper}.toml").read_text(encoding="utf-8"))
    return {id: read_printed(id, **table) for id, table in content.items()}


_MODULES = (huynh_2020, durand_2019, cevikalp_2019, wang_2023, zhou_2022)
PRINTED = {id: table for module in _MODULES for id, table in _read_numbers(module.__name__.rpartition(".")[2]).items()}
TABLES: dict[str, PaperTable] = {table.id: table for module in (*_MODULES, drawn) for table in module.TABLES}


def find_table(id: str) -> PaperTable:
    """The protocol of a table, such as S2-table4."""
    if id not in TABLES:
        raise UserError(f"there is no table {id!r}", f"use one of: {', '.join(TABLES)}")
    return TABLES[id]


def caption_of(table: PaperTable) -> str:
    """What a table shows: its printed caption, or the first note of a table without printed numbers."""
    return PRINTED[table.id].caption if table.id in PRINTED else table.notes[0]


def paper_of(id: str) -> str:
    """
    >>> paper_of("S4-table2")
    'Wang, Wan, Xiang, Zeng 2023: Saliency Regularization for Self-Training with Partial Annotations'
    """
    return PAPERS[id.split("-")[0]]
