"""The result of a comparison: means, intervals over images and seeds together, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel import metrics
from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import NAIVE, Candidate, Grid, LabelMask, Outcome, Results, Task
from halflabel.comparison.store import Store
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import evaluate
from halflabel.evaluation.registry import own_functions
from halflabel.evaluation.scores import Scores
from halflabel.labels.split import group_numbers
from halflabel.methods.base import recipe
from halflabel.system.files import to_json_value

RESAMPLES = 400
LEVEL = 0.95
_F1 = ("CF1", "OF1")

K = TypeVar("K")


@dataclass(frozen=True)
class ComparisonRow:
    """One row of the table: a method with one label mask.

    mAP is the mean over the seeds that all methods with that label mask have finished, and so are all values but
    `seed_sd` and `per_seed`; `behind` is the mean paired difference to the best method (≤ 0, and 0 for the best itself;
    NaN without a common seed). Intervals are 95 %.
    """

    labels: str
    method: str
    mAP: float
    mAP_low: float
    mAP_high: float
    behind: float
    behind_low: float
    behind_high: float
    seeds: int  # number of seeds in the means
    seed_sd: float  # over all its finished seeds; NaN for a single one
    validation: float  # the metric that epochs and settings were selected by, mean over seeds
    selected_on: str
    seconds: float  # of training a run, mean over seeds
    memory: float  # peak in bytes, median over seeds; NaN if not measured
    CF1: float  # F1 of the decisions at the run's thresholds, means of classes; mean over seeds
    CF1_sd: float  # over all finished seeds, as seed_sd
    OF1: float  # the same over all entries together
    OF1_sd: float
    solver: str  # lbfgs or sgd
    lr: float  # 0 for lbfgs
    options: Mapping[str, Any]
    tried: int  # number of settings that were tried with seed 0
    to_try: int  # number of settings to try
    known: float  # the share of the training entries that are known
    rate_at_edge: bool  # whether the selected learning rate is the highest or lowest that was tried
    kept: float  # the share of the labels of each image that is kept, for such label masks; else NaN
    per_seed: tuple[float, ...] = ()  # all its finished seeds
    best_epochs: tuple[int, ...] = ()
    judged_by: tuple[int, ...] = ()  # the seeds in the means
    runs: tuple[str, ...] = ()  # their files in tasks/
    strengths: tuple[float, ...] = ()  # of the regularisation, chosen for each of these seeds; none for sgd
    own_metrics: Mapping[str, float] = field(default_factory=dict)  # those of plugins, means over seeds
    role: str = ""  # "naive": unknown is taken as absent; "oracle": no label is hidden from it

    @property
    def reference(self) -> str:
        """The labels that a reference row is trained on; empty for other rows."""
        oracle = "all labels known" if self.known > 0.999 else "no label hidden"
        return {"naive": "unknown = absent", "oracle": oracle}.get(self.role, "")

    @property
    def unused_seeds(self) -> int:
        """The number of finished seeds that another method has not finished, which are not in the means."""
        return max(len(self.per_seed) - self.seeds, 0)


class Failure(NamedTuple):
    """A run that failed, and the reason."""

    labels: str
    method: str
    what: str  # the seed and settings, or "all" if the method cannot learn from such labels
    reason: str


class LeftOut(NamedTuple):
    """Runs of one method that were not started because of the budget."""

    labels: str
    method: str
    runs: int
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """The result: rows by label mask and decreasing mAP, failures, runs not started, and the protocol."""

    rows: tuple[ComparisonRow, ...]
    failures: tuple[Failure, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    protocol: tuple[str, ...] = ()
    select: str = "known"
    memory_kind: str = ""
    chosen_by: Mapping[str, str] = field(default_factory=dict)  # the reason for each method of `auto`
    waiting: tuple[int, int] | None = None  # (images with features, images in all) if the budget ended before training
    conclusions: tuple[str, ...] = ()  # which method is best, by how much and how surely, for each set of labels

    def table(self) -> list[dict[str, Any]]:
        """Return one flat dictionary per row, as in the CSV file; fractions, seconds, bytes."""
        lines = []
        for row in self.rows:
            line = asdict(row)
            line["own_metrics"] = " ".join(f"{name}={value:.6g}" for name, value in row.own_metrics.items())
            line["options"] = " ".join(f"{name}={value}" for name, value in row.options.items())
            for name in ("per_seed", "best_epochs", "judged_by", "strengths"):
                line[name] = " ".join(f"{value:.6g}" for value in getattr(row, name))
            line["runs"] = " ".join(row.runs)
            lines.append(line)
        return lines

    def best(self, labels: str) -> ComparisonRow:
        """Return the row with the highest mean test mAP for one label mask."""
        return next(row for row in self.rows if row.labels == labels)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content = {
            "conclusions": self.conclusions,
            "protocol": self.protocol,
            "selected_on_hidden_truth": self.select == "hidden",
            "memory_is": self.memory_kind,
            "rows": [asdict(row) for row in self.rows],
            "failures": [failure._asdict() for failure in self.failures],
            "left_out": [left._asdict() for left in self.left_out],
            "auto": dict(self.chosen_by),
        }
        values: dict[str, Any] = to_json_value(content)
        return values

    @property
    def columns(self) -> list[str]:
        return [column.name for column in fields(ComparisonRow)]


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def interval(values: NDArray[np.float64], replicates: NDArray[np.float64], positives: float) -> Interval:
    """Return the mean mAP over seeds with its 95 % interval, from two sources of variance: images and seeds.

        v = Var_r(mean_s b[s, r]) + Var_s(values) / S
        `metrics.limits` with variance v, bias mean(b) − mean(values) and the quantile
        t(0.975; ν),   ν = v² / ((Var_s(values) / S)² / (S − 1))   (Welch–Satterthwaite)

    values: (S,), one per seed, all on the same test images. replicates b: (S, R), the same for R bootstrap samples
    of the images, which are the same for all seeds and methods. positives: `metrics.positives_of_mean`. With a single
    seed the interval is that of `metrics.bootstrap`.
    """
    mean, (variance, bias, quantile) = float(values.mean()), _variance(values, replicates)
    inputs = torch.tensor([mean, variance, bias, positives], dtype=torch.float64)
    low, high = metrics.limits(inputs[0], inputs[1], inputs[2], inputs[3], quantile)
    return Interval(mean, float(low), float(high))


def difference(values: NDArray[np.float64], replicates: NDArray[np.float64], positives: float) -> Interval:
    """Return the paired difference of the mAP (or AP) of two methods, mean over seeds, with its 95 % interval.

        mean ± t(0.975; ν) · √(v + 1 / (4 P)²),   v and ν as in `interval`, of differences, P positives

    The replicates of both have about the same bias, so the difference has almost none. The second term is for few
    positives: if both methods rank these alike, no replicate shows a difference, although there may be one.
    """
    mean, (variance, _, quantile) = float(values.mean()), _variance(values, replicates)
    half = quantile * math.sqrt(variance + 1 / (4 * max(positives, 1)) ** 2)
    return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))


def _variance(values: NDArray[np.float64], replicates: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the variance of the mean over seeds, the bias of the replicates, and the 95 % quantile."""
    from scipy.stats import t

    means = replicates.mean(0)
    means = means[np.isfinite(means)]
    image_variance = float(means.var(ddof=1)) if len(means) > 1 else 0.0
    seed_variance = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    total = image_variance + seed_variance
    freedom = total**2 / (seed_variance**2 / (len(values) - 1)) if seed_variance**2 > 0 else math.inf
    bias = float(means.mean() - values.mean()) if len(means) else 0.0
    return total, bias, float(t.ppf((1 + LEVEL) / 2, freedom))


