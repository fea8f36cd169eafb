"""From finished tasks to the table: means, intervals from images and seeds together, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import metrics
from halflabel.experiments.bench import Bench
from halflabel.experiments.grid import Candidate, Grid, LabelMask, Outcome, Results, Task
from halflabel.experiments.store import Store
from halflabel.methods.base import recipe
from halflabel.system.files import to_json_value

__all__ = [
    "RESAMPLES",
    "Comparison",
    "Failure",
    "Interval",
    "LeftOut",
    "Row",
    "TaskScore",
    "TaskScorer",
    "common_seeds",
    "difference",
    "interval",
    "summarise",
]

RESAMPLES = 400
LEVEL = 0.95

K = TypeVar("K")


@dataclass(frozen=True)
class Row:
    """One line of the table: a method on the labels that a label mask leaves.

    mAP is the mean over the seeds that all methods of that hiding have finished, and so are all figures but `seed_sd`
    and those of `per_seed`; `behind` is the mean paired difference to the best of them (≤ 0, and 0 for the best itself;
    NaN where they have no seed in common). Intervals are 95 %.
    """

    labels: str
    method: str
    mAP: float
    mAP_low: float
    mAP_high: float
    behind: float
    behind_low: float
    behind_high: float
    seeds: int  # that it is judged by
    seed_sd: float  # over all its finished seeds; NaN for a single one
    validation: float  # the measure that epochs and settings were chosen by, mean over seeds
    selected_on: str
    seconds: float  # of a run's epochs, mean over seeds
    memory: (
        float  # bytes at the peak, median over seeds: the first run of all also loads libraries; NaN if not measured
    )
    lr: float
    options: Mapping[str, Any]
    tried: int  # settings that were tried with seed 0
    to_try: int  # of so many
    known: float  # the share of the training entries that are known
    rate_at_edge: bool  # whether the chosen rate is the highest or lowest that was tried
    kept: float  # the share of each image's labels kept, where that is how labels were hidden; else NaN
    per_seed: tuple[float, ...] = ()  # all its finished seeds
    best_epochs: tuple[int, ...] = ()
    judged_by: tuple[int, ...] = ()  # these seeds
    runs: tuple[str, ...] = ()  # and these files among the tasks, one for each of them

    @property
    def further(self) -> int:
        """Finished seeds that do not count, since another method has not finished them."""
        return max(len(self.per_seed) - self.seeds, 0)


class Failure(NamedTuple):
    """A run that could not be finished, and why."""

    labels: str
    method: str
    what: str  # the seed and settings, or "all" where the method cannot learn from such labels
    reason: str


class LeftOut(NamedTuple):
    """Runs of one method that the budget had no room for."""

    labels: str
    method: str
    runs: int
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """The result: rows by label share and falling mAP, what failed, what was left out, and how it was judged."""

    rows: tuple[Row, ...]
    failures: tuple[Failure, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    protocol: tuple[str, ...] = ()
    select: str = "known"
    memory_kind: str = ""
    chosen_by: Mapping[str, str] = field(default_factory=dict)  # why each method of `auto` is on the list
    waiting: tuple[int, int] | None = None  # images with features, of so many, where the budget ended among these

    def table(self) -> list[dict[str, Any]]:
        """One flat dictionary per row, as in the CSV file; fractions, seconds, bytes."""
        flat = []
        for row in self.rows:
            line = asdict(row)
            line["options"] = " ".join(f"{name}={value}" for name, value in row.options.items())
            for name in ("per_seed", "best_epochs", "judged_by"):
                line[name] = " ".join(f"{value:.6g}" for value in getattr(row, name))
            line["runs"] = " ".join(row.runs)
            flat.append(line)
        return flat

    def best(self, labels: str) -> Row:
        """The row with the highest mean test mAP for one way of hiding labels."""
        return next(row for row in self.rows if row.labels == labels)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        content = {
            "protocol": self.protocol,
            "selected_on_hidden_truth": self.select == "hidden",
            "memory_is": self.memory_kind,
            "rows": [asdict(row) for row in self.rows],
            "failures": [failure._asdict() for failure in self.failures],
            "left_out": [left._asdict() for left in self.left_out],
            "auto": dict(self.chosen_by),
        }
        found: dict[str, Any] = to_json_value(content)
        return found

    @property
    def columns(self) -> list[str]:
        return [column.name for column in fields(Row)]


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def interval(values: NDArray[np.float64], replicates: NDArray[np.float64], positives: float) -> Interval:
    """mAP, mean over seeds, with its 95 % interval, from two sources of chance: which images, and which seeds.

        v = Var_r(mean_s b[s, r]) + Var_s(values) / S
        `metrics.limits` with variance v, bias mean(b) − mean(values) and the quantile
        t(0.975; ν),   ν = v² / ((Var_s(values) / S)² / (S − 1))   (Welch–Satterthwaite)

    values: (S,), one per seed, all on the same test images. replicates b: (S, R), the same under R bootstrap samples of
    the images, drawn alike for all seeds and methods. positives: `metrics.positives_of_mean`. A single seed
    leaves out the second source: the interval is then that of `metrics.bootstrap`.
    """
    mean, (variance, bias, quantile) = float(values.mean()), _chance(values, replicates)
    told = torch.tensor([mean, variance, bias, positives], dtype=torch.float64)
    low, high = metrics.limits(told[0], told[1], told[2], told[3], quantile)
    return Interval(mean, float(low), float(high))


def difference(values: NDArray[np.float64], replicates: NDArray[np.float64], positives: float) -> Interval:
    """The paired difference of two methods' mAP (or AP), mean over seeds, with its 95 % interval.

        mean ± t(0.975; ν) · √(v + 1 / (4 P)²),   v and ν as in `interval`, of differences, P positives

    Replicates of both are too high alike, so that the difference has next to no bias. The second term is for few
    positives: where both methods rank these alike, no replicate shows a difference, and still there may be one.
    """
    mean, (variance, _, quantile) = float(values.mean()), _chance(values, replicates)
    half = quantile * math.sqrt(variance + 1 / (4 * max(positives, 1)) ** 2)
    return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))


def _chance(values: NDArray[np.float64], replicates: NDArray[np.float64]) -> tuple[float, float, float]:
    """Variance of the mean over seeds, the replicates' bias, and how many standard deviations make 95 %."""
    from scipy.stats import t

    means = replicates.mean(0)
    means = means[np.isfinite(means)]
    of_images = float(means.var(ddof=1)) if len(means) > 1 else 0.0
    of_seeds = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    total = of_images + of_seeds
    freedom = total**2 / (of_seeds**2 / (len(values) - 1)) if of_seeds**2 > 0 else math.inf
    bias = float(means.mean() - values.mean()) if len(means) else 0.0
    return total, bias, float(t.ppf((1 + LEVEL) / 2, freedom))


