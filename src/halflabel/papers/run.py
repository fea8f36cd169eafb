"""`reproduce`: the cells of a published table in turn, each kept when it is finished, beside what was printed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.experiments.bench import Bench
from halflabel.experiments.grid import LabelMask, Outcome, Task, parse_budget
from halflabel.experiments.run_grid import run_grid
from halflabel.experiments.store import Store
from halflabel.methods.base import recipes
from halflabel.methods.parts.label_graph import from_file
from halflabel.papers.describe import by_condition, described, joined, labels_seen, rows_differ
from halflabel.papers.given_labels import Given, give
from halflabel.papers.measure import GIVEN, GUESSES, given_shares, measure
from halflabel.papers.plan import Group, choose, grid_of, groups_of, with_bases
from halflabel.papers.published import PUBLISHED, paper_of
from halflabel.papers.result import Figure, Reproduction, Run, figures
from halflabel.papers.settings import Changes
from halflabel.papers.spec import Condition, Measure, Row, Table
from halflabel.papers.stage import Shelf, bench_of
from halflabel.papers.tables import recipe_for
from halflabel.training.callbacks import Callback, CallbackList

__all__ = ["cache_for", "reproduce"]

_LOGGED = {"accuracy_of_guesses": "accuracy"}  # where the log's name is not the measure's


def reproduce(
    id: str,
    folder: Path,
    *,
    out: Path,
    rows: Sequence[str] = (),
    conditions: Sequence[str] = (),
    dataset: str | None = None,
    labels: Path | None = None,
    graph: Path | None = None,
    changes: Changes | None = None,
    seeds: int = 1,
    budget: float | str | None = None,
    cache: Path | None = None,
    force: bool = False,
    callback: Callback | None = None,
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
    of those that the protocol would draw. `graph` is a CSV file of rows class,class,weight for the rows that need a
    label graph; without it they are skipped. Features, and the model that rows begin with where there is one, are kept
    in `cache`: by default in the folder "cache" beside `out`, so that tables share what they need alike, or in the one
    inside `out`, where an earlier version made that.
    """
    started = time.monotonic()
    seconds = parse_budget(budget) if isinstance(budget, str) else budget
    deadline = None if seconds is None else started + seconds
    if seeds < 1:
        raise UserError(f"{seeds} seeds give no result", "use 1 or more")
    table, changes = recipe_for(id), changes or Changes()
    table = table if graph is None else table.given(graph)
    chosen = with_bases(table, choose("row", rows, table.rows, lambda row: (row.name, row.method or "")))
    columns = choose("condition", conditions, table.conditions, lambda one: (one.name,))
    moved = {} if dataset is None else {one.name: one.dataset for one in columns if one.dataset != dataset}
    columns = columns if dataset is None else [condition.on(dataset) for condition in columns]
    shelf, cache = Shelf(folder), cache_for(out) if cache is None else cache
    missing = shelf.missing(columns)
    if missing and (conditions or len(missing) == len(columns)):
        raise next(iter(missing.values()))
    columns = [condition for condition in columns if condition.name not in missing]
    groups = groups_of(table, chosen, columns, changes, moved)
    if graph is not None:
        for condition in columns:  # what is wrong with it is said before anything is trained
            from_file(graph, shelf.open(condition, 0).train.classes)
    given = None if labels is None else give(labels, groups, columns, shelf)
    total = seeds * sum(len(group.wanted) for group in groups)
    values: dict[Run, dict[str, float]] = {}
    failures: dict[Run, str] = {}
    protocol: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    left_out = before = 0
    for group in groups:
        bench, about, gone = bench_of(table, group, shelf, cache, deadline, say, progress)
        about += [] if given is None else [given.covers(bench.table)]
        for name in group.differs:
            protocol.setdefault(name, []).extend([*about, _labels(group, name, labels)])
            lost.setdefault(name, []).extend(gone)
        grid = grid_of(group, seeds)
        bench.open()
        store = Store(out / group.folder)
        rare = {} if given is None else {"given labels": given.labels.digest()}
        store.start({"halflabel": __version__, "table": id, **bench.identity(), **rare}, force=force)
        offset_callback = None if callback is None else _TaskOffset(callback, before, total)
        try:
            found, left = run_grid(grid, bench, store, offset_callback, deadline)
        finally:
            if bad := bench.bad_images():
                store.write_csv("bad_images.csv", ["image", "path", "reason"], bad)
        before, left_out = before + grid.total, left_out + len(left)
        for task, outcome in found.items():
            for row, condition in group.wanted[task.pair]:
                hidden = LabelMask(task.label_mask.protocol, task.label_mask.options)
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
        on_hidden=tuple(dict.fromkeys(_on_hidden(groups))),
        protocol={name: tuple(dict.fromkeys(lines)) for name, lines in protocol.items()},
        measures=tuple(described(one) for one in table.measures),
        differs=tuple(_differences(groups, columns, [row for row in chosen if row.runs(recipes())], lost, seeds)),
        unsaid=tuple(by_condition({one.name: joined(one.training.unsaid) for one in columns})),
        notes=(
            *by_condition({one.name: one.notes for one in columns}),
            *table.notes,
            *(printed.notes if printed is not None else ()),
        ),
        skipped=tuple(line for line in table.skipped(recipes()) if any(line.startswith(f"{r.name}: ") for r in chosen)),
        missing={name: str(error) for name, error in missing.items()},
        failures=tuple(f"{_named(run)}: {reason}" for run, reason in failures.items()),
        left_out=left_out,
    )
    result.write(out)
    return result


def cache_for(out: Path) -> Path:
    """Where the features of a table are kept, if nobody says where."""
    inside = out / "cache"
    return inside if inside.is_dir() else out.parent / "cache"


