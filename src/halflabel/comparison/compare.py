"""`compare`: train several methods with several seeds and label masks, and evaluate all on the same test images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import pyarrow.parquet as pq
from torch import Tensor

from halflabel import __version__
from halflabel.comparison.bench import Bench, run_grid
from halflabel.comparison.conclusions import conclude_comparison, describe_trials
from halflabel.comparison.grid import BASE, NAIVE, Candidate, Grid, Results, Search, deadline_of
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.result import Failure, Kind, TaskScorer, Trials, summarise
from halflabel.comparison.sources import choosing_labels, split_data, without_model_labels
from halflabel.comparison.store import Store
from halflabel.errors import UserError, in_python
from halflabel.evaluation.registry import check_own_metrics
from halflabel.features.embed import options_of_features
from halflabel.fitting.auto import epochs_for, short_list, suited
from halflabel.fitting.config import Config
from halflabel.labels.labels import Labels
from halflabel.labels.split import group_numbers
from halflabel.labels.table import Table
from halflabel.methods.base import recipe
from halflabel.system.files import atomic_write, cache_folder, write_csv, write_json
from halflabel.system.reporter import SILENT, Reporter

_TEST_SHARE = 0.2


class ExperimentOptions(TypedDict, total=False):
    """Keyword arguments of every experiment."""

    test: Table | Labels | None  # labels of other images to evaluate on; without them `test_share` is set aside
    test_images: Path | Tensor | None  # their images; by default in the same folder
    test_share: float  # default 0.2
    budget: float | str | None  # seconds, or text such as "30m"; limits this call
    lr: float | None  # replaces the learning rates of the methods
    config: Config | None  # how all are trained; its method, options, lr, weight decay and seed are not used
    cache: Path | None  # folder of cached features; default: beside `out`
    force: bool  # overwrite results that were made with other settings
    reporter: Reporter  # its progress counts images with features; `budget` sets its deadline


def compare(
    labels: Table | Labels,
    images: str | Path | Tensor,
    methods: str | Sequence[str] = "auto",
    *,
    out: str | Path,
    shares: Sequence[float] = (),
    protocols: Sequence[str] = (),
    seeds: int = 3,
    search: Search = "small",
    references: bool = True,
    **options: Unpack[ExperimentOptions],
) -> Trials:
    """Train every method with every seed and label mask, and evaluate all on the same test images.

    Labels made by a model are left out. `methods` are names, with options as in "em:alpha=0.05"; "auto" stands for a
    short list that suits the labels. `shares` keep a share of the labels of each image, `protocols` name others of
    `halflabel.labels.drop`, as in "positives:number=2"; without both, no label is hidden. `search="small"` also tries
    values of the most important option and, in batches, other learning rates, with the first seed. `references` adds
    rows that show the range: see `_references`. Calling again with the same folder `out` continues; methods, shares and
    seeds may then be added. Further `options`: see `ExperimentOptions`.
    """
    masks = dict.fromkeys([*map(LabelMask.parse, protocols), *map(LabelMask.share, shares)])
    label_masks = tuple(masks) or (LabelMask(),)
    if search not in get_args(Search):
        raise UserError(f"no search is called {search!r}", "use small or none")
    table = without_model_labels(labels, options.get("reporter", SILENT))
    bench = make_bench(table, images, Path(out), options, choosing=choosing_labels(labels))
    if search == "none" and options.get("lr") is None:  # each training chooses its rate, as `train` does
        bench.config = replace(bench.config, choose_lr=True)
    if not 0 < bench.config.held_out < 1:
        raise UserError("without validation images no epoch can be selected", "use ‹held_out=0.2›")
    finished = run_trials(bench, methods, label_masks, out, options, seeds, search=search, references=references)
    return finished.save(conclusions=conclude_comparison(finished.trials.rows))


def make_bench(
    table: Table,
    images: str | Path | Tensor,
    out: Path,
    options: ExperimentOptions,
    *,
    held_out: float = Config.held_out,
    choosing: Table | None = None,
) -> Bench:
    """Check the options, split the data and return the bench.

    Without a config: a head on the bundled backbone, fitted as `train` does. A learning rate is a choice of batches.
    """
    check_own_metrics()
    deadline = deadline_of(options.get("budget"))
    lr, config = options.get("lr"), options.get("config")
    test_share, test, cache = options.get("test_share", _TEST_SHARE), options.get("test"), options.get("cache")
    if not 0 < test_share < 1:
        raise UserError(f"the test share {test_share:g} is not between 0 and 1", "use 0.2")
    if lr is not None and not 0 < lr < math.inf:
        raise UserError(f"the learning rate {lr:g} cannot be used", "use ‹lr=0.001›, or leave it to the method")
    if config is None:
        config = Config(held_out=held_out, fit="auto")
        epochs = epochs_for(len(table), config.tune)
        config = replace(config, epochs=epochs)
    if lr is not None and config.fit == "auto" and config.tune == "head":
        config = replace(config, fit="batches")
    if not isinstance(images, Tensor):
        config = replace(config, **options_of_features(images))
    reporter = options.get("reporter", SILENT)
    data = split_data(
        table,
        images if isinstance(images, Tensor) else Path(images),
        test=None if test is None else without_model_labels(test, reporter),
        test_images=options.get("test_images"),
        test_share=test_share,
        group=config.group,
        choosing=choosing,
        reporter=reporter,
    )
    return Bench(
        data,
        config,
        cache if cache is not None else cache_folder(out.parent),
        with_f1=True,
        reporter=replace(reporter, deadline=deadline),
    )


@dataclass
class FinishedTrials:
    """What was run, and its result without conclusions."""

    bench: Bench
    grid: Grid
    outcomes: Results
    scorer: TaskScorer
    store: Store
    trials: Trials

    def save(self, notes: Sequence[str] = (), **more: Any) -> Trials:
        """Complete the result, whose protocol begins with `notes`, and write it."""
        protocol = describe_trials(self.grid, self.bench, self.scorer, self.trials)
        trials = replace(self.trials, protocol=(*notes, *protocol), **more)
        lines = trials.csv_lines()
        folder, values = self.store.folder, [list(line.values()) for line in lines]
        write_csv(folder / "comparison.csv", list(lines[0]) if lines else [], values)
        with atomic_write(folder / "trials.parquet") as temporary:
            pq.write_table(trials.table, temporary)
        with atomic_write(folder / "comparison.tex") as temporary:
            temporary.write_text(trials.latex(), encoding="utf-8")
        write_json(folder / "comparison.json", trials.to_json())
        return trials


def run_trials(
    bench: Bench,
    methods: str | Sequence[str],
    label_masks: Sequence[LabelMask],
    out: str | Path,
    options: ExperimentOptions,
    seeds: int,
    *,
    search: Search = "none",
    references: bool = False,
    kind: Kind = "comparison",
) -> FinishedTrials:
    """Train methods × label masks × seeds, as far as these are not finished, and summarise them."""
    candidates, reasons = _candidates(methods, options.get("lr"), bench, label_masks)
    for name, reason in reasons.items():
        bench.reporter.message(f"auto: {name}: {reason}")
    candidates, unfit = _with_fits(candidates, label_masks, bench)
    further = _references(candidates, label_masks, bench, options.get("lr")) if references else ()
    grid = Grid(candidates, tuple(label_masks), seeds, search, frozenset(unfit), further)
    identity = {"halflabel": __version__, "test_share": options.get("test_share", _TEST_SHARE), **bench.identity()}
    store = Store(Path(out))
    store.start(identity, force=options.get("force", False))
    write_csv(store.folder / "split.csv", ["image", "part", "group"], _split(bench))
    try:
        outcomes, not_run = run_grid(grid, bench, store, bench.reporter)
    finally:
        if bad := bench.bad_images():
            write_csv(store.folder / "bad_images.csv", ["image", "path", "reason"], bad)
    failures = [Failure(mask.name, candidate.name, "all", reason) for (candidate, mask), reason in unfit.items()]
    failures += [
        Failure(task.label_mask.name, task.candidate.name, task.describe(), outcome.error)
        for task, outcome in outcomes.items()
        if outcome.error
    ]
    scorer = TaskScorer(bench, store)
    trials = replace(
        summarise(grid, outcomes, scorer, bench, kind),
        failures=tuple(failures),
        left_out=len(not_run),
        chosen_by=reasons,
    )
    return FinishedTrials(bench, grid, outcomes, scorer, store, trials)


def _candidates(
    methods: str | Sequence[str], lr: float | None, bench: Bench, label_masks: Sequence[LabelMask]
) -> tuple[tuple[Candidate, ...], dict[str, str]]:
    """Return the candidates, and for each method of "auto" the reason why it is one."""
    names = [methods] if isinstance(methods, str) else list(methods)
    candidates: dict[str, Candidate] = {}
    reasons: dict[str, str] = {}
    for name in names:
        if name != "auto":
            candidates.setdefault(name.strip(), Candidate.parse(name, lr=lr))
            continue
        for choice in short_list(*(bench.stats(label_mask) for label_mask in label_masks)):
            candidate = Candidate.of_choice(choice, lr=lr)
            if candidate.name not in candidates:
                candidates[candidate.name], reasons[candidate.name] = candidate, choice.why
    if not candidates:
        raise UserError("no method is named", "use ‹methods=auto›, or names such as bce,em")
    return tuple(candidates.values()), reasons


def _with_fits(
    candidates: Iterable[Candidate], label_masks: Sequence[LabelMask], bench: Bench
) -> tuple[tuple[Candidate, ...], dict[tuple[Candidate, LabelMask], str]]:
    """Return the candidates, each as `train` would fit it; and why some cannot be fitted, or not to such labels."""
    chosen: list[Candidate] = []
    unfit: dict[tuple[Candidate, LabelMask], str] = {}
    for candidate in candidates:
        try:
            candidate = bench.choose_fit(candidate)
        except UserError as error:
            unfit |= {(candidate, mask): in_python(error.message) for mask in label_masks}
        chosen.append(candidate)
    for mask in label_masks:
        regime = bench.stats(mask).regime
        for candidate in chosen:
            try:
                recipe(candidate.method).check_regime(regime)
            except UserError as error:
                unfit[candidate, mask] = in_python(error.message)
    return tuple(chosen), unfit


def _references(
    candidates: Iterable[Candidate], label_masks: Sequence[LabelMask], bench: Bench, lr: float | None
) -> tuple[tuple[Candidate, LabelMask], ...]:
    """Return rows beside the given methods: unknown taken as absent; where labels are hidden, one that knows them all.

    Where systems are trained in batches although `bce` is fitted by L-BFGS, also `bce` in batches (`an` where no label
    is known to be absent).
    """
    pairs = []
    if any(candidate.fit == "batches" for candidate in candidates):
        for mask in label_masks:
            name = BASE if bench.stats(mask).regime in recipe(BASE).serves else NAIVE
            base = Candidate.parse(name, lr=lr)
            if bench.choose_fit(base).fit == "linear":
                pairs.append((replace(base, name=f"{name}:fit=batches", role="base"), mask))
    if not any(candidate.method == NAIVE for candidate in candidates):
        naive = replace(bench.choose_fit(Candidate.parse(NAIVE, lr=lr)), role="naive")
        serves = recipe(NAIVE).serves
        regimes = {mask: bench.stats(mask).regime for mask in label_masks}
        pairs += [(naive, mask) for mask, regime in regimes.items() if regime != "full" and regime in serves]
    if LabelMask() not in label_masks:
        stats = bench.stats(LabelMask())
        choice = next(iter(suited(stats)), None)
        if choice is not None and stats.regime in recipe(choice.method).serves:
            oracle = bench.choose_fit(Candidate.of_choice(choice, lr=lr))
            pairs.append((replace(oracle, role="oracle"), LabelMask()))
    return tuple(pairs)


def _split(bench: Bench) -> list[tuple[str, str, int]]:
    """Return the image, the part and the number of the group of each image."""
    parts = (("train", bench.rest.images, bench.groups), ("test", bench.test.images, bench.data.test_groups))
    return [
        (name, part, group)
        for part, names, groups in parts
        for name, group in zip(names, group_numbers(groups, len(names)).tolist(), strict=True)
    ]