class TaskScore(NamedTuple):
    """Test mAP of one finished task, of its bootstrap replicates (R,), and `metrics.positives_of_mean`."""

    mAP: float
    replicates: NDArray[np.float64]
    positives: float


def common_seeds(found: Mapping[K, Collection[int]]) -> tuple[int, ...]:
    """The seeds to compare by: those that all have, or all but the few that have none of them.

    Runs of one seed share their labels and validation images, and some are harder than others: means over different
    seeds say nothing of who is better.

    >>> common_seeds({"a": [0, 1, 2], "b": [0, 1]}), common_seeds({"a": [0, 1], "b": [0], "c": [2]})
    ((0, 1), (0,))
    """
    common: set[int] = set()
    for seeds in sorted(found.values(), key=len, reverse=True):
        common = (common & set(seeds) or common) if common else set(seeds)
    return tuple(sorted(common))


def summarise(grid: Grid, found: Results, store: Store, bench: Bench, **about: Any) -> Comparison:
    """The table of all cells that are finished, best first by the seeds that all have; last, who has none of these."""
    judged = TaskScorer(bench, store)
    rows: list[Row] = []
    for label_mask in grid.label_masks:
        cells = {
            candidate: {
                seed: task
                for seed in range(grid.seeds)
                if (task := grid.cell(candidate, label_mask, seed, found)) in found and not found[task].error
            }
            for candidate in grid.candidates
            if (candidate, label_mask) not in grid.unfit
        }
        done = {candidate: tasks for candidate, tasks in cells.items() if tasks}
        scored = {candidate: {s: judged(task) for s, task in tasks.items()} for candidate, tasks in done.items()}
        common = set(common_seeds(scored))
        judged_by = {c: sorted(common & set(scored[c])) or sorted(scored[c]) for c in scored}
        apart = {c for c in scored if not common & set(scored[c])}
        means = {c: float(np.mean([scored[c][seed].mAP for seed in judged_by[c]])) for c in scored}
        ordered = sorted(scored, key=lambda c: (c in apart, -means[c]))
        for candidate in ordered:
            rows.append(
                _row(
                    grid,
                    found,
                    candidate,
                    label_mask,
                    done[candidate],
                    scored[candidate],
                    judged_by[candidate],
                    scored[ordered[0]],
                    bench,
                )
            )
    kinds = {outcome.memory_kind for outcome in found.values() if outcome.memory_kind}
    return Comparison(
        tuple(rows),
        protocol=tuple(_protocol(grid, bench, judged, rows)),
        select=bench.select,
        memory_kind=" or ".join(sorted(kinds)),
        **about,
    )


