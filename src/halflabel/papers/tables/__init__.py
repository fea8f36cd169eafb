"""The published tables by id: the numbers as printed, and the protocols to run them again.

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

from halflabel.comparison.label_mask import LabelMask
from halflabel.errors import UserError
from halflabel.papers.spec import Condition, PaperMeasure, PaperTable, Printed, TableRow

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


def read_printed(measures: Sequence[str], blocks: Mapping[str, str]) -> Printed:
    """Read printed numbers: "condition; condition" -> lines of `row | numbers`, by condition and measure, – for none.

    >>> read_printed(("mAP", "OF1"), {"10 %; 90 %": "bce | 61.7±0.1 – 77.7 76.6"})["bce", "10 %", "mAP"]
    (61.7, 0.1)
    """
    printed: dict[tuple[str, str, str], tuple[float, float]] = {}
    for conditions, text in blocks.items():
        columns = [(condition, measure) for condition in conditions.split("; ") for measure in measures]
        for line in text.strip().splitlines():
            row, _, numbers = line.partition("|")
            for column, word in zip(columns, numbers.split(), strict=True):
                place = (row.strip(), *column)
                if place in printed:
                    raise ValueError(f"two numbers for {place}")
                value, _, spread = word.partition("±")
                if value != "–":
                    printed[place] = float(value), float(spread or "nan")
    return printed


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


def _with_texts(value: Any) -> Any:
    """Replace the names of texts in lists of sentences."""
    if isinstance(value, dict):
        return {key: _with_texts(_TEXTS.get(item, item) if key == "needs" else item) for key, item in value.items()}
    if isinstance(value, list):
        return [_TEXTS.get(item, item) if isinstance(item, str) else _with_texts(item) for item in value]
    return value


def _partial(percent: int, exact: bool) -> LabelMask:
    """Keep part of the labels: the same number in each image (exact), or each label with the same probability."""
    return LabelMask() if percent == 100 else LabelMask("partial", (("exact", exact), ("share", percent / 100)))


def _read_conditions(entries: Mapping[str, Entry], paper: str) -> Iterator[Condition]:
    """Read the conditions of a table: with `each`, one for each percentage of known labels; with `shares`, one of all.

    `exact`: the same number in each image, else each label with the same probability.
    """
    for name, entry in entries.items():
        values = _resolve("conditions", entry, paper)
        each, shares, exact = values.pop("each", ()), values.pop("shares", ()), values.pop("exact", False)
        training = values["training"]
        training = {"like": training} if isinstance(training, str) else training
        values["training"] = _resolve("trainings", training, paper)
        if shares:
            values["masks"] = [_partial(percent, exact) for percent in shares]
        for percent in each:
            yield Condition(**{**values, "name": f"{percent} %", "masks": [_partial(percent, exact)]})
        if not each:
            yield Condition(name=name, **values)


def _read_rows(entries: Mapping[str, Entry], paper: str) -> Iterator[TableRow]:
    """Read the rows of a table: with `sweep`, one for each value of the option that the entry is named after."""
    for name, entry in entries.items():
        values = _resolve("rows", entry, paper)
        swept, options = values.pop("sweep", ()), values.get("options", {})
        for value in swept:
            yield TableRow(**{**values, "name": f"{name}={value:g}", "options": {**options, name: value}})
        if not swept:
            yield TableRow(name=name, **values)


def _read_table(id: str, own: Entry, paper: str) -> PaperTable:
    """Read the protocol of a table; from the table that it `extends` come rows, and what it does not state itself."""
    extended = _CONTENT[paper].get(own.get("extends", ""), {})
    rows = {**extended.get("rows", {}), **own.get("rows", {})}
    table = {**extended, **own}
    measured = {**_CONTENT[paper]["measures"], **table.get("measured", {})}
    protocol, is_printed = tuple(table.get("protocol", ())), "blocks" in own
    return PaperTable(
        id=id,
        paper=PAPERS[paper],
        caption=own["caption"] if is_printed else protocol[0],
        conditions=tuple(_read_conditions(table["conditions"], paper)),
        measures=tuple(
            PaperMeasure(name=name, **_resolve("measures", measured[name], paper)) for name in table["measures"]
        ),
        rows=tuple(_read_rows(rows, paper)),
        protocol=protocol if is_printed else protocol[1:],
        printed=read_printed(own["measures"], own["blocks"]) if is_printed else {},
        notes=own.get("notes", ()) if is_printed else ("the paper draws a figure: there are no published numbers",),
    )


_CONTENT: dict[str, Entry] = {
    paper: tomllib.loads((files(__package__) / f"{file}.toml").read_text(encoding="utf-8"))
    for paper, file in zip(PAPERS, _FILES, strict=True)
}
_TEXTS = {name: text for content in _CONTENT.values() for name, text in content.get("texts", {}).items()}
_CONTENT = _with_texts(_CONTENT)
_TRAININGS = {name: entry for content in _CONTENT.values() for name, entry in content["trainings"].items()}
TABLES = {
    id: _read_table(id, table, paper)
    for paper, content in _CONTENT.items()
    for id, table in content.items()
    if id not in _SHARED
}


def find_table(id: str) -> PaperTable:
    """The protocol of a table, such as S2-table4."""
    if id not in TABLES:
        raise UserError(f"there is no table {id!r}", f"use one of: {', '.join(TABLES)}")
    return TABLES[id]