class TaskScore(NamedTuple):
    """The test mAP of one finished task, its bootstrap replicates (R,), and `metrics.positives_of_mean`."""

    mAP: float
    replicates: NDArray[np.float64]
    positives: float
    metrics: Mapping[str, float] = {}  # CF1, OF1 and those of plugins


def mean_interval(scores: Sequence[TaskScore]) -> Interval:
    """Return the `interval` of the mean over seeds."""
    values, replicates = np.array([score.mAP for score in scores]), np.stack([score.replicates for score in scores])
    return interval(values, replicates, min(score.positives for score in scores))


def paired_interval(scores: Sequence[TaskScore], others: Sequence[TaskScore]) -> Interval:
    """Return the `difference` of two methods with the same seeds."""
    pairs = list(zip(scores, others, strict=True))
    values = np.array([score.mAP - other.mAP for score, other in pairs])
    replicates = np.stack([score.replicates - other.replicates for score, other in pairs])
    return difference(values, replicates, min(score.positives for score in scores))


def common_seeds(seeds_of: Mapping[K, Collection[int]]) -> tuple[int, ...]:
    """Return the seeds that all have, or all but the few that have none of them.

    Runs of one seed share their labels and validation images, and some seeds are harder than others: means over
    different seeds cannot be compared.

    >>> common_seeds({"a": [0, 1, 2], "b": [0, 1]}), common_seeds({"a": [0, 1], "b": [0], "c": [2]})
    ((0, 1), (0,))
    """
    common: set[int] = set()
    for seeds in sorted(seeds_of.values(), key=len, reverse=True):
        common = (common & set(seeds) or common) if common else set(seeds)
    return tuple(sorted(common))


