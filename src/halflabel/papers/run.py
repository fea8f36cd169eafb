"""`reproduce`: train the cells of a published table one after the other and compare them with the printed numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from halflabel import __version__
from halflabel.comparison.bench import Bench, run_grid
from halflabel.comparison.grid import Candidate, Grid, Outcome, Task, deadline_of
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.sources import split_data
from halflabel.comparison.store import Store
from halflabel.errors import UserError
from halflabel.papers.datasets import DATASETS, Dataset, Split, dataset_layout, open_dataset
from halflabel.papers.measure import RELABEL_METRICS, measure_task
from halflabel.papers.result import (
    CellRun,
    Reproduction,
    collect_figures,
    describe_masks,
    describe_measure,
    group_lines,
)
from halflabel.papers.settings import CellSetup, Overrides, set_up_cell
from halflabel.papers.spec import Cell, Condition, PaperTable, TableRow
from halflabel.papers.tables import find_table
from halflabel.system.files import cache_folder, to_json_value, write_csv
from halflabel.system.format import counted
from halflabel.system.reporter import SILENT, Reporter

T = TypeVar("T")


@dataclass
class RunGroup:
    """Runs that share data, settings, bench and result folder; `jobs`: what is trained -> the cells that use it."""

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
                    group.jobs.setdefault((candidate, mask), []).append((row, condition))
    return list(groups.values())


def _folder_name(cell: Cell, trial: int, tune: str) -> str:
    """A name for all runs that share data and declared settings; the store compares the user's overrides."""
    condition, training = cell.condition, cell.condition.training
    shared: list[Any] = [condition.dataset, condition.dataset_options, condition.trials[trial]]
    shared += [condition.sample, condition.with_positives]
    shared += [condition.select, condition.held_out, condition.validation_split, tune, training.backbone_weights]
    shared += [{**cell.config, "tune": tune}, training.weak_view]
    if training.config.get("tune") == "head":  # the paper's own way of training heads, not the library's
        shared.append("as published")
    other_test = condition.test_split if condition.test_split != "test" else ""
    for rare in (training.initial_model, condition.labelled_only, other_test):
        shared += [rare] if rare else []  # defaults are left out: they do not change the digest of existing folders
    digest = hashlib.sha256(json.dumps(to_json_value(shared), sort_keys=True).encode()).hexdigest()[:8]
    words = [condition.dataset, *(f"{key}{value}" for key, value in condition.trials[trial].items()), tune, digest]
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", "-".join(words))


