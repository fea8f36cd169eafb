"""`reproduce`: the cells of a published table in turn, each kept when it is finished, beside what was printed."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halflabel import __version__
from halflabel.compare.bench import Bench
from halflabel.compare.grid import Contender, Grid, Outcome, Task, parse_budget
from halflabel.compare.grid import Hiding as Hidden
from halflabel.compare.loop import Watch, run_grid
from halflabel.compare.store import Store
from halflabel.datasets import DATASETS, Dataset, Split, layout_of, open_dataset
from halflabel.errors import UserError
from halflabel.files import plain
from halflabel.labels.table import LabelTable
from halflabel.method import recipes
from halflabel.reproduce.given import Given, read_given
from halflabel.reproduce.measure import GUESSES, measure
from halflabel.reproduce.outcome import Figure, Reproduction, Run, figures
from halflabel.reproduce.protocol import Cell, Condition, Measure, Row, Table
from halflabel.reproduce.published import PUBLISHED, paper_of
from halflabel.reproduce.setup import Changes, Setup, set_up
from halflabel.reproduce.tables import recipe_for
from halflabel.reproduce.words import by_condition, described, joined, stops

__all__ = ["reproduce"]

_LOGGED = {"accuracy_of_guesses": "accuracy"}  # where the log's name is not the measure's


@dataclass
class _Group:
    """Runs that share their data and all settings, and so a bench and a folder."""

    folder: str
    condition: Condition
    trial: int
    setup: Setup
    wanted: dict[tuple[Contender, Hidden], list[tuple[Row, Condition]]] = field(default_factory=dict)
    differs: dict[str, list[str]] = field(default_factory=dict)  # by condition


def reproduce(
    id: str,
    folder: Path,
    *,
    out: Path,
    rows: Sequence[str] = (),
    conditions: Sequence[str] = (),
    dataset: str | None = None,
    labels: Path | None = None,
    changes: Changes | None = None,
    seeds: int = 1,
    budget: float | str | None = None,
    cache: Path | None = None,
    force: bool = False,
    watch: Watch | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
) -> Reproduction:
    """Run a published table again on the data set in `folder`, or in the folder of the data set's name inside it.

    `rows` and `conditions` choose some by name, by part of the name or, rows, by method. Without `conditions`, those
    whose data set is not there are left out and said to be missing. Condition by condition, every row with seed 0, then
    with seed 1, and so on; each finished run is kept in `out`, and the same call goes on. `budget`, in seconds or as
    "30m", limits this call.

    `dataset` runs all on another data set than the paper's, beside whose figures ours then stand without a difference.
    `labels` is a file with the training labels that are known, such as a published list of single positives, in place
    of those that the protocol would draw.
    """
    started = time.monotonic()
    seconds = parse_budget(budget) if isinstance(budget, str) else budget
    deadline = None if seconds is None else started + seconds
    if seeds < 1:
        raise UserError(f"{seeds} seeds give no result", "use 1 or more")
    table, changes = recipe_for(id), changes or Changes()
    chosen = _with_bases(table, _chosen("row", rows, table.rows, lambda row: (row.name, row.method or "")))
    columns = _chosen("condition", conditions, table.conditions, lambda one: (one.name,))
    moved = {} if dataset is None else {one.name: one.dataset for one in columns if one.dataset != dataset}
    columns = columns if dataset is None else [condition.on(dataset) for condition in columns]
    shelf = _Shelf(folder)
    missing = shelf.missing(columns)
    if missing and (conditions or len(missing) == len(columns)):
        raise next(iter(missing.values()))
    columns = [condition for condition in columns if condition.name not in missing]
    groups = _groups(table, chosen, columns, changes, moved)
    given = None if labels is None else _read_labels(labels, groups, columns, shelf)
    total = seeds * sum(len(group.wanted) for group in groups)
    values: dict[Run, dict[str, float]] = {}
    failures: dict[Run, str] = {}
    protocol: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    left_out = before = 0
    for group in groups:
        bench, about, gone = _bench(table, group, shelf, out, cache, deadline, say, progress)
        for name in group.differs:
            protocol.setdefault(name, []).extend([*about, _labels(group, name, labels)])
            lost.setdefault(name, []).extend(gone)
        grid = _grid(group, seeds)
        bench.open()
        store = Store(out / group.folder)
        rare = {} if given is None else {"given labels": given.digest()}
        store.start({"halflabel": __version__, "table": id, **bench.identity(), **rare}, force=force)
        told = None if watch is None else _Offset(watch, before, total)
        try:
            found, left = run_grid(grid, bench, store, told, deadline)
        finally:
            if bad := bench.bad_images():
                store.write_csv("bad_images.csv", ["image", "path", "reason"], bad)
        before, left_out = before + grid.total, left_out + len(left)
        for task, outcome in found.items():
            for row, condition in group.wanted[task.pair]:
                hidden = Hidden(task.hiding.protocol, task.hiding.options)
                run = Run(row.name, condition.name, group.trial, hidden, task.seed)
                if outcome.error:
                    failures[run] = outcome.error
                else:
                    values[run] = _measured(table, row, bench, outcome, store, task)
    printed = PUBLISHED.get(id)
    found_figures = figures(table, chosen, columns, seeds, values, failures)
    result = Reproduction(
        id=id,
        paper=paper_of(id),
        caption=printed.caption if printed is not None else "",
        figures=tuple(_elsewhere(one, moved) for one in found_figures),
        on_hidden=tuple(_on_hidden(groups)),
        protocol={name: tuple(dict.fromkeys(lines)) for name, lines in protocol.items()},
        measures=tuple(described(one) for one in table.measures),
        differs=tuple(_differences(groups, columns, lost, seeds)),
        unsaid=tuple(by_condition({one.name: joined(one.training.unsaid) for one in columns})),
        notes=(*table.notes, *(printed.notes if printed is not None else ())),
        skipped=tuple(line for line in table.skipped(recipes()) if any(line.startswith(f"{r.name}: ") for r in chosen)),
        missing={name: str(error) for name, error in missing.items()},
        failures=tuple(f"{_named(run)}: {reason}" for run, reason in failures.items()),
        left_out=left_out,
    )
    result.write(out)
    return result


def _chosen(
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


def _with_bases(table: Table, rows: list[Row]) -> list[Row]:
    """The rows and those that their figures are relative to."""
    names = {row.name for row in rows} | {row.relative_to for row in rows}
    return [row for row in table.rows if row.name in names]


class _Shelf:
    """The data sets of a folder, each opened once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: dict[str, Dataset] = {}

    def missing(self, conditions: Sequence[Condition]) -> dict[str, UserError]:
        """The conditions whose data set cannot be opened, and why."""
        found = {}
        for condition in conditions:
            try:
                self.open(condition, 0)
            except UserError as error:
                found[condition.name] = error
        return found

    def open(self, condition: Condition, trial: int) -> Dataset:
        options = {**condition.options, **condition.trials[trial]}
        key = json.dumps([condition.dataset, options], sort_keys=True)
        if key not in self._opened:
            own = self.folder / condition.dataset
            self._opened[key] = open_dataset(condition.dataset, own if own.is_dir() else self.folder, **options)
        return self._opened[key]


