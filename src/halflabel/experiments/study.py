"""How to spend labels: the annotation study of Durand 2019, §4.1, and the learning curve of one's own data.

`study` spends the same number of clean labels as partial, dense or noisy ones; `grow` asks what twice the labels would
give. Both train through the bench of `halflabel.experiments`: shared features, kept runs, the same intervals.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from halflabel import __version__
from halflabel.errors import UserError
from halflabel.experiments.bench import Bench
from halflabel.experiments.compare import Progress, check_rate, run_grid
from halflabel.experiments.conclusions import advise, conclude, describe_control
from halflabel.experiments.grid import Candidate, Grid, LabelMask, parse_budget
from halflabel.experiments.learning_curve import Backtest, Extrapolation, extrapolate
from halflabel.experiments.result import RESAMPLES, Interval, Judged, Scored, common_seeds, difference, interval
from halflabel.experiments.store import Store
from halflabel.labels.table import LabelTable
from halflabel.methods.auto import epochs_for, short_list
from halflabel.system.files import to_json_value
from halflabel.training.callbacks import Callback
from halflabel.training.config import Config

__all__ = ["BUDGETS", "GROWTH", "STRATEGIES", "Gap", "Growth", "Point", "Study", "grow", "study"]

STRATEGIES = ("partial", "dense", "noisy", "noisy+")
BUDGETS = (0.1, 0.2, 0.5, 0.8, 1.0)
GROWTH = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
CURVES = ("whole images", "random labels")

Place = tuple[str, float]  # a strategy and its share of clean labels

_FEWEST = 20  # images
_SAVED = ("study.csv", "study.json")


@dataclass(frozen=True)
class Point:
    """Test mAP of one way to spend labels, with a 95 % interval; `share` is that of clean labels.

    The mean is over `seeds` seeds, those that all points have finished; `per_seed` has all of its own.
    """

    strategy: str
    share: float
    labels: int  # known to training, right or wrong
    mAP: float
    low: float
    high: float
    seeds: int
    per_seed: tuple[float, ...]


@dataclass(frozen=True)
class Gap:
    """Test mAP of one way to spend labels less that of another, paired by seed and by test image, 95 % interval."""

    strategy: str
    share: float
    other: str
    other_share: float
    difference: float
    low: float
    high: float

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0


@dataclass(frozen=True)
class Study:
    """The annotation study: curves, paired differences, and what the intervals support, in sentences."""

    method: str
    points: tuple[Point, ...]
    gaps: tuple[Gap, ...]
    conclusions: tuple[str, ...]
    protocol: tuple[str, ...]
    failures: tuple[str, ...] = ()
    left_out: int = 0
    waiting: tuple[int, int] | None = None  # images with features, of so many, where the budget ended among these
    steps: tuple[Gap, ...] = ()  # each share less the one before it, of the strategies that take more labels
    commands: tuple[tuple[str, ...], ...] = ()  # the words of those that have made it, one after the other


@dataclass(frozen=True)
class Growth:
    """The learning curve, the power law through it, and what twice the labels are expected to give."""

    method: str
    points: tuple[Point, ...]
    gaps: tuple[Gap, ...]  # whole images less random labels, at the same number of labels
    law: tuple[float, float, float]  # a, b, c
    curve: tuple[tuple[float, float, float, float], ...]  # share, fitted mAP, low, high; up to twice the labels
    gain: Interval  # of twice the labels, in mAP
    backtest: Backtest | None
    ahead: tuple[tuple[float, float, float, float], ...]  # times the labels there are, the gain of these, low, high
    worth: float
    advice: str
    control: str
    protocol: tuple[str, ...]
    failures: tuple[str, ...] = ()
    left_out: int = 0
    waiting: tuple[int, int] | None = None
    steps: tuple[Gap, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


def study(
    table: LabelTable,
    images: Path | Tensor,
    *,
    out: Path,
    method: str = "bn-bce",
    budgets: Sequence[float] = BUDGETS,
    strategies: Sequence[str] = STRATEGIES,
    seeds: int = 3,
    command: Sequence[str] = (),
    **how: Any,
) -> Study:
    """Spend the same number of clean labels in several ways and compare what is learned. (Durand 2019, §4.1.)

    Of the images with all labels known, `budgets` are the shares of labels that are clean: partial, that share of every
    image's labels; dense, all labels of that share of the images; noisy, all labels, of which the others are wrong
    (from one half on: below, labels say the opposite); noisy+, one positive per image and all else negative, which has
    one share only. `command` are the words this was asked for by, for the page; `how` are the further arguments of
    `grow`.
    """
    for name in strategies:
        if name not in STRATEGIES:
            raise UserError(f"no strategy is called {name!r}", f"use some of: {', '.join(STRATEGIES)}")
    shares = _check_shares(budgets)
    whole = _complete(table)
    spent: dict[tuple[str, float], LabelMask] = {}
    for name in dict.fromkeys(strategies):
        for share in shares:
            if name == "noisy+" or (name == "noisy" and share < 0.5):
                continue
            spent[name, share] = _label_mask(name, share)
    with_noise = "noisy+" in strategies
    bench, tried = _train(whole, images, out, method, [*spent.values(), *([_PLUS] if with_noise else [])], seeds, **how)
    if with_noise:
        kept = _PLUS.apply(bench.rest, 0)
        spent["noisy+", float(np.mean(kept.value == bench.rest.value))] = _PLUS
    scored = {place: tried.scored(label_mask) for place, label_mask in spent.items()}
    seen = _by_common_seeds(scored)
    points = [_point(bench, *place, spent[place], found, scored[place]) for place, found in seen.items()]
    pairs = [(a, b) for a in scored for b in scored if _compared(a, b)]
    gaps = [gap for a, b in pairs if (gap := _gap(*a, scored[a], *b, scored[b])) is not None]
    left = f"{len(whole)} of {len(table)} images have all labels known and are used; {_said(bench, tried, seeds)}"
    result = Study(
        tried.candidate.name,
        tuple(points),
        tuple(gaps),
        tuple(conclude(gaps)),
        (left, *_PROTOCOL, *_said_of_seeds(scored, seen)),
        tuple(tried.failures),
        len(tried.left),
        tried.waiting,
        _steps(scored, ("partial", "dense")),
        _commands(out, command),
    )
    _save(out, result, points)
    return result


def grow(
    table: LabelTable,
    images: Path | Tensor,
    *,
    out: Path,
    method: str = "bn-bce",
    shares: Sequence[float] = GROWTH,
    seeds: int = 3,
    worth: float = 1.0,
    command: Sequence[str] = (),
    **how: Any,
) -> Growth:
    """The learning curve over nested shares of what is known, and what twice the labels are expected to give.

    The curve takes whole images with the labels they have; the control draws as many labels at random over all images.
    mAP = a − b · share^(−c) is fitted to the means over seeds. Its interval comes from curves drawn anew: the test
    images' bootstrap, and noise with the seeds' spread. `worth` is the gain in points of mAP that would justify the
    labels. `how`: test, test_images, test_share, budget, lr, config, cache, force, callback, say, progress, as for
    `compare`; with config.held_out = 0, as by default, the last epoch is judged.
    """
    steps = _check_shares(shares)
    if len(steps) < 3 or steps[-1] < 1:
        raise UserError("a curve needs three shares or more, and all labels", "use --budgets 0.125,0.25,0.5,1")
    spent = {("whole images", share): _label_mask("dense", share) for share in steps}
    spent |= {("random labels", share): _label_mask("partial", share) for share in steps}
    bench, tried = _train(table, images, out, method, list(spent.values()), seeds, **how)
    scored = {place: tried.scored(label_mask) for place, label_mask in spent.items()}
    seen = _by_common_seeds(scored)
    points = [_point(bench, *place, spent[place], found, scored[place]) for place, found in seen.items()]
    gaps = [
        gap
        for share in steps[:-1]
        if (gap := _gap(CURVES[0], share, scored[CURVES[0], share], CURVES[1], share, scored[CURVES[1], share]))
    ]
    # By the same seeds at all shares: one that is easier would bend the curve where it is alone.
    main = {share: seen[CURVES[0], share] for share in steps if (CURVES[0], share) in seen}
    enough = len(main) >= 3 and 1.0 in main
    law = extrapolate(main) if enough else Extrapolation((math.nan,) * 3, (), Interval(*(math.nan,) * 3), None)
    alone = len(next(iter(seen.values()), {0: None})) == 1
    said = (_said(bench, tried, seeds), *_GROWING, _ONE_SEED if alone else "", *_said_of_seeds(scored, seen))
    result = Growth(
        tried.candidate.name,
        tuple(points),
        tuple(gaps),
        *law,
        worth=worth,
        advice=advise(law, worth) if enough else "Too few runs are finished for a curve: give it more time.",
        control=describe_control(gaps),
        protocol=tuple(line for line in said if line),
        failures=tuple(tried.failures),
        left_out=len(tried.left),
        waiting=tried.waiting,
        steps=_steps(scored, CURVES),
        commands=_commands(out, command),
    )
    _save(out, result, points)
    return result


_PLUS = LabelMask("noisy+")
_PROTOCOL = (
    "partial: a share of every image's labels; dense: all labels of a share of the images, none of the others; noisy: "
    "all labels, the others flipped (not below 50 %, where labels say the opposite); noisy+: one positive per image "
    "kept, all else negative",
    "All strategies take the same number of steps over the same images; an image without a label adds nothing.",
    f"95 % intervals: {RESAMPLES} bootstrap samples of the test images and the spread over seeds together, wider where "
    "known positives are few; differences are paired by image and by seed, and not corrected for their number.",
)
_GROWING = (
    "Shares are nested: with one seed, smaller ones are contained in larger ones. All take the same number of steps.",
    f"The interval of the gain: {RESAMPLES} curves, from bootstrap samples of the test images and noise with the "
    "pooled spread over seeds. It takes the power law as true, and new labels to be like those there are.",
)
_ONE_SEED = "With one seed the spread over seeds is not known: the interval is too narrow. Use several."


def _label_mask(strategy: str, share: float) -> LabelMask:
    if share == 1:
        return LabelMask()
    if strategy == "partial":
        return LabelMask.share(share)
    return LabelMask(strategy, (("share", round(1 - share, 9) if strategy == "noisy" else share),))


def _check_shares(shares: Sequence[float]) -> list[float]:
    for share in shares:
        if not 0 < share <= 1:
            raise UserError(f"the share {share:g} is not in (0, 1]", "give shares such as 0.1,0.2,0.5,1")
    if not shares:
        raise UserError("no share of the labels is named", "give shares such as 0.1,0.2,0.5,1")
    return sorted(set(shares))


def _complete(table: LabelTable) -> LabelTable:
    """The images of which everything is known."""
    full = np.flatnonzero(np.diff(table.start) == len(table.classes))
    if len(full) < _FEWEST:
        raise UserError(
            f"{len(full)} of {len(table)} images have all their labels known: too few to take labels away from",
            "say --unlisted absent or --zero absent if that is what the file means, label some images fully, or use "
            "--grow, which takes labels as they are",
        )
    return table.subset(full)


@dataclass
class _Tried:
    """The finished runs of one candidate on several label masks."""

    candidate: Candidate
    grid: Grid
    found: Mapping[Any, Any]
    left: Sequence[Any]
    store: Store
    judged: Judged
    waiting: tuple[int, int] | None = None

    def scored(self, label_mask: LabelMask) -> dict[int, Scored]:
        """By seed, for the seeds that are finished."""
        tasks = {seed: self.grid.cell(self.candidate, label_mask, seed, self.found) for seed in range(self.grid.seeds)}
        return {s: self.judged(t) for s, t in tasks.items() if t in self.found and not self.found[t].error}

    @property
    def failures(self) -> list[str]:
        return [f"{task.describe()}: {outcome.error}" for task, outcome in self.found.items() if outcome.error]


def _train(
    table: LabelTable,
    images: Path | Tensor,
    out: Path,
    method: str,
    label_masks: Sequence[LabelMask],
    seeds: int,
    *,
    test: LabelTable | None = None,
    test_images: Path | Tensor | None = None,
    test_share: float = 0.2,
    budget: float | str | None = None,
    lr: float | None = None,
    config: Config | None = None,
    cache: Path | None = None,
    force: bool = False,
    callback: Callback | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Bench, _Tried]:
    started = time.monotonic()
    seconds = parse_budget(budget) if isinstance(budget, str) else budget
    if seeds < 1:
        raise UserError(f"{seeds} seeds give no result", "use 1 or more")
    if not 0 < test_share < 1:
        raise UserError(f"the test share {test_share:g} is not between 0 and 1", "use 0.2")
    check_rate(lr)
    if config is None:
        config = Config(held_out=0.0)
        epochs = epochs_for(len(table), config.tune)
        config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, epochs=epochs))
    features = Progress(progress)
    bench = Bench(
        table,
        images,
        config,
        test=test,
        test_images=test_images,
        test_share=test_share,
        cache=cache if cache is not None else out.parent / "cache",
        deadline=None if seconds is None else started + seconds,
        say=say,
        progress=features,
    )
    label_masks = tuple(dict.fromkeys(label_masks))
    if method == "auto":
        choice = short_list(*(bench.stats(label_mask) for label_mask in label_masks))[0]
        say(f"auto: {choice.method}: {choice.why}")
        lr = choice.settings.get("lr") if lr is None else lr
        method = choice.method + "".join(f":{name}={value}" for name, value in choice.options.items())
    candidate = Candidate.parse(method, lr=lr)
    grid = Grid((candidate,), label_masks, seeds, "none")
    bench.open()
    store = Store(out, "study")
    store.start({"halflabel": __version__, "test_share": test_share, **bench.identity()}, force=force)
    found, left = run_grid(grid, bench, store, callback, bench.deadline)
    return bench, _Tried(candidate, grid, found, left, store, Judged(bench, store), features.waiting)


def _said(bench: Bench, tried: _Tried, seeds: int) -> str:
    config = bench.config
    chosen = f"the epoch chosen on {100 * config.held_out:g} % held out" if config.held_out else "the last epoch"
    network = f"a head on frozen {config.backbone}" if config.tune == "head" else f"all of {config.backbone}"
    return (
        f"{len(bench.rest)} images to learn from, {len(bench.test)} to judge by, the same for all; "
        f"{tried.candidate.name} trains {network}, {config.settings.epochs} epochs at rate {tried.candidate.lr:g}, "
        f"{chosen} is judged; "
        f"{seeds} seed{'s' if seeds > 1 else ''}, which also draw{'' if seeds > 1 else 's'} the labels"
    )


def _by_common_seeds(scored: Mapping[Place, Mapping[int, Scored]]) -> dict[Place, dict[int, Scored]]:
    """What is finished of each place with the seeds that all of these have; left out is who has none of them."""
    common = common_seeds({place: found for place, found in scored.items() if found})
    seen = {place: {seed: found[seed] for seed in common if seed in found} for place, found in scored.items()}
    return {place: found for place, found in seen.items() if found}


def _said_of_seeds(
    scored: Mapping[Place, Mapping[int, Scored]], seen: Mapping[Place, Mapping[int, Scored]]
) -> list[str]:
    """Which finished runs no point is made of."""
    further = sum(len(found) - len(seen.get(place, ())) for place, found in scored.items())
    if not further:
        return []
    seeds = ", ".join(map(str, next(iter(seen.values()))))
    return [f"Points are means over the seeds that all have finished ({seeds}); {further} further runs are left out."]


def _point(
    bench: Bench,
    strategy: str,
    share: float,
    label_mask: LabelMask,
    found: Mapping[int, Scored],
    every: Mapping[int, Scored],
) -> Point:
    values = np.array([one.mAP for one in found.values()])
    positives = min(one.positives for one in found.values())
    own = interval(values, np.stack([one.replicates for one in found.values()]), positives)
    labels = label_mask.apply(bench.rest, 0).known
    return Point(strategy, share, labels, *own, len(values), tuple(one.mAP for one in every.values()))


def _gap(
    strategy: str, share: float, found: Mapping[int, Scored], other: str, at: float, others: Mapping[int, Scored]
) -> Gap | None:
    seeds = [seed for seed in found if seed in others]
    if not seeds:
        return None
    values = np.array([found[seed].mAP - others[seed].mAP for seed in seeds])
    draws = np.stack([found[seed].replicates - others[seed].replicates for seed in seeds])
    between = difference(values, draws, min(found[seed].positives for seed in seeds))
    return Gap(strategy, share, other, at, *between)


def _steps(scored: Mapping[Place, Mapping[int, Scored]], strategies: Sequence[str]) -> tuple[Gap, ...]:
    """What more labels of a kind gave: every share that has finished runs less the one before it."""
    found = []
    for name in strategies:
        shares = sorted(share for kind, share in scored if kind == name and scored[kind, share])
        for less, more in itertools.pairwise(shares):
            found.append(_gap(name, more, scored[name, more], name, less, scored[name, less]))
    return tuple(gap for gap in found if gap is not None)


def _commands(out: Path, command: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The commands that a folder says it was made by, and this one."""
    try:
        before = json.loads((out / _SAVED[1]).read_text(encoding="utf-8"))["commands"]
        known = [tuple(str(word) for word in words) for words in before]
    except (OSError, ValueError, KeyError, TypeError):
        known = []
    return tuple(dict.fromkeys([*known, *([tuple(command)] if command else [])]))


def _compared(a: tuple[str, float], b: tuple[str, float]) -> bool:
    """Partial and dense at the same share; partial and noisy at that or a smaller share of clean labels."""
    if a[0] != "partial" or a[1] == 1:
        return False
    if b[0] == "dense":
        return a[1] == b[1]
    return b[0] in ("noisy", "noisy+") and a[1] <= b[1] < 1


def _save(out: Path, result: Study | Growth, points: Sequence[Point]) -> None:
    store = Store(out, "study")
    names = [one.name for one in dataclasses.fields(Point)]
    rows = [
        [*(getattr(point, name) for name in names[:-1]), " ".join(f"{v:.6g}" for v in point.per_seed)]
        for point in points
    ]
    store.write_csv(_SAVED[0], names, rows)
    store.write_json(_SAVED[1], to_json_value(asdict(result)))