def summarise(grid: Grid, outcomes: Results, scorer: TaskScorer, bench: Bench, **details: Any) -> Comparison:
    """Return the table of all finished cells, best first by the common seeds; methods without a common seed last."""
    rows: list[ComparisonRow] = []
    for label_mask in dict.fromkeys(mask for _, mask in grid.pairs):
        tasks = {c: grid.finished(c, mask, outcomes) for c, mask in grid.pairs if mask == label_mask}
        finished = {candidate: by_seed for candidate, by_seed in tasks.items() if by_seed}
        scored = {
            candidate: {seed: scorer(task, outcomes[task]) for seed, task in by_seed.items()}
            for candidate, by_seed in finished.items()
        }
        common = set(common_seeds(scored))
        judged_by = {c: sorted(common & set(scored[c])) or sorted(scored[c]) for c in scored}
        apart = {c for c in scored if not common & set(scored[c])}
        means = {c: float(np.mean([scored[c][seed].mAP for seed in judged_by[c]])) for c in scored}
        ordered = sorted(scored, key=lambda c: (c in apart, -means[c]))
        best = scored[ordered[0]] if ordered else {}
        for c in ordered:
            rows.append(_row(grid, outcomes, bench, (c, label_mask), finished[c], scored[c], judged_by[c], best))
    kinds = {outcome.memory_kind for outcome in outcomes.values() if outcome.memory_kind}
    return Comparison(tuple(rows), select=bench.select, memory_kind=" or ".join(sorted(kinds)), **details)


def _row(
    grid: Grid,
    all_outcomes: Results,
    bench: Bench,
    pair: tuple[Candidate, LabelMask],
    tasks: Mapping[int, Task],
    scored: Mapping[int, TaskScore],
    seeds: Sequence[int],
    best: Mapping[int, TaskScore],
) -> ComparisonRow:
    candidate, label_mask = pair
    mean = mean_interval([scored[seed] for seed in seeds])
    if scored is best:
        behind = Interval(0.0, 0.0, 0.0)
    elif all(seed in best for seed in seeds):
        behind = paired_interval([scored[seed] for seed in seeds], [best[seed] for seed in seeds])
    else:
        behind = Interval(math.nan, math.nan, math.nan)
    values = [score.mAP for score in scored.values()]
    own = list(own_functions())
    decided = {
        name: {seed: score.metrics.get(name, math.nan) for seed, score in scored.items()} for name in (*_F1, *own)
    }
    means = {name: float(np.mean([by_seed[seed] for seed in seeds])) for name, by_seed in decided.items()}
    outcomes: list[Outcome] = [all_outcomes[tasks[seed]] for seed in seeds]
    first = next(iter(tasks.values()))
    memory = [outcome.memory for outcome in outcomes if outcome.memory is not None]
    return ComparisonRow(
        labels=label_mask.name,
        method=candidate.name,
        mAP=mean.mean,
        mAP_low=mean.low,
        mAP_high=mean.high,
        behind=behind.mean,
        behind_low=behind.low,
        behind_high=behind.high,
        seeds=len(seeds),
        seed_sd=_spread(values),
        validation=float(np.mean([outcome.select for outcome in outcomes])),
        selected_on=_selected_on(bench, label_mask, outcomes),
        seconds=float(np.mean([outcome.seconds for outcome in outcomes])),
        memory=float(np.median(memory)) if memory else math.nan,
        CF1=means["CF1"],
        CF1_sd=_spread(decided["CF1"].values()),
        OF1=means["OF1"],
        OF1_sd=_spread(decided["OF1"].values()),
        solver=candidate.solver,
        lr=first.lr,
        options=_key_options(candidate, first),
        tried=len(grid.tried(candidate, label_mask, all_outcomes)),
        to_try=grid.runs(candidate) - grid.seeds + 1,
        known=float(np.mean([outcome.known for outcome in outcomes])),
        rate_at_edge=first.lr != candidate.lr,
        kept=label_mask.kept,
        per_seed=tuple(values),
        best_epochs=tuple(all_outcomes[task].best_epoch for task in tasks.values()),
        judged_by=tuple(seeds),
        runs=tuple(tasks[seed].key for seed in seeds),
        strengths=tuple(outcome.strength for outcome in outcomes if candidate.solver == "lbfgs"),
        own_metrics={name: means[name] for name in own},
        role=candidate.role or ("naive" if candidate.method == NAIVE else ""),
    )


