"""Which runs a table needs: rows and conditions selected by name, and groups of runs that share data and settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from halflabel.comparison.grid import Candidate, Grid, LabelMask
from halflabel.errors import UserError
from halflabel.papers.settings import CellSetup, Overrides, set_up_cell
from halflabel.papers.spec import Cell, Condition, PaperTable, TableRow
from halflabel.system.files import to_json_value

T = TypeVar("T")


@dataclass
class RunGroup:
    """Runs that share their data and all settings, and therefore a bench and a result folder.

    `jobs` maps what is trained to the table cells that use the result.
    """

    folder: str
    condition: Condition
    trial: int
    setup: CellSetup
    jobs: dict[tuple[Candidate, LabelMask], list[tuple[TableRow, Condition]]] = field(default_factory=dict)
    differs: dict[str, list[str]] = field(default_factory=dict)  # by condition
    row_differs: dict[str, list[str]] = field(default_factory=dict)  # by row

    @property
    def rows(self) -> list[TableRow]:
        return list({row.name: row for cells in self.jobs.values() for row, _ in cells}.values())

    @property
    def selects_on_hidden(self) -> bool:
        """Whether the epoch is chosen by labels that are hidden from training."""
        return self.condition.select == "all labels" and any(mask.protocol for _, mask in self.jobs)


def select_by_name(
    kind: str, wanted: Sequence[str], items: Sequence[T], names: Callable[[T], tuple[str, ...]]
) -> list[T]:
    """The items with these names: exactly, else by part of the first name. Commas may separate several names."""
    if not wanted:
        return list(items)

    def find(text: str) -> list[T]:
        text = _normalise(text)
        exact = [item for item in items if text in map(_normalise, names(item))]
        return exact or [item for item in items if text and text in _normalise(names(item)[0])]

    selected: list[T] = []
    for text in wanted:
        for name in [text] if find(text) else text.split(","):
            matches = find(name)
            if not matches:
                available = "; ".join(names(item)[0] for item in items)
                raise UserError(f"the table has no {kind} {name.strip()!r}", f"use one of: {available}")
            selected += matches
    return [item for item in items if item in selected]


def _normalise(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()


def with_reference_rows(table: PaperTable, rows: list[TableRow]) -> list[TableRow]:
    """The rows and those that their numbers are relative to."""
    names = {row.name for row in rows} | {row.relative_to for row in rows}
    return [row for row in table.rows if row.name in names]


def plan_groups(
    table: PaperTable,
    rows: Sequence[TableRow],
    conditions: Sequence[Condition],
    overrides: Overrides,
    paper_datasets: Mapping[str, str],
) -> list[RunGroup]:
    """Group all cells by data and settings. `paper_datasets`: the paper's data set of conditions moved to another."""
    groups: dict[str, RunGroup] = {}
    for condition in conditions:
        for trial in range(len(condition.trials)):
            for row in rows:
                if row.method is None or not row.applies_to(condition):
                    continue
                cell = table.cell(row, condition)
                setup = set_up_cell(cell, overrides)
                name = _folder_name(cell, trial, setup.config.tune)
                group = groups.setdefault(name, RunGroup(name, cell.condition, trial, setup))
                if (group.setup.config, group.setup.start) != (setup.config, setup.start):
                    raise ValueError(f"{row.name} and other rows of {name} have different settings")
                differs = group.differs.setdefault(condition.name, [])
                if condition.name in paper_datasets:
                    differs.append(f"the data set is {condition.dataset} instead of {paper_datasets[condition.name]}")
                differs.extend(setup.differs)
                group.row_differs.setdefault(row.name, []).extend(setup.row_differs)
                options = tuple(sorted(setup.options.items()))
                candidate = Candidate(row.name, cell.method, options, setup.lr, setup.weight_decay)
                for mask in cell.masks:
                    group.jobs.setdefault((candidate, mask.label_mask()), []).append((row, condition))
    return list(groups.values())


def _folder_name(cell: Cell, trial: int, tune: str) -> str:
    """A name for all runs that share data and declared settings; the store compares the user's overrides."""
    condition, training = cell.condition, cell.condition.training
    shared: list[Any] = [condition.dataset, condition.dataset_options, condition.trials[trial]]
    shared += [condition.sample, condition.with_positives]
    shared += [condition.select, condition.held_out, condition.validation_split, tune, training.backbone_weights]
    shared += [{**cell.config, "tune": tune}, cell.settings, training.weak_view]
    if training.config.get("tune") == "head":  # the paper's own way of training heads, not the library's
        shared.append("as published")
    other_test = condition.test_split if condition.test_split != "test" else ""
    for rare in (training.initial_model, condition.labelled_only, other_test):
        shared += [rare] if rare else []  # defaults are left out: they do not change the digest of existing folders
    digest = hashlib.sha256(json.dumps(to_json_value(shared), sort_keys=True).encode()).hexdigest()[:8]
    words = [condition.dataset, *(f"{key}{value}" for key, value in condition.trials[trial].items()), tune, digest]
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", "-".join(words))


def build_grid(group: RunGroup, seeds: int) -> Grid:
    """The grid of candidates and label masks of a group, without the pairs that no cell needs."""
    candidates = tuple(dict.fromkeys(candidate for candidate, _ in group.jobs))
    masks = tuple(dict.fromkeys(mask for _, mask in group.jobs))
    excluded = frozenset((c, m) for c in candidates for m in masks if (c, m) not in group.jobs)
    return Grid(candidates, masks, seeds, "none", excluded)
