"""Published and reproduced numbers side by side, and the files reproduction.csv and reproduction.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halflabel.comparison.grid import LabelMask
from halflabel.papers.spec import Condition, PaperMeasure, PaperTable, TableRow
from halflabel.papers.tables import PRINTED
from halflabel.system.files import to_json_value, write_csv, write_json


class CellRun(NamedTuple):
    """One training run of a table: a row under a condition, with one trial, one label mask and one seed."""

    row: str
    condition: str
    trial: int
    mask: LabelMask
    seed: int


@dataclass(frozen=True)
class TableFigure:
    """One number of a table, in percent: published, reproduced, and the difference; NaN where there is none.

    `ours` is the mean over the seeds whose runs are all finished, `ours_sd` their standard deviation. The value of one
    seed is the mean over label masks and trials. `relative_to` names the row that both are the difference to.
    """

    row: str
    condition: str
    measure: str
    published: float
    published_spread: float
    ours: float
    ours_sd: float
    difference: float
    seeds: int
    runs: int  # finished
    of_runs: int  # requested
    relative_to: str = ""
    note: str = ""  # why there is no number of ours
    published_on: str = ""  # the paper's data set, if ours is another one
    per_seed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """The result of `reproduce`; the field names are the keys of reproduction.json.

    `differs`, `unsaid` and `failures` are sentences that name the conditions, rows or runs they are about.
    """

    id: str
    paper: str
    caption: str
    figures: tuple[TableFigure, ...]
    protocol: Mapping[str, tuple[str, ...]]  # by condition
    measures: tuple[str, ...]
    differs: tuple[str, ...]  # deviations from the paper
    unsaid: tuple[str, ...]  # settings that the paper does not state
    notes: tuple[str, ...]
    skipped: tuple[str, ...] = ()  # rows that cannot be trained
    missing: Mapping[str, str] = field(default_factory=dict)  # conditions without their data set, and why
    failures: tuple[str, ...] = ()
    left_out: int = 0  # runs for which the budget left no time
    on_hidden: tuple[str, ...] = ()  # conditions whose epoch was chosen by labels hidden from training

    @property
    def finished(self) -> int:
        """The number of reproduced numbers."""
        return sum(not math.isnan(figure.ours) for figure in self.figures)

    def write(self, folder: Path) -> None:
        """Write reproduction.csv with a line per number, and reproduction.json with everything."""
        names = [column.name for column in fields(TableFigure) if column.name != "per_seed"]
        rows = [
            [self.id, *(getattr(figure, name) for name in names), " ".join(f"{value:.6g}" for value in figure.per_seed)]
            for figure in self.figures
        ]
        write_csv(folder / "reproduction.csv", ["table", *names, "per_seed"], rows)
        write_json(folder / "reproduction.json", self.to_json())

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = to_json_value(asdict(self))
        return content


Values = Mapping[CellRun, Mapping[str, float]]  # the measures of each finished run


def collect_figures(
    table: PaperTable,
    rows: Sequence[TableRow],
    conditions: Sequence[Condition],
    seeds: int,
    values: Values,
    failures: Mapping[CellRun, str],
    paper_datasets: Mapping[str, str],
) -> list[TableFigure]:
    """Every number of the chosen rows and conditions. `paper_datasets`: see `plan_groups`."""
    figures = []
    for condition in conditions:
        present = [row for row in rows if row.applies_to(condition)]
        by_row = {row.name: _mean_per_seed(table, row, condition, seeds, values) for row in present if row.method}
        for row in present:
            cell = (row.name, condition.name)
            runs = sum((run.row, run.condition) == cell for run in values)
            of_runs = 0 if row.method is None else seeds * len(condition.trials) * len(table.cell(row, condition).masks)
            reason = "does not apply" if runs == of_runs else f"{runs} of {of_runs} runs finished"
            if row.method is None:
                reason = "skipped: only the printed numbers are available"
            elif any((run.row, run.condition) == cell for run in failures):
                reason = "failed"
            unmeasured = TableFigure(
                *(row.name, condition.name, "", math.nan, math.nan, math.nan, math.nan, math.nan, 0, runs, of_runs),
                note=reason,
                published_on=paper_datasets.get(condition.name, ""),
            )
            figures += [_measured(unmeasured, table, row, measure, by_row) for measure in table.measures]
    return figures


def _measured(
    figure: TableFigure,
    table: PaperTable,
    row: TableRow,
    measure: PaperMeasure,
    by_row: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> TableFigure:
    """The number of one measure; `by_row`: row -> seed -> measure -> value. Without a number, the note stays."""
    printed = PRINTED[table.id].number(row.name, figure.condition, measure.name) if table.id in PRINTED else None
    base = row.relative_to if measure.relative else None
    ours = {seed: values[measure.name] for seed, values in by_row.get(row.name, {}).items()}
    if base is not None:
        ours = {seed: v - by_row[base][seed][measure.name] for seed, v in ours.items() if seed in by_row[base]}
    per_seed = np.array([value for value in ours.values() if not math.isnan(value)])
    mean = float(per_seed.mean()) if len(per_seed) else math.nan
    # The reference row has its absolute value, which is not comparable with a published difference.
    is_reference = measure.relative and base is None
    published = math.nan if printed is None or is_reference else printed.value
    absolute = "absolute value: other rows are relative to it" if is_reference else ""
    return replace(
        figure,
        measure=measure.name,
        published=published,
        published_spread=math.nan if printed is None or printed.spread is None else printed.spread,
        ours=mean,
        ours_sd=float(per_seed.std(ddof=1)) if len(per_seed) > 1 else math.nan,
        difference=math.nan if figure.published_on else mean - published,  # meaningless on another data set
        seeds=len(per_seed),
        relative_to=base or "",
        note=figure.note if math.isnan(mean) else absolute,
        per_seed=tuple(float(value) for value in per_seed),
    )


def _mean_per_seed(
    table: PaperTable, row: TableRow, condition: Condition, seeds: int, values: Values
) -> dict[int, dict[str, float]]:
    """seed -> measure -> mean over all trials and masks, for the seeds whose runs are all finished."""
    masks = [mask.label_mask() for mask in table.cell(row, condition).masks]
    means = {}
    for seed in range(seeds):
        runs = [
            CellRun(row.name, condition.name, trial, mask, seed)
            for trial in range(len(condition.trials))
            for mask in masks
        ]
        if all(run in values for run in runs):
            means[seed] = {
                measure.name: float(np.mean([values[run][measure.name] for run in runs])) for measure in table.measures
            }
    return means
