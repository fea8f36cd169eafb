"""Published and measured figures side by side."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halflabel.experiments.grid import LabelMask
from halflabel.methods.base import recipes
from halflabel.papers.spec import Condition, Row, Table
from halflabel.system.files import atomic_write, to_json_value, write_json

__all__ = ["Figure", "Reproduction", "Run", "figures"]


class Run(NamedTuple):
    """One training run of the table: a row under a condition, with one trial, one hiding and one seed."""

    row: str
    condition: str
    trial: int
    hiding: LabelMask
    seed: int


@dataclass(frozen=True)
class Figure:
    """One figure of a table, in percent: as published, as measured here, and the difference; NaN where there is none.

    `ours` is the mean over the seeds of which every run is finished, `ours_sd` their standard deviation; a seed's own
    figure is the mean over the table's shares and trials. `relative_to` names the row that both are the difference to.
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
    runs: int  # that are finished
    of_runs: int  # that were asked for
    relative_to: str = ""
    note: str = ""  # why there is no figure of ours
    published_on: str = ""  # the paper's data set, where ours is another
    per_seed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """A table run again: its figures, how they were measured, and every way in which that is not the paper's.

    `differs`, `unsaid` and `failures` are sentences with the conditions or runs they are about.
    """

    id: str
    paper: str
    caption: str
    figures: tuple[Figure, ...]
    protocol: Mapping[str, tuple[str, ...]]  # by condition
    measures: tuple[str, ...]
    differs: tuple[str, ...]
    unsaid: tuple[str, ...]
    notes: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # conditions whose data set is not there, and why
    failures: tuple[str, ...] = ()
    left_out: int = 0  # runs that the budget had no room for
    on_hidden: tuple[str, ...] = ()  # conditions whose epochs were chosen by labels hidden from training

    @property
    def finished(self) -> int:
        """How many figures of ours there are."""
        return sum(not math.isnan(figure.ours) for figure in self.figures)

    def write(self, folder: Path) -> None:
        """reproduction.csv with a line per figure, reproduction.json with everything."""
        names = [one.name for one in fields(Figure) if one.name != "per_seed"]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["table", *names, "per_seed"])
        for figure in self.figures:
            cells = [to_json_value(getattr(figure, name)) for name in names]
            seeds = " ".join(f"{value:.6g}" for value in figure.per_seed)
            writer.writerow([self.id, *("" if cell is None else cell for cell in cells), seeds])
        with atomic_write(folder / "reproduction.csv") as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")
        write_json(folder / "reproduction.json", self.to_json())

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = to_json_value(asdict(self))
        return content


def figures(
    table: Table,
    rows: Sequence[Row],
    conditions: Sequence[Condition],
    seeds: int,
    values: Mapping[Run, Mapping[str, float]],
    failures: Mapping[Run, str],
) -> list[Figure]:
    """Every figure of the chosen rows and conditions, from what the finished runs measured."""
    found, known = [], recipes()
    for condition in conditions:
        there = [row for row in rows if row.under(condition)]
        own = {row.name: _seeds(table, row, condition, seeds, values) for row in there if row.runs(known)}
        for row in there:
            skipped = not row.runs(known)
            done = {} if skipped else own[row.name]
            runs = sum(run.row == row.name and run.condition == condition.name for run in values)
            each = 0 if skipped else len(condition.trials) * len(table.cell(row, condition).hidings)
            failed = any(run.row == row.name and run.condition == condition.name for run in failures)
            for one in table.measures:
                printed = table.number(row.name, condition.name, one.name)
                base = row.relative_to if one.relative else None
                ours = {seed: value[one.name] for seed, value in done.items()}
                if base is not None:
                    ours = {seed: v - own[base][seed][one.name] for seed, v in ours.items() if seed in own[base]}
                numbers = np.array([value for value in ours.values() if not math.isnan(value)])
                mean = float(numbers.mean()) if len(numbers) else math.nan
                why = ""
                if math.isnan(mean):
                    why = _why(row, skipped, failed, runs, each * seeds)
                # A base is printed as it is, and nothing published is comparable with it.
                absolute = one.relative and base is None
                value = math.nan if printed is None or absolute else printed.value
                found.append(
                    Figure(
                        row=row.name,
                        condition=condition.name,
                        measure=one.name,
                        published=value,
                        published_spread=math.nan if printed is None or printed.spread is None else printed.spread,
                        ours=mean,
                        ours_sd=float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan,
                        difference=mean - value,
                        seeds=len(numbers),
                        runs=runs,
                        of_runs=each * seeds,
                        relative_to=base or "",
                        note=why or ("as it is: others are relative to it" if absolute else ""),
                        per_seed=tuple(float(number) for number in numbers),
                    )
                )
    return found


def _why(row: Row, skipped: bool, failed: bool, runs: int, of: int) -> str:
    if skipped:
        missing = "no --graph FILE" if row.graph else f"the method {row.method!r} is not here"
        return "skipped: " + (missing if row.method else "only published")
    if failed:
        return "failed"
    return "does not apply" if runs == of else f"{runs} of {of} runs finished"


def _seeds(
    table: Table, row: Row, condition: Condition, seeds: int, values: Mapping[Run, Mapping[str, float]]
) -> dict[int, dict[str, float]]:
    """For every seed of which all trials and hidings are there, the mean over them."""
    hidings = [LabelMask(h.protocol, tuple(sorted(h.options.items()))) for h in table.cell(row, condition).hidings]
    found = {}
    for seed in range(seeds):
        runs = [
            Run(row.name, condition.name, trial, hiding, seed)
            for trial in range(len(condition.trials))
            for hiding in hidings
        ]
        if all(run in values for run in runs):
            found[seed] = {one.name: float(np.mean([values[run][one.name] for run in runs])) for one in table.measures}
    return found