def _row(
    grid: Grid,
    found: Results,
    candidate: Candidate,
    label_mask: LabelMask,
    tasks: Mapping[int, Task],
    scored: Mapping[int, TaskScore],
    seeds: Sequence[int],
    best: Mapping[int, TaskScore],
    bench: Bench,
) -> Row:
    values = np.array([scored[seed].mAP for seed in seeds])
    positives = min(scored[seed].positives for seed in seeds)
    own = interval(values, np.stack([scored[seed].replicates for seed in seeds]), positives)
    if scored is best:
        behind = Interval(0.0, 0.0, 0.0)
    elif all(seed in best for seed in seeds):
        gaps = np.array([scored[seed].mAP - best[seed].mAP for seed in seeds])
        draws = np.stack([scored[seed].replicates - best[seed].replicates for seed in seeds])
        behind = difference(gaps, draws, positives)
    else:
        behind = Interval(math.nan, math.nan, math.nan)
    every = np.array([one.mAP for one in scored.values()])
    outcomes: list[Outcome] = [found[tasks[seed]] for seed in seeds]
    first = next(iter(tasks.values()))
    memory = [outcome.memory for outcome in outcomes if outcome.memory is not None]
    return Row(
        labels=label_mask.name,
        method=candidate.name,
        mAP=own.mean,
        mAP_low=own.low,
        mAP_high=own.high,
        behind=behind.mean,
        behind_low=behind.low,
        behind_high=behind.high,
        seeds=len(values),
        seed_sd=float(every.std(ddof=1)) if len(every) > 1 else math.nan,
        validation=float(np.mean([outcome.select for outcome in outcomes])),
        selected_on=_selected_on(bench, label_mask, outcomes),
        seconds=float(np.mean([outcome.seconds for outcome in outcomes])),
        memory=float(np.median(memory)) if memory else math.nan,
        lr=first.lr,
        options=_key_options(candidate, first),
        tried=len(grid.tried(candidate, label_mask, found)),
        to_try=grid.runs(candidate) - grid.seeds + 1,
        known=float(np.mean([outcome.known for outcome in outcomes])),
        rate_at_edge=first.lr != candidate.lr,
        kept=label_mask.kept,
        per_seed=tuple(float(value) for value in every),
        best_epochs=tuple(found[task].best_epoch for task in tasks.values()),
        judged_by=tuple(seeds),
        runs=tuple(tasks[seed].key for seed in seeds),
    )


def _key_options(candidate: Candidate, task: Task) -> dict[str, Any]:
    """The options given or searched for, with the default where that was kept."""
    how = recipe(candidate.method)
    return {**{name: how.options[name].default for name in how.tunes(dict(candidate.options))}, **dict(task.options)}


def _selected_on(bench: Bench, label_mask: LabelMask, outcomes: Sequence[Outcome]) -> str:
    if bench.select == "hidden" and label_mask.protocol:  # else nothing is hidden
        return "hidden truth"
    return "known positives" if any(outcome.measure == "assumed_mAP" for outcome in outcomes) else "known labels"


