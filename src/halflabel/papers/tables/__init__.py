"""The published tables by id: the numbers as printed (PRINTED) and the protocols to run them again (TABLES).

Each paper has one TOML file with both. Where a paper does not state a value, `unsaid` names the setting and a comment
gives the source of the value. "Released code" is code that the authors, or the authors of the literature they follow,
have published; only facts about it are used. A table without `blocks` is a diagram, whose numbers are not printed.

An entry of `conditions`, `rows`, `measures` or `trainings` that is `like` another one has its values, too: dictionaries
are merged, anything else is replaced. The other one is an entry of the same file, or TABLE/NAME. In lists of sentences,
the name of an entry of `texts` stands for that text. Names of `texts` and `trainings` hold in all files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from halflabel.errors import UserError
from halflabel.papers.spec import (
    Condition,
    InitialModel,
    MaskSpec,
    PaperMeasure,
    PaperTable,
    PaperTraining,
    TableRow,
    read_printed,
)

PAPERS = {
    "S1": "Huynh, Elhamifar 2020: Interactive Multi-Label CNN Learning with Partial Labels",
    "S2": "Durand, Mehrasa, Mori 2019: Learning a Deep ConvNet for Multi-label Classification with Partial Labels",
    "S3": "Cevikalp, Benligiray, Gerek, Saribas 2019: Semi-Supervised Robust Deep Neural Networks for Multi-Label "
    "Classification",
    "S4": "Wang, Wan, Xiang, Zeng 2023: Saliency Regularization for Self-Training with Partial Annotations",
    "S5": "Zhou, Chen, Wang, Chen, Heng 2022: Acknowledging the Unknown for Multi-label Learning with Single Positive "
    "Labels",
}
_FILES = ("huynh_2020", "durand_2019", "cevikalp_2019", "wang_2023", "zhou_2022")
_SHARED = ("texts", "measures", "trainings", "conditions", "rows")

Entry = dict[str, Any]


def _resolve(kind: str, entry: Mapping[str, Any], paper: str) -> Entry:
    """Return an entry with the values of the one that it is like."""
    own = {name: value for name, value in entry.items() if name != "like"}
    if "like" not in entry:
        return own
    table, is_elsewhere, name = entry["like"].rpartition("/")
    paper = table.partition("-")[0] or paper
    place = _CONTENT[paper][table] if is_elsewhere else {**_CONTENT[paper], "trainings": _TRAININGS}
    values = _resolve(kind, place[kind][name], paper)
    merged = {key: {**values[key], **own[key]} for key in own if isinstance(values.get(key), dict)}
    return {**values, **own, **merged}


def _sentences(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(_TEXTS.get(line, line) for line in lines)


def _read_training(entry: str | Entry, paper: str) -> PaperTraining:
    values = _resolve("trainings", {"like": entry} if isinstance(entry, str) else entry, paper)
    values["initial_model"] = _initial_model(values.get("initial_model"))
    sentences = {name: _sentences(values.get(name, ())) for name in ("unsaid", "differs")}
    return PaperTraining(**{**values, **sentences})


def _initial_model(values: Entry | None) -> InitialModel | None:
    return None if values is None else InitialModel(**values)


def _read_conditions(entries: Mapping[str, Entry], paper: str) -> Iterator[Condition]:
    """Read the conditions of a table: with `each`, one for each percentage of known labels; with `shares`, one of all.

    `exact`: the same number in each image, else each label with the same probability.
    """
    for name, entry in entries.items():
        values = _resolve("conditions", entry, paper)
        each, shares = values.pop("each", ()), values.pop("shares", ())
        exact = values.pop("exact", False)
        values["training"] = _read_training(values["training"], paper)
        values["trials"] = tuple(values.get("trials", ({},)))
        values["notes"] = _sentences(values.get("notes", ()))
        masks = [MaskSpec.parse(text) for text in values.pop("masks", ["all"])]
        masks = [MaskSpec.partial(percent, exact=exact) for percent in shares] or masks
        for percent in each:
            yield Condition(f"{percent} %", masks=(MaskSpec.partial(percent, exact=exact),), **values)
        if not each:
            yield Condition(name, masks=tuple(masks), **values)


def _read_rows(entries: Mapping[str, Entry], paper: str) -> Iterator[TableRow]:
    """Read the rows of a table: with `sweep`, one for each value of the option that the entry is named after."""
    for name, entry in entries.items():
        values = {"method": None, **_resolve("rows", entry, paper)}
        values["initial_model"] = _initial_model(values.get("initial_model"))
        values["differs"] = _sentences(values.get("differs", ()))
        values["needs"] = _sentences([values.get("needs", "")])[0]
        values["mask"] = MaskSpec.parse(values["mask"]) if "mask" in values else None
        by_condition = values.pop("masks_by_condition", {}).items()
        values["masks_by_condition"] = {condition: MaskSpec.parse(mask) for condition, mask in by_condition}
        swept = values.pop("sweep", ())
        for value in swept:
            yield TableRow(f"{name}={value:g}", **{**values, "options": {**values.get("options", {}), name: value}})
        if not swept:
            yield TableRow(name, **values)


def _read_table(id: str, table: Entry, paper: str) -> PaperTable:
    """Read the protocol of a table; from the table that it `extends` come rows, and what it does not state itself."""
    extended = _CONTENT[paper].get(table.get("extends", ""), {})
    rows = {**extended.get("rows", {}), **table.get("rows", {})}
    table = {**extended, **table}
    measured = {**_CONTENT[paper]["measures"], **table.get("measured", {})}
    return PaperTable(
        id,
        tuple(_read_conditions(table["conditions"], paper)),
        tuple(PaperMeasure(name, **_resolve("measures", measured[name], paper)) for name in table["measures"]),
        tuple(_read_rows(rows, paper)),
        _sentences(table.get("protocol", ())),
    )


_CONTENT: dict[str, Entry] = {
    paper: tomllib.loads((files(__package__) / f"{file}.toml").read_text(encoding="utf-8"))
    for paper, file in zip(PAPERS, _FILES, strict=True)
}
_TEXTS: dict[str, str] = {}
_TRAININGS: dict[str, Entry] = {}
for content in _CONTENT.values():
    _TEXTS |= content.get("texts", {})
    _TRAININGS |= content["trainings"]
_TABLES = [(id, table, paper) for paper, all in _CONTENT.items() for id, table in all.items() if id not in _SHARED]
PRINTED = {
    id: read_printed(id, table["caption"], table["measures"], table["blocks"], table.get("notes", ()))
    for id, table, _ in _TABLES
    if "blocks" in table
}
TABLES = {id: _read_table(id, table, paper) for id, table, paper in _TABLES}


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