def _groups(
    table: Table,
    rows: Sequence[Row],
    conditions: Sequence[Condition],
    changes: Changes,
    moved: Mapping[str, str],
) -> list[_Group]:
    known, groups = recipes(), dict[str, _Group]()
    for condition in conditions:
        for trial in range(len(condition.trials)):
            for row in rows:
                if row.method not in known:
                    continue
                cell = table.cell(row, condition)
                setup = set_up(cell, changes)
                name = _folder(cell, trial, setup.config.tune)
                group = groups.setdefault(name, _Group(name, condition, trial, setup))
                if group.setup.config != setup.config:
                    raise ValueError(f"{row.name} and others of {name} are to be trained in different ways")
                said = group.differs.setdefault(condition.name, [])
                if condition.name in moved:
                    said.append(f"the data set is {condition.dataset} instead of {moved[condition.name]}")
                said.extend(setup.differs)
                options = tuple(sorted(setup.options.items()))
                contender = Contender(row.name, cell.method, options, setup.lr, setup.weight_decay)
                for hiding in cell.hidings:
                    hidden = Hidden(hiding.protocol, tuple(sorted(hiding.options.items())))
                    group.wanted.setdefault((contender, hidden), []).append((row, condition))
    return list(groups.values())


def _folder(cell: Cell, trial: int, tune: str) -> str:
    """A name for all runs that share data and declared settings; what the user changes is for the store to compare."""
    condition, training = cell.condition, cell.condition.training
    shared = [condition.dataset, condition.options, condition.trials[trial], condition.sample, condition.with_positives]
    shared += [condition.select, condition.held_out, condition.validation, tune, training.start]
    shared += [{**cell.config, "tune": tune}, cell.settings, training.weak]
    if training.config.get("tune") == "head":  # the paper's own way of training heads, not the library's
        shared.append("as published")
    digest = hashlib.sha256(json.dumps(plain(shared), sort_keys=True).encode()).hexdigest()[:8]
    words = [condition.dataset, *(f"{key}{value}" for key, value in condition.trials[trial].items()), tune, digest]
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", "-".join(words))