class TaskScorer:
    """Scores finished tasks on the test images.

    Left out are images that cannot be read, and classes without both a known positive and a known negative: whatever
    a method says of those, its average precision would be the same.
    """

    def __init__(self, bench: Bench, store: Store) -> None:
        self.store = store
        labels = torch.from_numpy(bench.test.dense())
        self.useful = (labels > 0).any(0) & (labels < 0).any(0)
        self.labels = torch.where(self.useful, labels, torch.zeros((), dtype=labels.dtype))
        self.unreadable = 0
        self._seen: dict[str, TaskScore] = {}

    def __call__(self, task: Task) -> TaskScore:
        if task.key not in self._seen:
            logits = torch.from_numpy(self.store.logits(task))
            readable = ~torch.isnan(logits).any(1)
            self.unreadable = max(self.unreadable, int((~readable).sum()))
            labels = self.labels[readable]
            boot = metrics.bootstrap(logits[readable], labels, n=RESAMPLES, level=LEVEL)
            worth = metrics.positives_of_mean((labels > 0).sum(0))
            self._seen[task.key] = TaskScore(boot.mean, boot.replicates.double().numpy(), worth)
        return self._seen[task.key]


def _protocol(grid: Grid, bench: Bench, judged: TaskScorer, rows: Sequence[Row]) -> list[str]:
    """How the numbers came about, in sentences."""
    test, known = bench.test, int((judged.labels != 0).sum())
    where = "labels of their own" if bench.data.has_own_test else "a part of the images that no method learns from"
    said = [
        f"Test: {len(test)} images, {where}, the same for all; {known:,} of {judged.labels.numel():,} entries known, "
        f"unknown ones skipped; mAP over the {int(judged.useful.sum())} of {len(test.classes)} classes with a known "
        "positive and a known negative there."
    ]
    if judged.unreadable:
        said.append(f"{judged.unreadable} test images could not be read and are left out.")
    if any(label_mask.protocol for label_mask in grid.label_masks):
        said.append("Labels were hidden from the training and validation images only; which ones depends on the seed.")
    share = f"{100 * bench.config.held_out:g} %"
    if further := [row for row in rows if row.further]:
        named = [f"{row.method} at {row.labels}: {row.further}" for row in further]
        said.append(
            "Ranked by the seeds that all methods have finished with those labels; further finished seeds are listed "
            f"and count for nothing: {', '.join(named)}."
        )
    if apart := [f"{row.method} at {row.labels}" for row in rows if math.isnan(row.behind)]:
        said.append(f"Not ranked, for want of a seed in common with the others: {', '.join(apart)}.")
    if bench.select == "hidden":
        if any(not label_mask.protocol for label_mask in grid.label_masks):
            said.append("With all labels nothing is hidden: there epochs and settings were chosen on known labels.")
        said.append(
            f"CHOSEN ON HIDDEN TRUTH: epochs and settings were chosen by mAP on the true labels of the validation "
            f"images ({share} of those not for the test), which are hidden from training. Whoever lacks these labels "
            "cannot choose so well: the numbers are too good for such use."
        )
    else:
        said.append(
            f"Epochs and settings were chosen by mAP on the validation images ({share} of those not for the test), on "
            "the labels left known there."
        )
        if any(row.selected_on == "known positives" for row in rows):
            said.append("Where nothing is known to be absent there, unknown counts as absent for that choice alone.")
    if grid.search == "small":
        said.append(
            "Search with seed 0, kept for the other seeds: the method's learning rate, a third and three times it; "
            "then its key option at the best rate."
        )
        if edge := [f"{row.method} at {row.labels}" for row in rows if row.rate_at_edge]:
            said.append(f"Chose the highest or lowest rate tried, so a wider search may do better: {', '.join(edge)}.")
    said.append(
        f"95 % intervals: their variance is that over {RESAMPLES} bootstrap samples of the test images plus that of "
        "the mean over seeds (a single seed: images alone), more where known positives are few; mAP of few positives "
        "is too high on average, so that its interval reaches further down than up. Differences to the best are paired "
        "by image and by seed. The best is the best on these very images, which flatters it a little; no correction is "
        "made for comparing many."
    )
    return said
