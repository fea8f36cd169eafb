"""Which runs a table asks for: rows and conditions by name, and groups of runs that share their data and settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from halflabel.errors import UserError
from halflabel.experiments.grid import Candidate, Grid, LabelMask
from halflabel.methods.base import recipes
from halflabel.papers.settings import Changes, Setup, set_up
from halflabel.papers.spec import Cell, Condition, Row, Table
from halflabel.system.files import to_json_value

__all__ = ["Group", "choose", "grid_of", "groups_of", "with_bases"]


@dataclass
class Group:
    """Runs that share their data and all settings, and so a bench and a folder."""

    folder: str
    condition: Condition
    trial: int
    setup: Setup
    wanted: dict[tuple[Candidate, LabelMask], list[tuple[Row, Condition]]] = field(default_factory=dict)
    differs: dict[str, list[str]] = field(default_factory=dict)  # by condition


def choose(
    kind: str, wanted: Sequence[str], there: Sequence[Any], names: Callable[[Any], tuple[str, ...]]
) -> list[Any]:
    """What is named: exactly, else by part of the first name; a text with commas may be one name or several."""
    if not wanted:
        return list(there)

    def find(text: str) -> list[Any]:
        plain_text = _plain(text)
        exact = [one for one in there if plain_text in map(_plain, names(one))]
        return exact or [one for one in there if plain_text and plain_text in _plain(names(one)[0])]

    found: list[Any] = []
    for text in wanted:
        for word in [text] if find(text) else text.split(","):
            hits = find(word)
            if not hits:
                listed = "; ".join(names(one)[0] for one in there)
                raise UserError(f"no {kind} of the table is called {word.strip()!r}", f"use one of: {listed}")
            found += hits
    return [one for one in there if one in found]


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()


def with_bases(table: Table, rows: list[Row]) -> list[Row]:
    """The rows and those that their figures are relative to."""
    names = {row.name for row in rows} | {row.relative_to for row in rows}
    return [row for row in table.rows if row.name in names]


def groups_of(
    table: Table,
    rows: Sequence[Row],
    conditions: Sequence[Condition],
    changes: Changes,
    moved: Mapping[str, str],
) -> list[Group]:
    known, groups = recipes(), dict[str, Group]()
    for condition in conditions:
        for trial in range(len(condition.trials)):
            for row in rows:
                if not row.runs(known) or not row.under(condition):
                    continue
                cell = table.cell(row, condition)
                setup = set_up(cell, changes)
                name = _folder(cell, trial, setup.config.tune)
                group = groups.setdefault(name, Group(name, cell.condition, trial, setup))
                if (group.setup.config, group.setup.start) != (setup.config, setup.start):
                    raise ValueError(f"{row.name} and others of {name} are to be trained in different ways")
                said = group.differs.setdefault(condition.name, [])
                if condition.name in moved:
                    said.append(f"the data set is {condition.dataset} instead of {moved[condition.name]}")
                said.extend(setup.differs)
                options = tuple(sorted(setup.options.items()))
                candidate = Candidate(row.name, cell.method, options, setup.lr, setup.weight_decay)
                for hiding in cell.hidings:
                    hidden = LabelMask(hiding.protocol, tuple(sorted(hiding.options.items())))
                    group.wanted.setdefault((candidate, hidden), []).append((row, condition))
    return list(groups.values())


def _folder(cell: Cell, trial: int, tune: str) -> str:
    """A name for all runs that share data and declared settings; what the user changes is for the store to compare."""
    condition, training = cell.condition, cell.condition.training
    shared = [condition.dataset, condition.options, condition.trials[trial], condition.sample, condition.with_positives]
    shared += [condition.select, condition.held_out, condition.validation, tune, training.start]
    shared += [{**cell.config, "tune": tune}, cell.settings, training.weak]
    if training.config.get("tune") == "head":  # the paper's own way of training heads, not the library's
        shared.append("as published")
    other_test = condition.test if condition.test != "test" else ""
    for rare in (training.begin, condition.labelled_only, other_test, cell.row.file):
        shared += [rare] if rare else []  # not where they are as usual: folders made before know nothing of them
    digest = hashlib.sha256(json.dumps(to_json_value(shared), sort_keys=True).encode()).hexdigest()[:8]
    words = [condition.dataset, *(f"{key}{value}" for key, value in condition.trials[trial].items()), tune, digest]
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", "-".join(words))


def grid_of(group: Group, seeds: int) -> Grid:
    candidates = tuple(dict.fromkeys(candidate for candidate, _ in group.wanted))
    hidings = tuple(dict.fromkeys(hiding for _, hiding in group.wanted))
    unwanted = frozenset((c, h) for c in candidates for h in hidings if (c, h) not in group.wanted)
    return Grid(candidates, hidings, seeds, "none", unwanted)