def reproduce(
    id: str,
    folder: Path,
    *,
    out: Path,
    rows: Sequence[str] = (),
    conditions: Sequence[str] = (),
    dataset: str | None = None,
    overrides: Overrides | None = None,
    seeds: int = 1,
    budget: float | str | None = None,
    cache: Path | None = None,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> Reproduction:
    """Run a published table again on the data set in `folder`, or in the subfolder with the data set's name.

    `rows` and `conditions` select some by name, by part of the name or, rows, by method; conditions whose data set is
    missing are left out and reported. On another `dataset` than the paper's no differences are computed. Each finished
    run is stored in `out`; the same call continues there.
    """
    deadline = deadline_of(budget)
    table = find_table(id)
    named = select_by_name("row", rows, table.rows, lambda row: (row.name, row.method or ""))
    names = {row.name for row in named} | {row.relative_to for row in named}
    selected_rows = [row for row in table.rows if row.name in names]
    selected = select_by_name("condition", conditions, table.conditions, lambda condition: (condition.name,))
    paper_datasets: dict[str, str] = {}
    if dataset is not None:
        paper_datasets = {each.name: each.dataset for each in selected if each.dataset != dataset}
        selected = [each.on_dataset(dataset) for each in selected]
    datasets = _DatasetFolder(folder)
    missing = datasets.missing(selected)
    if missing and (conditions or len(missing) == len(selected)):
        raise next(iter(missing.values()))
    selected = [each for each in selected if each.name not in missing]
    groups = plan_groups(table, selected_rows, selected, overrides or Overrides(), paper_datasets)
    run = _TableRun(
        table=table,
        rows=selected_rows,
        conditions=selected,
        groups=groups,
        paper_datasets=paper_datasets,
        datasets=datasets,
        seeds=seeds,
        out=out,
        cache=default_cache(out) if cache is None else cache,
        reporter=replace(reporter, deadline=deadline),
    )
    for group in groups:
        run.run_group(group, force=force)
    result = run.result(missing)
    result.write(out)
    return result


def default_cache(out: Path) -> Path:
    """The cache next to `out`, so that tables share it."""
    return cache_folder(out.parent)


class _DatasetFolder:
    """The data sets in a folder; each is opened once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: dict[str, Dataset] = {}

    def missing(self, conditions: Sequence[Condition]) -> dict[str, UserError]:
        """The conditions whose data set cannot be opened, and why."""
        errors = {}
        for condition in conditions:
            try:
                self.open(condition, 0)
            except UserError as error:
                errors[condition.name] = error
        return errors

    def open(self, condition: Condition, trial: int) -> Dataset:
        options = {**condition.dataset_options, **condition.trials[trial]}
        key = json.dumps([condition.dataset, options], sort_keys=True)
        if key not in self._opened:
            subfolder = self.folder / condition.dataset
            folder = subfolder if subfolder.is_dir() else self.folder
            self._opened[key] = open_dataset(condition.dataset, folder, **options)
        return self._opened[key]

    def splits(self, condition: Condition, trial: int) -> tuple[dict[str, Split], list[str]]:
        """The images of the condition's splits that exist as files, and lines on images that are missing."""
        opened, splits, lost = self.open(condition, trial), dict[str, Split](), list[str]()
        for name in dict.fromkeys(("train", condition.test_split, condition.validation_split)):
            if not name:
                continue
            if name not in opened.splits:
                use = "test on" if name == condition.test_split else "choose epochs by"
                raise UserError(f"{condition.dataset} has no {name} images to {use}", "leave ‹dataset› out")
            split = opened.splits[name]
            if (published := _published_images(condition, name)) > len(split):
                lost.append(f"{len(split)} {name} images of {condition.dataset} instead of {published}")
            if name == "train" and condition.sample < 1:
                split = split.sample(condition.sample)
            if condition.with_positives:
                split = split.with_positives()
            splits[name] = split.on_disk()
            if not len(splits[name]):
                fix = dataset_layout(condition.dataset, **condition.dataset_options).fix()
                raise UserError(f"not one {name} image of {condition.dataset} is in the folder", fix)
            if number := len(split) - len(splits[name]):
                lost.append(f"{number} of {len(split)} {name} images are not in the folder")
        return splits, lost


def _published_images(condition: Condition, split: str) -> int:
    """The number of images in a split of the data set as it was published; 0 if it is not known."""
    sizes = DATASETS[condition.dataset].published
    is_usual = split in ("train", "test") and split not in condition.dataset_options
    return sizes[split == "test"] if sizes is not None and is_usual else 0


@dataclass
class _TableRun:
    """The state of one call of `reproduce`: what is run, and what the finished runs have measured."""

    table: PaperTable
    rows: list[TableRow]
    conditions: list[Condition]
    groups: list[RunGroup]
    paper_datasets: Mapping[str, str]
    datasets: _DatasetFolder
    seeds: int
    out: Path
    cache: Path
    reporter: Reporter
    values: dict[CellRun, dict[str, float]] = field(default_factory=dict)
    failures: dict[CellRun, str] = field(default_factory=dict)
    protocol: dict[str, list[str]] = field(default_factory=dict)  # by condition
    lost_images: dict[str, list[str]] = field(default_factory=dict)  # by condition
    tasks_left_out: int = 0

    def run_group(self, group: RunGroup, *, force: bool) -> None:
        """Train the runs of one group that are not stored yet, and measure all that are finished."""
        splits, lost = self.datasets.splits(group.condition, group.trial)
        bench = self._bench(group, splits)
        lines = self._describe_group(group, splits, bench)
        for name in group.differs:
            masks: dict[str, list[LabelMask]] = {}
            for (_, mask), cells in group.jobs.items():
                for row, condition in cells:
                    if condition.name == name:
                        masks.setdefault(row.name, []).append(mask)
            labels = group_lines({row: [describe_masks(each)] for row, each in masks.items()})
            lines_of_labels = [f"labels that training sees: {line}" for line in labels]
            self.protocol.setdefault(name, []).extend([*lines, *lines_of_labels])
            self.lost_images.setdefault(name, []).extend(lost)
        candidates, label_masks = (tuple(dict.fromkeys(each)) for each in zip(*group.jobs, strict=True))
        unused = {(candidate, mask) for candidate in candidates for mask in label_masks} - group.jobs.keys()
        grid = Grid(candidates, label_masks, self.seeds, "none", frozenset(unused))
        store = Store(self.out / group.folder)
        store.start({"halflabel": __version__, "table": self.table.id, **bench.identity()}, force=force)
        try:
            outcomes, left_out = run_grid(grid, bench, store, self.reporter)
        finally:
            if bad_images := bench.bad_images():
                write_csv(store.folder / "bad_images.csv", ["image", "path", "reason"], bad_images)
        self.tasks_left_out += len(left_out)
        for task, outcome in outcomes.items():
            self._record(group, bench, store, task, outcome)

    def _record(self, group: RunGroup, bench: Bench, store: Store, task: Task, outcome: Outcome) -> None:
        for row, condition in group.jobs[task.pair]:
            run = CellRun(row.name, condition.name, group.trial, task.label_mask, task.seed)
            if outcome.error:
                self.failures[run] = outcome.error
            else:
                self.values[run] = measure_task(self.table, row, bench, outcome, store, task)

    def _bench(self, group: RunGroup, splits: Mapping[str, Split]) -> Bench:
        condition, setup = group.condition, group.setup
        test, validation = splits[condition.test_split], splits.get(condition.validation_split)
        data = split_data(
            splits["train"].labels,
            splits["train"].load_images(),
            test=test.labels,
            test_images=test.load_images(),
            validation=None if validation is None else validation.labels,
            validation_images=None if validation is None else validation.load_images(),
        )
        return Bench(
            data,
            setup.config,
            select="hidden" if condition.select == "all labels" else "known",
            pretrained=setup.pretrained,
            truth=any(measure.metric in RELABEL_METRICS for measure in self.table.measures),
            labelled_only=condition.labelled_only,
            start=setup.start,
            cache=self.cache,
            reporter=self.reporter,
        )

    def _describe_group(self, group: RunGroup, splits: Mapping[str, Split], bench: Bench) -> list[str]:
        """Data, tested epoch and settings of a group."""
        condition, start = group.condition, group.setup.start
        images = [
            f"{len(splits['train'])} training images",
            f"{len(splits[condition.test_split])} images of the split {condition.test_split} to test on",
            *(["only images with a positive label"] if condition.with_positives else []),
            *(["images without a known label are not used for training"] if condition.labelled_only else []),
        ]
        if condition.sample < 1:
            images[0] += f", a sample of {100 * condition.sample:g} % with the same class frequencies"
        trained = dict.fromkeys(bench.describe(candidate) for candidate, _ in group.jobs)
        lines = [
            "; ".join([DATASETS[condition.dataset].title, *self.datasets.open(condition, group.trial).notes]),
            "; ".join(images),
            f"tested: {condition.describe_selection()}",
            *(f"trained: {line}" for line in trained),
        ]
        if start is not None:
            among = " on the labelled images" if start.labelled_only else ""
            rows = "; ".join(row.name for row in group.rows)
            lines.append(f"{rows}: from the weights of {start.method} after {counted(start.epochs, 'epoch')}{among}")
        return lines

    def result(self, missing: Mapping[str, UserError]) -> Reproduction:
        """The numbers of all finished runs, and how they were measured."""
        table, skipped = self.table, self.table.skipped()
        settings = {each.name: each.training.unsaid for each in self.conditions}
        unsaid = {name: [", ".join(words)] if words else [] for name, words in settings.items()}
        return Reproduction(
            id=table.id,
            paper=table.paper,
            caption=table.caption,
            figures=tuple(
                collect_figures(
                    *(table, self.rows, self.conditions, self.seeds, self.values, self.failures, self.paper_datasets)
                )
            ),
            on_hidden=tuple(
                dict.fromkeys(name for group in self.groups if group.selects_on_hidden for name in group.differs)
            ),
            protocol={name: tuple(dict.fromkeys(lines)) for name, lines in self.protocol.items()},
            measures=tuple(describe_measure(measure) for measure in table.measures),
            differs=tuple(self._deviations()),
            unsaid=tuple(group_lines(unsaid)),
            notes=(
                *group_lines({condition.name: condition.notes for condition in self.conditions}),
                *table.protocol,
                *table.notes,
            ),
            skipped=tuple(f"{row.name}: {skipped[row.name]}" for row in self.rows if row.name in skipped),
            missing={name: str(error) for name, error in missing.items()},
            failures=tuple(f"{_describe_run(run)}: {reason}" for run, reason in self.failures.items()),
            left_out=self.tasks_left_out,
        )

    def _deviations(self) -> list[str]:
        """What is not as in the paper, with the conditions or rows concerned, one line each."""
        by_condition: dict[str, list[str]] = {condition.name: [] for condition in self.conditions}
        by_row = {row.name: list(row.differs) for row in self.rows if row.method}
        same: dict[tuple[Any, ...], dict[str, None]] = {}
        for group in self.groups:
            for name, lines in group.differs.items():
                by_condition[name] += lines
            for name, lines in group.row_differs.items():
                by_row[name] += lines
            settings = (repr(group.setup.config), group.setup.start, group.condition.labelled_only)
            for (candidate, mask), cells in group.jobs.items():
                for row, condition in cells:
                    experiment = (mask, candidate.method, candidate.options, candidate.lr, *settings)
                    same.setdefault((condition.name, *experiment), {})[row.name] = None
        for (name, *_), row_names in same.items():
            if len(row_names) > 1:
                by_condition[name].append(f"the rows {' and '.join(row_names)} are the same experiment in this run")
        for name, lines in self.lost_images.items():
            by_condition[name] += lines
        spread = f"mean ± standard deviation over {self.seeds} seeds" if self.seeds > 1 else "one seed, without spread"
        return [
            *group_lines(by_condition),
            *group_lines(by_row, "all rows"),
            f"our numbers: {spread}, regardless of the number of runs in the paper",
        ]


def _describe_run(run: CellRun) -> str:
    trial = f", trial {run.trial + 1}" if run.trial else ""
    return f"{run.row}, {run.condition}{trial}, {describe_masks([run.mask])}, seed {run.seed}"