def _labels(group: _Group, name: str, file: Path | None) -> str:
    """What training knows under a condition, in words, with the rows that know something else."""
    seen: dict[Hidden, list[str]] = {}
    usual: list[Hidden] = []
    for (_, hiding), for_whom in group.wanted.items():
        for row, condition in for_whom:
            if condition.name == name:
                seen.setdefault(hiding, []).append(row.name)
                usual += [hiding] if row.hiding is None else []
    parts = [one.name if one in usual else f"{one.name} ({', '.join(rows)})" for one, rows in seen.items()]
    source = f"; those of {file.name} with every seed" if file is not None else "; drawn anew with every seed"
    return f"labels that training sees: {', '.join(parts)}{source if any(one.protocol for one in seen) else ''}"


def _read_labels(file: Path, groups: Sequence[_Group], conditions: Sequence[Condition], shelf: _Shelf) -> LabelTable:
    """Put the labels of a file in the place of those that the runs would draw."""
    hidings = {hiding for group in groups for _, hiding in group.wanted if hiding.protocol}
    single = {"single-positive", "1-positive+negatives"}
    if len(groups) != 1 or len(conditions) != 1 or (len(hidings) > 1 and not {h.protocol for h in hidings} <= single):
        raise UserError(
            f"{file.name} holds the labels of one run, and more were asked for",
            "choose one column: --conditions NAME, and rows that learn from the same labels",
        )
    if not hidings:
        raise UserError("training sees all labels here, none are to be given", "leave --labels out")
    (group,) = groups
    given = read_given(file, shelf.open(group.condition, group.trial).train)
    group.wanted = {
        (contender, Given(hiding.protocol, hiding.options, given) if hiding.protocol else hiding): rows
        for (contender, hiding), rows in group.wanted.items()
    }
    return given


def _on_hidden(groups: Sequence[_Group]) -> list[str]:
    """The conditions whose epochs are chosen by labels that are hidden from training."""
    return [
        name
        for group in groups
        if group.condition.select == "all labels" and any(hiding.protocol for _, hiding in group.wanted)
        for name in group.differs
    ]


def _elsewhere(figure: Figure, moved: Mapping[str, str]) -> Figure:
    """A figure of another data set than the paper's says nothing by its difference."""
    if figure.condition not in moved:
        return figure
    return replace(figure, difference=math.nan, published_on=moved[figure.condition])


def _grid(group: _Group, seeds: int) -> Grid:
    contenders = tuple(dict.fromkeys(contender for contender, _ in group.wanted))
    hidings = tuple(dict.fromkeys(hiding for _, hiding in group.wanted))
    unwanted = frozenset((c, h) for c in contenders for h in hidings if (c, h) not in group.wanted)
    return Grid(contenders, hidings, seeds, "none", unwanted)


def _bench(
    table: Table,
    group: _Group,
    shelf: _Shelf,
    out: Path,
    cache: Path | None,
    deadline: float | None,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] | None,
) -> tuple[Bench, list[str], list[str]]:
    """The bench of a group, what it is in words, and what its data set lacks."""
    condition, setup = group.condition, group.setup
    opened = shelf.open(condition, group.trial)
    wanted = ["train", "test", *([condition.validation] if condition.validation else [])]
    splits: dict[str, Split] = {}
    about, gone = [f"{DATASETS[condition.dataset].title}; {'; '.join(opened.notes) or 'official split'}"], []
    for name in wanted:
        if name not in opened.splits:
            raise UserError(f"{condition.dataset} has no {name} images to choose epochs by", "leave --dataset out")
        split = opened.splits[name]
        if name == "train" and condition.sample < 1:
            split = split.sample(condition.sample)
        if condition.with_positives:
            split = split.with_positives()
        splits[name] = split.on_disk()
        if not len(splits[name]):
            raise UserError(f"not one {name} image of {condition.dataset} is there", layout_of(condition.dataset).fix())
        if lacking := len(split) - len(splits[name]):
            gone.append(f"{lacking} of {len(split)} {name} images are not in the folder")
    about.append(
        f"{len(splits['train'])} training images"
        + (f", a sample of {100 * condition.sample:g} % that keeps class frequencies" if condition.sample < 1 else "")
        + f"; {len(splits['test'])} test images"
        + ("; only images that show a class" if condition.with_positives else "")
    )
    about.append(f"tested: {condition.tested}")
    config = setup.config
    about.append(
        f"{config.backbone}{'' if setup.pretrained else ' from random weights'}, {config.size or 'native'} px "
        f"({config.resize}), {'head on frozen features' if config.tune == 'head' else 'all tuned'}, "
        f"{config.settings.epochs} epochs of {config.settings.optimizer}, batches of {config.settings.batch_size}"
        + (", mirror images as only augmentation" if config.crop == 1 and config.tune == "all" else "")
        + stops(config.settings.patience)
    )
    validation = splits.get(condition.validation)
    bench = Bench(
        splits["train"].labels,
        splits["train"].pictures(),
        config,
        test=splits["test"].labels,
        test_images=splits["test"].pictures(),
        validation=None if validation is None else validation.labels,
        validation_images=None if validation is None else validation.pictures(),
        select="hidden" if condition.select == "all labels" else "known",
        pretrained=setup.pretrained,
        truth=any(one.metric in GUESSES for one in table.measures),
        cache=cache if cache is not None else out.parent / "cache",  # so that tables share what they need alike
        deadline=deadline,
        say=say,
        progress=progress,
    )
    return bench, about, gone