def _labels(group: Group, name: str, file: Path | None) -> str:
    """What training knows under a condition, in words, with the rows that know something else."""
    seen: dict[LabelMask, list[str]] = {}
    usual: list[LabelMask] = []
    for (_, hiding), for_whom in group.wanted.items():
        for row, condition in for_whom:
            if condition.name == name:
                seen.setdefault(hiding, []).append(row.name)
                usual += [hiding] if row.own_hiding(condition) is None else []
    drawn = [one for one in seen if one in usual and one.protocol]
    text = [labels_seen([one for one in seen if one in usual])] if usual else []
    if file is not None:  # it is in the place of those that would be drawn
        text = [f"those of {file.name} with every seed" + (f", in place of {labels_seen(drawn)}" if drawn else "")]
    for one, rows in seen.items():
        if one not in usual:
            besides = file is not None and one.protocol == "1-positive+negatives"
            text.append(f"{'those and all negatives' if besides else labels_seen([one])} ({', '.join(rows)})")
    if file is None and any(one.protocol for one in seen):
        text.append("drawn anew with every seed")
    return f"labels that training sees: {'; '.join(text)}"


def _on_hidden(groups: Sequence[Group]) -> list[str]:
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


class _InWords(Task):
    """A task that tells what training knows as the protocol does."""

    def describe(self) -> str:
        given = " as given" if isinstance(self.label_mask, Given) else ""
        return f"{self.candidate.name}, {labels_seen([self.label_mask])}{given}, seed {self.seed}, lr {self.lr:.2g}"

    @classmethod
    def of(cls, task: Task) -> _InWords:
        return cls(task.candidate, task.label_mask, task.seed, task.lr, task.options)


class _TaskOffset(CallbackList):
    """Numbers the tasks of one group within all groups; the time left is known only in the last group."""

    def __init__(self, callback: Callback, before: int, total: int) -> None:
        super().__init__(callback)
        self.before, self.total = before, total

    def on_task_start(self, task: Task, number: int, total: int, seconds_left: float | None) -> None:
        is_last = self.before + total == self.total
        seconds_left = seconds_left if is_last else None
        super().on_task_start(_InWords.of(task), self.before + number, self.total, seconds_left)

    def on_task_end(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
        super().on_task_end(_InWords.of(task), outcome, self.before + number, self.total)


def _measured(table: Table, row: Row, bench: Bench, outcome: Outcome, store: Store, task: Task) -> dict[str, float]:
    """All measures of a finished run; NaN where one says nothing of such a run."""
    logits = torch.from_numpy(store.logits(task))
    labels = torch.from_numpy(bench.test.dense())
    readable = ~torch.isnan(logits).any(1)
    logits, labels = logits[readable], labels[readable]
    stats = bench.rest.stats()
    counts = torch.from_numpy(stats.positives + stats.negatives)
    one_each = bool((((labels > 0).sum(1) == 1) & (labels != 0).all(1)).all())
    given = {}
    if any(one.metric in GIVEN for one in table.measures):
        given = given_shares(bench.divide(task.label_mask, task.seed).known, bench.rest)
    both_kinds = {one.metric == "accuracy" for one in table.measures} == {True, False}
    return {
        one.name: _value(one, row.measured_as.get(one.name, one.metric), logits, labels, counts, outcome, given)
        # A table of both kinds: accuracy is for images of one class each, the others are for the rest.
        if not both_kinds or (one.metric == "accuracy") == one_each
        else math.nan
        for one in table.measures
    }


def _value(
    one: Measure,
    metric: str,
    logits: Tensor,
    labels: Tensor,
    counts: Tensor,
    outcome: Outcome,
    given: Mapping[str, float],
) -> float:
    if metric in GIVEN:
        return given[metric]
    if metric not in GUESSES:
        return measure(metric, logits, labels, counts=counts if "group" in one.options else None, **one.options)
    name = _LOGGED.get(metric, metric)
    # The weights that are tested are those of this epoch, so later guesses are not theirs.
    seen = [line[name] for line in outcome.log[: outcome.best_epoch] if line.get(name) is not None]
    return 100 * float(seen[-1]) if seen else math.nan


def _differences(
    groups: Sequence[Group],
    conditions: Sequence[Condition],
    rows: Sequence[Row],
    lost: Mapping[str, Sequence[str]],
    seeds: int,
) -> list[str]:
    """What is not the paper's setting, and under which conditions."""
    found: dict[str, list[str]] = {condition.name: [] for condition in conditions}
    same: dict[tuple[Any, ...], dict[str, None]] = {}
    for group in groups:
        for name, lines in group.differs.items():
            found[name] += lines
        for (candidate, hiding), for_whom in group.wanted.items():
            for row, condition in for_whom:
                what = (condition.name, hiding, candidate.method, candidate.options, candidate.lr)
                how = (repr(group.setup.config), group.setup.start, group.condition.labelled_only)
                same.setdefault((*what, *how), {})[row.name] = None
    for (name, *_), names in same.items():
        if len(names) > 1:
            found[name].append(f"the rows {' and '.join(names)} are the same experiment in this run")
    for name, gone in lost.items():
        found[name] += gone
    several = f"the mean ± standard deviation over {seeds} seeds" if seeds > 1 else "of one seed, without a spread"
    return [
        *by_condition(found),
        *rows_differ(rows),
        f"our figures are {several}, however many runs the paper's are the mean of",
    ]


def _named(run: Run) -> str:
    trial = f", trial {run.trial + 1}" if run.trial else ""
    return f"{run.row}, {run.condition}{trial}, {labels_seen([run.hiding])}, seed {run.seed}"
