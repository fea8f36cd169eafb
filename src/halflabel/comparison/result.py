"""The result of trials: means, intervals over images and seeds together, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator
from scipy.special import stdtrit

from halflabel import metrics
from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import NAIVE, Candidate, Grid, Outcome, Results, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.store import Store
from halflabel.evaluation.calibration import Calibration
from halflabel.evaluation.decisions import Decisions
from halflabel.evaluation.evaluate import evaluate
from halflabel.evaluation.registry import own_functions, shown_metrics
from halflabel.evaluation.scores import Scores
from halflabel.labels.split import group_numbers
from halflabel.methods.base import recipe
from halflabel.system.files import to_json_value
from halflabel.system.format import group_digits, points, signed_interval, signed_points

RESAMPLES = 400
LEVEL = 0.95
_F1 = ("CF1", "OF1")
BASES = {"linear": "fitted by L-BFGS", "batches": "trained in batches"}

K = TypeVar("K")


Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # JSON has no NaN


class Cell(NamedTuple):
    """One cell of a table: its column, the number it is sorted by, its text, and a note such as the interval."""

    title: str
    value: float
    text: str
    note: str = ""


def _spread(deviation: float) -> str:
    return "" if math.isnan(deviation) else f"± {points(deviation)}"


@dataclass(frozen=True)
class Row:
    """One row of the table: a method with one label mask; means over the seeds that all rows of a panel have finished.

    `behind` is the paired difference to the best row: 0 for the best itself, NaN without a common seed.
    """

    labels: str
    method: str
    mAP: Number
    mAP_low: Number
    mAP_high: Number
    behind: Number
    behind_low: Number
    behind_high: Number
    seeds: int  # number of seeds in the means
    seed_sd: Number  # over all its finished seeds; NaN for a single one
    validation: Number  # the metric that epochs and settings were selected by, mean over seeds
    selected_on: str
    seconds: Number  # of training a run, mean over seeds
    CF1: Number  # F1 of the decisions at the run's thresholds, means of classes; mean over seeds
    CF1_sd: Number  # over all finished seeds, as seed_sd
    OF1: Number  # the same over all entries together
    OF1_sd: Number
    fit: str  # linear or batches
    lr: Number  # 0 in a linear fit
    options: Mapping[str, Any]
    tried: int  # number of settings that were tried with seed 0
    to_try: int  # number of settings to try
    known: Number  # the share of the training entries that are known
    photos_to_see: int  # test images of which a difference of 1 point to the best would be seen, but for the seeds
    strategy: str = ""  # the protocol that hides labels or makes them wrong; "" for all labels as they are
    share: Number = math.nan  # of the labels that are known and correct, for protocols with a share
    known_labels: int = 0  # known to training with the first seed, right or wrong
    per_seed: tuple[Number, ...] = ()  # all its finished seeds
    judged_by: tuple[int, ...] = ()  # the seeds in the means
    runs: tuple[str, ...] = ()  # their files in tasks/
    own_metrics: Mapping[str, Number] = field(default_factory=dict)  # those of plugins, means over seeds
    role: str = ""  # "naive": unknown is absent; "oracle": no label is hidden from it; "base": what systems begin at

    @property
    def reference(self) -> str:
        """The labels that a reference row is trained on; empty for other rows."""
        oracle = "all labels known" if self.known > 0.999 else "no label hidden"
        return {"naive": "unknown = absent", "oracle": oracle, "base": "what the others begin at"}.get(self.role, "")

    @property
    def unused_seeds(self) -> int:
        """The number of finished seeds that another row has not finished, which are not in the means."""
        return max(len(self.per_seed) - self.seeds, 0)

    @property
    def is_best(self) -> bool:
        """Whether the other rows of its panel are compared with this one."""
        return self.behind_low == self.behind_high == 0

    @property
    def is_alike(self) -> bool:
        """Whether its mAP and that of the best row differ by less than 1 point: the interval is within ±1 point."""
        return -0.01 < self.behind_low <= self.behind_high < 0.01

    @property
    def is_tie(self) -> bool:
        """Whether the paired interval of the difference to the best row includes 0."""
        return not self.behind_high < 0

    def cells(self) -> list[Cell]:
        """Return what tables show of a row, column by column."""
        best, behind = "—", signed_interval(self.behind_low, self.behind_high)
        if self.role != "oracle" and not math.isnan(self.behind):
            best = "best" if self.is_best else signed_points(self.behind) + (" =" * self.is_alike or " ≈" * self.is_tie)
        rate = f"{self.lr:.2g}" if self.fit == "batches" else "—"
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return [
            Cell("mAP", self.mAP, points(self.mAP), f"{points(self.mAP_low)} – {points(self.mAP_high)}"),
            Cell("to the best", self.behind, best, "" if best in ("—", "best") else behind),
            Cell("CF1", self.CF1, points(self.CF1), _spread(self.CF1_sd)),
            Cell("OF1", self.OF1, points(self.OF1), _spread(self.OF1_sd)),
            Cell("base", math.nan, self.fit),
            *(Cell(shown.title, math.nan, shown.value) for shown in shown_metrics(self.own_metrics)),
            Cell("seeds", self.seeds, f"{self.seeds}" + f" + {self.unused_seeds}" * (self.unused_seeds > 0)),
            Cell("s/run", self.seconds, f"{self.seconds:.3g}"),
            Cell("chosen", self.lr, rate, options),
            Cell("tried", self.tried, f"{self.tried}" + f" of {self.to_try}" * (self.tried != self.to_try)),
            Cell("validation", self.validation, points(self.validation), self.selected_on),
            Cell("known", self.known_labels, group_digits(self.known_labels)),
            Cell("± seeds", self.seed_sd, points(self.seed_sd)),
        ]


class Failure(NamedTuple):
    """A run that failed, and the reason."""

    labels: str
    method: str
    what: str  # the seed and settings, or "all" if the method cannot learn from such labels
    reason: str


Kind = Literal["comparison", "annotation study", "learning curve"]


@dataclass(frozen=True)
class Trials:
    """The result of label masks × methods × seeds; a study ranks the sets of labels of one method."""

    rows: tuple[Row, ...]
    kind: Kind = "comparison"
    gaps: tuple[Gap, ...] = ()  # between the sets of labels of a study
    growth: Growth | None = None  # of a learning curve
    failures: tuple[Failure, ...] = ()
    left_out: int = 0  # runs that were not started because of the budget
    protocol: tuple[str, ...] = ()
    chosen_by: Mapping[str, str] = field(default_factory=dict)  # the reason for each method of `auto`
    conclusions: tuple[str, ...] = ()  # what is best, by how much and how surely
    table: Any = None  # Arrow table of all finished runs behind the rows; not in the JSON file

    @property
    def panels(self) -> list[list[Row]]:
        """The rows that are ranked together: methods with one set of labels and one base, or the labels of a study."""
        panels: dict[str, list[Row]] = {}
        for row in self.rows:
            panels.setdefault(self.names(row)[0], []).append(row)
        return list(panels.values())

    def names(self, row: Row) -> tuple[str, str]:
        """Return the name of a row's panel, and its own: of a study, the strategy with the share of clean labels."""
        if self.kind == "comparison":
            base = f", {BASES[row.fit]}" if len({each.fit for each in self.rows}) > 1 else ""
            return row.labels + base, row.method
        return row.method, f"{row.strategy or 'all'} {100 * row.share:.3g} %"

    def csv_lines(self) -> list[dict[str, Any]]:
        """Return one flat dictionary per row, as in the CSV file."""
        lines = []
        for row in self.rows:
            line = asdict(row)
            for name, value in line.items():
                if isinstance(value, dict):
                    line[name] = " ".join(f"{key}={item}" for key, item in value.items())
                elif isinstance(value, tuple):
                    line[name] = " ".join(map(str, value))
            lines.append(line)
        return lines

    def latex(self) -> str:
        """Return the table for a paper, with \\toprule and so on of booktabs: a block for each panel."""
        lines = [r"\begin{tabular}{lrrrrr}", r"\toprule", r" & mAP & to the best & CF1 & OF1 & seeds \\"]
        for rows in self.panels:
            lines += [r"\midrule", rf"\multicolumn{{6}}{{l}}{{{_in_latex(self.names(rows[0])[0])}}} \\"]
            for row in rows:
                cells = {cell.title: cell for cell in row.cells()}
                shown = [cells[title] for title in ("mAP", "to the best", "CF1", "OF1", "seeds")]
                texts = [each.text + f" ({each.note})" * bool(each.note) for each in shown]
                lines.append(" & ".join(map(_in_latex, (self.names(row)[1], *texts))) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def to_json(self) -> dict[str, Any]:
        """Return everything but the Arrow table as JSON values."""
        content = asdict(replace(self, table=None))
        del content["table"]
        content["failures"] = [failure._asdict() for failure in self.failures]
        values: dict[str, Any] = to_json_value(content)
        return values


def _in_latex(text: str) -> str:
    """Return a text of a table with its signs as LaTeX writes them."""
    signs = {"−": "$-$", "–": "--", "—": "---", "≈": r"$\approx$", "±": r"$\pm$"}
    signs |= {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(signs.get(sign, sign) for sign in text)


class Interval(NamedTuple):
    mean: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class Gap:
    """Test mAP with one set of labels minus that with another, paired by seed and test image, 95 % interval."""

    strategy: str
    share: Number
    other: str
    other_share: Number
    difference: Number
    low: Number
    high: Number

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0

    @property
    def is_step(self) -> bool:
        """Whether this is the gain of more labels of the same kind."""
        return self.strategy == self.other


class Backtest(NamedTuple):
    """The gain of the last doubling as predicted from the smaller shares (a prediction interval), and as measured."""

    foretold: Interval
    measured: Number

    @property
    def held(self) -> bool:
        return self.foretold.low <= self.measured <= self.foretold.high


@dataclass(frozen=True)
class Growth:
    """The power law that is fitted to a learning curve, and the expected gain of more labels."""

    law: tuple[Number, Number, Number]  # a, b, c
    curve: tuple[tuple[Number, Number, Number, Number], ...]  # share, fitted mAP, low, high; up to twice the labels
    gain: Interval  # of twice the labels, in mAP
    backtest: Backtest | None
    worth: float = 1.0  # the gain, in points of mAP, that is worth twice the labels


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


def difference(
    values: NDArray[np.float64], replicates: NDArray[np.float64], positives: float, moved: float = 1.0
) -> Interval:
    """Return the paired difference of the mAP (or AP) of two methods, mean over seeds, with its 95 % interval.

        mean ± t(0.975; ν) · √(v + (m / (4 P))²),   v and ν as in `interval`, of differences, P positives

    The replicates of both have about the same bias, so the difference has almost none. The second term is for few
    positives: if both methods rank these alike, no replicate shows a difference, although there may be one. It is as
    large as the share m of photos that they rank differently (`moved_share`).
    """
    mean, (variance, _, quantile) = float(values.mean()), _variance(values, replicates)
    half = quantile * math.sqrt(variance + (moved / (4 * max(positives, 1))) ** 2)
    return Interval(mean, max(mean - half, -1.0), min(mean + half, 1.0))


def _variance(values: NDArray[np.float64], replicates: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the variance of the mean over seeds, the bias of the replicates, and the 95 % quantile."""
    means = replicates.mean(0)
    means = means[np.isfinite(means)]
    image_variance = float(means.var(ddof=1)) if len(means) > 1 else 0.0
    seed_variance = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    total = image_variance + seed_variance
    freedom = total**2 / (seed_variance**2 / (len(values) - 1)) if seed_variance**2 > 0 else math.inf
    bias = float(means.mean() - values.mean()) if len(means) else 0.0
    return total, bias, float(stdtrit(freedom, (1 + LEVEL) / 2))


def moved_share(first: NDArray[np.float32], second: NDArray[np.float32], known: NDArray[np.bool_]) -> float:
    """Return the share of known entries (N, C) that two methods rank differently within their class."""
    if np.array_equal(first, second, equal_nan=True):
        return 0.0
    orders = [np.argsort(np.where(known, logits, np.nan), 0, kind="stable") for logits in (first, second)]
    return (np.count_nonzero(orders[0] != orders[1]) + 1) / (np.count_nonzero(known) + 1)


class TaskScore(NamedTuple):
    """The test mAP of one finished task, its bootstrap replicates (R,), and `metrics.positives_of_mean`."""

    mAP: float
    replicates: NDArray[np.float64]
    positives: float
    metrics: Mapping[str, float] = {}  # CF1, OF1 and those of plugins
    ranked: tuple[NDArray[np.float32], NDArray[np.bool_]] | None = None  # test logits (N, C), and which are known


def mean_interval(scores: Sequence[TaskScore]) -> Interval:
    """Return the `interval` of the mean over seeds."""
    values, replicates = np.array([score.mAP for score in scores]), np.stack([score.replicates for score in scores])
    return interval(values, replicates, min(score.positives for score in scores))


def paired_interval(scores: Sequence[TaskScore], others: Sequence[TaskScore]) -> Interval:
    """Return the `difference` of two methods with the same seeds."""
    pairs = list(zip(scores, others, strict=True))
    values = np.array([score.mAP - other.mAP for score, other in pairs])
    replicates = np.stack([score.replicates - other.replicates for score, other in pairs])
    ranked = [(score.ranked, other.ranked) for score, other in pairs]
    moved = [moved_share(a[0], b[0], a[1]) if a is not None and b is not None else 1.0 for a, b in ranked]
    return difference(values, replicates, min(score.positives for score in scores), float(np.mean(moved)))


def photos_to_see(scores: Sequence[TaskScore], others: Sequence[TaskScore], photos: int) -> int:
    """Return how many test images make the 95 % interval of a difference ± 1 point, two digits, seeds left out."""
    replicates = np.mean([score.replicates - other.replicates for score, other in zip(scores, others, strict=True)], 0)
    if np.isfinite(replicates).sum() < 2:  # a method failed, or nothing can be measured
        return 0
    return int(float(f"{photos * (1.96 * np.nanstd(replicates, ddof=1) / 0.01) ** 2:.2g}"))


def common_seeds(seeds_of: Mapping[K, Collection[int]]) -> tuple[int, ...]:
    """Return the seeds that all have, or all but the few that have none of them: some seeds are harder than others.

    >>> common_seeds({"a": [0, 1, 2], "b": [0, 1]}), common_seeds({"a": [0, 1], "b": [0], "c": [2]})
    ((0, 1), (0,))
    """
    common: set[int] = set()
    for seeds in sorted(seeds_of.values(), key=len, reverse=True):
        common = (common & set(seeds) or common) if common else set(seeds)
    return tuple(sorted(common))


Pair = tuple[Candidate, LabelMask]


def summarise(grid: Grid, outcomes: Results, scorer: TaskScorer, bench: Bench, kind: Kind = "comparison") -> Trials:
    """Return the rows of all finished pairs, in a comparison the best first, and the table of their runs."""
    panels: dict[Any, list[Pair]] = {}
    for pair in grid.pairs:
        panels.setdefault((pair[1], pair[0].fit) if kind == "comparison" else pair[0].name, []).append(pair)
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for panel in panels.values():
        scored = {pair: scores for pair in panel if (scores := scorer.scores(grid, pair, outcomes))}
        common = set(common_seeds(scored))
        judged_by = {pair: sorted(common & set(scored[pair])) or sorted(scored[pair]) for pair in scored}
        means = {pair: float(np.mean([scored[pair][seed].mAP for seed in judged_by[pair]])) for pair in scored}
        ranked = sorted(scored, key=lambda pair: (not common & set(scored[pair]), -means[pair]))
        best = scored[ranked[0]] if ranked else {}
        for pair in ranked if kind == "comparison" else scored:
            runs = _records(grid, outcomes, pair, scored[pair], bench)
            rows.append(_row(grid, outcomes, pair, runs, scored[pair], judged_by[pair], best, bench))
            records += runs.values()
    return Trials(tuple(rows), kind, table=pa.Table.from_pylist(records))


def _records(
    grid: Grid, outcomes: Results, pair: Pair, scored: Mapping[int, TaskScore], bench: Bench
) -> dict[int, dict[str, Any]]:
    """Return what is known of each finished run of a pair, by seed."""
    candidate, mask = pair
    about = {"labels": mask.name, "strategy": mask.protocol, "share": mask.clean(bench.rest)}
    return {
        seed: {
            **about,
            "method": candidate.name,
            "fit": candidate.fit,
            "seed": seed,
            "lr": task.lr,
            "options": ":".join(f"{name}={value}" for name, value in task.options),
            "mAP": scored[seed].mAP,
            **dict.fromkeys(_F1, math.nan),
            **scored[seed].metrics,
            "validation": outcomes[task].select,
            **{name: getattr(outcomes[task], name) for name in ("known", "best_epoch", "strength", "seconds")},
            "run": task.key,
        }
        for seed, task in grid.finished(*pair, outcomes).items()
    }


def _row(
    grid: Grid,
    outcomes: Results,
    pair: Pair,
    runs: Mapping[int, dict[str, Any]],
    scored: Mapping[int, TaskScore],
    seeds: Sequence[int],
    best: Mapping[int, TaskScore],
    bench: Bench,
) -> Row:
    """Return the row of a pair: means over `seeds` of its runs, and the difference to the scores of the best pair."""
    (candidate, mask), tasks = pair, grid.finished(*pair, outcomes)
    mean = mean_interval([scored[seed] for seed in seeds])
    behind, needed = Interval(0.0, 0.0, 0.0), 0
    if scored is not best:
        behind = Interval(math.nan, math.nan, math.nan)
        if all(seed in best for seed in seeds):
            compared = [scored[seed] for seed in seeds], [best[seed] for seed in seeds]
            behind, needed = paired_interval(*compared), photos_to_see(*compared, len(bench.test))
    assumed = any(outcomes[tasks[seed]].measure == "assumed_mAP" for seed in seeds)
    tried = len(grid.tried(candidate, mask, outcomes))
    means = {
        name: float(np.mean([runs[seed][name] for seed in seeds]))
        for name in ("validation", "seconds", "known", *_F1, *own_functions())
    }
    spread = {
        name: float(np.std([run[name] for run in runs.values()], ddof=1)) if len(runs) > 1 else math.nan
        for name in ("mAP", *_F1)
    }
    first = next(iter(runs.values()))
    return Row(
        **{name: first[name] for name in ("labels", "method", "strategy", "share", "fit", "lr")},
        validation=means["validation"],
        seconds=means["seconds"],
        known=means["known"],
        CF1=means["CF1"],
        OF1=means["OF1"],
        mAP=mean.mean,
        mAP_low=mean.low,
        mAP_high=mean.high,
        behind=behind.mean,
        behind_low=behind.low,
        behind_high=behind.high,
        photos_to_see=needed,
        seeds=len(seeds),
        seed_sd=spread["mAP"],
        selected_on="known positives" if assumed else "known labels",
        CF1_sd=spread["CF1"],
        OF1_sd=spread["OF1"],
        options=_key_options(candidate, next(iter(tasks.values()))),
        tried=tried,
        to_try=max(grid.runs(candidate) - grid.seeds + 1, tried),
        known_labels=mask.apply(bench.rest, 0).known,
        per_seed=tuple(score.mAP for score in scored.values()),
        judged_by=tuple(seeds),
        runs=tuple(tasks[seed].key for seed in seeds),
        own_metrics={name: means[name] for name in own_functions()},
        role=candidate.role or ("naive" if candidate.method == NAIVE else ""),
    )


def _key_options(candidate: Candidate, task: Task) -> dict[str, Any]:
    """Return the options that were given or searched for, with defaults where they were selected."""
    method = recipe(candidate.method)
    defaults = {name: method.options[name].default for name in method.tunes(dict(candidate.options))}
    uncertain = {"uncertain": candidate.uncertain} if candidate.uncertain else {}
    return {**defaults, **dict(task.options), **uncertain}


class TaskScorer:
    """Evaluates finished tasks on the readable test images, over classes with a known positive and a known negative."""

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
            replicates, known = boot.replicates.double().numpy(), self.labels.numpy() != 0
            self._scores[task.key] = TaskScore(boot.mean, replicates, positives, decided, (array, known))
        return self._scores[task.key]

    def scores(self, grid: Grid, pair: Pair, outcomes: Results) -> dict[int, TaskScore]:
        """Return the scores of the finished seeds of a pair."""
        return {seed: self(task, outcomes[task]) for seed, task in grid.finished(*pair, outcomes).items()}

    def _decide(self, logits: NDArray[np.float32], stored: Mapping[str, Any]) -> dict[str, float]:
        """Return the F1 of the decisions of a run, and the metrics of plugins."""
        calibration = Calibration.from_json(stored["calibration"], len(self.test.classes))
        decisions = Decisions(calibration, torch.tensor(stored["thresholds"]))
        scores = Scores.held_out(self.test.images, self.test.classes, logits)
        overall = evaluate(scores, self.test, decisions=decisions, resamples=0)[1].overall
        return {name: overall[name] for name in (*_F1, *own_functions())}