class _Offset:
    """Passes on how one group gets on as part of the whole; the time left is not known for the others."""

    def __init__(self, watch: Watch, before: int, total: int) -> None:
        self.watch, self.before, self.total = watch, before, total

    def task_starts(self, task: Task, number: int, total: int, left: float | None) -> None:
        last = self.before + total == self.total
        self.watch.task_starts(task, self.before + number, self.total, left if last else None)

    def epoch_ends(self, epoch: int, epochs: int) -> None:
        self.watch.epoch_ends(epoch, epochs)

    def task_ends(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
        self.watch.task_ends(task, outcome, self.before + number, self.total)


def _measured(table: Table, row: Row, bench: Bench, outcome: Outcome, store: Store, task: Task) -> dict[str, float]:
    """All measures of a finished run; NaN where one says nothing of such a run."""
    logits = torch.from_numpy(store.logits(task))
    labels = torch.from_numpy(bench.test.dense())
    readable = ~torch.isnan(logits).any(1)
    logits, labels = logits[readable], labels[readable]
    stats = bench.rest.stats()
    counts = torch.from_numpy(stats.positives + stats.negatives)
    one_each = bool((((labels > 0).sum(1) == 1) & (labels != 0).all(1)).all())
    both_kinds = {one.metric == "accuracy" for one in table.measures} == {True, False}
    return {
        one.name: _value(one, row.measured_as.get(one.name, one.metric), logits, labels, counts, outcome)
        # A table of both kinds: accuracy is for images of one class each, the others are for the rest.
        if not both_kinds or (one.metric == "accuracy") == one_each
        else math.nan
        for one in table.measures
    }


def _value(one: Measure, metric: str, logits: Tensor, labels: Tensor, counts: Tensor, outcome: Outcome) -> float:
    if metric not in GUESSES:
        return measure(metric, logits, labels, counts=counts if "group" in one.options else None, **one.options)
    name = _LOGGED.get(metric, metric)
    # The weights that are tested are those of this epoch, so later guesses are not theirs.
    seen = [line[name] for line in outcome.log[: outcome.best_epoch] if line.get(name) is not None]
    return 100 * float(seen[-1]) if seen else math.nan


def _differences(
    groups: Sequence[_Group], conditions: Sequence[Condition], lost: Mapping[str, Sequence[str]], seeds: int
) -> list[str]:
    """What is not the paper's setting, and under which conditions."""
    found: dict[str, list[str]] = {condition.name: [] for condition in conditions}
    for group in groups:
        for name, lines in group.differs.items():
            found[name] += lines
        same: dict[tuple[Any, ...], dict[str, None]] = {}
        for (contender, hiding), for_whom in group.wanted.items():
            for row, condition in for_whom:
                what = (condition.name, hiding, contender.method, contender.options, contender.lr)
                same.setdefault(what, {})[row.name] = None
        for what, names in same.items():
            if len(names) > 1:
                found[what[0]].append(f"the rows {' and '.join(names)} are the same experiment in this run")
    for name, gone in lost.items():
        found[name] += gone
    several = f"the mean ± standard deviation over {seeds} seeds" if seeds > 1 else "of one seed, without a spread"
    return [
        *by_condition(found),
        f"our figures are {several}, however many runs the paper's are the mean of",
    ]


def _named(run: Run) -> str:
    trial = f", trial {run.trial + 1}" if run.trial else ""
    return f"{run.row}, {run.condition}{trial}, labels {run.hiding.name}, seed {run.seed}"
