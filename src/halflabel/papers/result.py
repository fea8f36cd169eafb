"""Published and reproduced numbers side by side, their files, and protocols, label masks and measures in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halflabel.comparison.label_mask import LabelMask
from halflabel.papers.measure import LABEL_METRICS, METRICS, RELABEL_METRICS
from halflabel.papers.spec import Condition, PaperMeasure, PaperTable, TableRow
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

    `ours` is the mean over the seeds whose runs are all finished; of one seed, the mean over label masks and trials.
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
    """The result of `reproduce`; the field names are the keys of reproduction.json."""

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
        published_on = paper_datasets.get(condition.name, "")
        for row in present:
            cell = (row.name, condition.name)
            runs = sum(run[:2] == cell for run in values)
            of_runs = 0 if row.method is None else seeds * len(condition.trials) * len(table.cell(row, condition).masks)
            reason = "does not apply" if runs == of_runs else f"{runs} of {of_runs} runs finished"
            if row.method is None:
                reason = "skipped: only the printed numbers are available"
            elif any(run[:2] == cell for run in failures):
                reason = "failed"
            for measure in table.measures:
                base = row.relative_to if measure.relative else None
                ours = {seed: means[measure.name] for seed, means in by_row.get(row.name, {}).items()}
                if base is not None:
                    both = ours.keys() & by_row[base].keys()
                    ours = {seed: ours[seed] - by_row[base][seed][measure.name] for seed in sorted(both)}
                per_seed = np.array([value for value in ours.values() if not math.isnan(value)])
                mean = float(per_seed.mean()) if len(per_seed) else math.nan
                # The reference row has its absolute value, which is not comparable with a published difference.
                is_reference = measure.relative and base is None
                published, spread = table.printed.get((*cell, measure.name), (math.nan, math.nan))
                published = math.nan if is_reference else published
                absolute = "absolute value: other rows are relative to it" if is_reference else ""
                figures.append(
                    TableFigure(
                        row=row.name,
                        condition=condition.name,
                        measure=measure.name,
                        published=published,
                        published_spread=spread,
                        ours=mean,
                        ours_sd=float(per_seed.std(ddof=1)) if len(per_seed) > 1 else math.nan,
                        difference=math.nan if published_on else mean - published,  # meaningless on another data set
                        seeds=len(per_seed),
                        runs=runs,
                        of_runs=of_runs,
                        relative_to=base or "",
                        note=reason if math.isnan(mean) else absolute,
                        published_on=published_on,
                        per_seed=tuple(per_seed.tolist()),
                    )
                )
    return figures


def _mean_per_seed(
    table: PaperTable, row: TableRow, condition: Condition, seeds: int, values: Values
) -> dict[int, dict[str, float]]:
    """seed -> measure -> mean over all trials and masks, for the seeds whose runs are all finished."""
    masks, trials = table.cell(row, condition).masks, range(len(condition.trials))
    means = {}
    for seed in range(seeds):
        runs = [CellRun(row.name, condition.name, trial, mask, seed) for trial in trials for mask in masks]
        if all(run in values for run in runs):
            means[seed] = {
                measure.name: float(np.mean([values[run][measure.name] for run in runs])) for measure in table.measures
            }
    return means


_OPTIONS = {
    ("kind", "sklearn"): "not interpolated",
    ("kind", "interpolated"): "interpolated at all points",
    ("empty", "zero"): "a class without a positive test image counts as 0",
    ("no_negative", "one"): "a class without a negative test label counts as 1",
}


def describe_table(table: PaperTable) -> list[str]:
    """How the paper ran its table: each line once, with the conditions or rows it is about."""
    lines: dict[str, list[str]] = {}
    for condition in table.conditions:
        training = condition.training
        sample = f", {100 * condition.sample:g} % of the training images" if condition.sample < 1 else ""
        settings = {**training.config, "backbone weights": training.backbone_weights}
        lines[condition.name] = [
            f"data set {condition.dataset}{sample}",
            f"labels that training sees: {describe_masks(condition.masks)}",
            f"settings: {', '.join(f'{name} {value}' for name, value in settings.items())}",
            f"tested: the images of the split {condition.test_split}; {condition.describe_selection()}",
            *([f"not stated in the paper: {', '.join(training.unsaid)}"] if training.unsaid else []),
            *(f"not as in the paper: {line}" for line in training.differs),
            *condition.notes,
        ]
    own = {row.name: row.differs for row in table.rows if row.method}
    return [*group_lines(lines, most=3), *(f"not as in the paper: {line}" for line in group_lines(own, "all rows"))]


def describe_masks(masks: Iterable[LabelMask]) -> str:
    """Return the labels that masks leave known, as `compare --protocol` takes them."""
    return ", ".join(dict.fromkeys(mask.name for mask in masks))


def describe_measure(measure: PaperMeasure) -> str:
    options = ", ".join(_OPTIONS.get((name, value), f"{name} {value}") for name, value in measure.options.items())
    text = {**METRICS, **RELABEL_METRICS, **LABEL_METRICS}[measure.metric].partition(";")[0]
    relative = "; the difference to another row" if measure.relative else ""
    return f"{measure.name}: {text}" + (f" ({options})" if options else "") + relative


def group_lines(lines: Mapping[str, Sequence[str]], all_names: str = "", most: int | None = None) -> list[str]:
    """Each line once, after the names of the conditions or rows it is about, of which at most `most` are listed.

    >>> group_lines({"10 %": ["a", "b"], "20 %": ["a", "b"], "30 %": ["a"], "40 %": ["c"]}, most=2)
    ['10 % and 2 others: a', '10 %; 20 %: b', '40 %: c']
    >>> group_lines({"x": ["a"], "y": ["a"]}), group_lines({"x": ["a"], "y": ["a"]}, "all rows")
    (['a'], ['all rows: a'])
    """
    names_by_line: dict[str, list[str]] = {}
    for name, own_lines in lines.items():
        for line in dict.fromkeys(own_lines):
            names_by_line.setdefault(line, []).append(name)
    grouped = []
    for line, names in sorted(names_by_line.items(), key=lambda item: len(item[1]) < len(lines)):
        prefix = "; ".join(names) if most is None or len(names) <= most else f"{names[0]} and {len(names) - 1} others"
        if len(names) == len(lines) and (len(lines) > 1 or not all_names):
            prefix = all_names
        grouped.append(f"{prefix}: {line}" if prefix else line)
    return grouped