def _spread(values: Collection[float]) -> float:
    """Return the standard deviation over seeds; NaN for a single one."""
    return float(np.std(list(values), ddof=1)) if len(values) > 1 else math.nan


def _key_options(candidate: Candidate, task: Task) -> dict[str, Any]:
    """Return the options that were given or searched for, with defaults where they were selected."""
    method = recipe(candidate.method)
    defaults = {name: method.options[name].default for name in method.tunes(dict(candidate.options))}
    uncertain = {"uncertain": candidate.uncertain} if candidate.uncertain else {}
    return {**defaults, **dict(task.options), **uncertain}


def _selected_on(bench: Bench, label_mask: LabelMask, outcomes: Sequence[Outcome]) -> str:
    if bench.select == "hidden" and label_mask.protocol:  # otherwise no label is hidden
        return "hidden truth"
    return "known positives" if any(outcome.measure == "assumed_mAP" for outcome in outcomes) else "known labels"


class TaskScorer:
    """Evaluates finished tasks on the test images.

    Leaves out images that cannot be read, and classes without both a known positive and a known negative, whose
    average precision would be the same for every method.
    """

    def __init__(self, bench: Bench, store: Store) -> None:
        self.store, self.test = store, bench.test
        labels = torch.from_numpy(bench.test.dense())
        self.useful = (labels > 0).any(0) & (labels < 0).any(0)
        self.labels = torch.where(self.useful, labels, torch.zeros((), dtype=labels.dtype))
        self.groups = group_numbers(bench.data.test_groups, len(labels))
        self.unreadable = 0
        self._scores: dict[str, TaskScore] = {}

    def __call__(self, task: Task, outcome: Outcome) -> TaskScore:
        if task.key not in self._scores:
            array = self.store.logits(task)
            logits = torch.from_numpy(array)
            readable = ~torch.isnan(logits).any(1)
            self.unreadable = max(self.unreadable, int((~readable).sum()))
            labels = self.labels[readable]
            groups = self.groups[readable.numpy()]
            boot = metrics.bootstrap(logits[readable], labels, n=RESAMPLES, level=LEVEL, groups=groups)
            positives = metrics.positives_of_mean((labels > 0).sum(0))
            decided = self._decide(array, outcome.decisions) if outcome.decisions else {}
            self._scores[task.key] = TaskScore(boot.mean, boot.replicates.double().numpy(), positives, decided)
        return self._scores[task.key]

    def _decide(self, logits: NDArray[np.float32], stored: Mapping[str, Any]) -> dict[str, float]:
        """Return the F1 of the decisions of a run, and the metrics of plugins."""
        calibration = Calibration.from_json(stored["calibration"], len(self.test.classes))
        decisions = Decisions(calibration, torch.tensor(stored["thresholds"]))
        scores = Scores.held_out(self.test.images, self.test.classes, logits)
        overall = evaluate(scores, self.test, decisions=decisions, resamples=0)[1].overall
        return {name: overall[name] for name in (*_F1, *own_functions())}
