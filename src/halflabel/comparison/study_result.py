"""The result of a study: points, paired differences and protocol; and the files it is saved to."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from halflabel.comparison.grid import LabelMask
from halflabel.comparison.learning_curve import Backtest
from halflabel.comparison.result import Interval, TaskScore, common_seeds, mean_interval, paired_interval
from halflabel.comparison.store import Store
from halflabel.labels.table import Table
from halflabel.system.files import to_json_value

Place = tuple[str, float]  # a strategy and its share of clean labels
ScoresByPlace = Mapping[Place, Mapping[int, TaskScore]]  # by place and seed

_FILES = ("study.csv", "study.json")


@dataclass(frozen=True)
class Point:
    """Test mAP of one way to spend labels, with a 95 % interval; `share` is that of clean labels.

    The mean is over `seeds` seeds, those that all points have finished; `per_seed` has all seeds of this point.
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
    """Test mAP of one way to spend labels minus that of another, paired by seed and test image, 95 % interval."""

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


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What both kinds of study have: curves and paired differences."""

    method: str
    points: tuple[Point, ...]
    gaps: tuple[Gap, ...]  # of a learning curve: whole images minus random labels, at the same number of labels
    protocol: tuple[str, ...]
    failures: tuple[str, ...] = ()
    left_out: int = 0
    waiting: tuple[int, int] | None = None  # (images with features, images in all) if the budget ended before training
    steps: tuple[Gap, ...] = ()  # each share minus the previous one, for strategies with more and more labels
    commands: tuple[tuple[str, ...], ...] = ()  # the commands that made it, in order


@dataclass(frozen=True, kw_only=True)
class Study(StudyResult):
    """The annotation study, with the conclusions that the intervals support."""

    conclusions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Growth(StudyResult):
    """The learning curve, the power law fitted to it, and the expected gain of twice the labels."""

    law: tuple[float, float, float]  # a, b, c
    curve: tuple[tuple[float, float, float, float], ...]  # share, fitted mAP, low, high; up to twice the labels
    gain: Interval  # of twice the labels, in mAP
    backtest: Backtest | None
    ahead: tuple[tuple[float, float, float, float], ...]  # factor of the number of labels, gain, low, high
    worth: float
    advice: str
    control: str


def of_common_seeds(scores: ScoresByPlace) -> dict[Place, dict[int, TaskScore]]:
    """Return the scores of the seeds that all places have finished; places with none of them are left out."""
    common = common_seeds({place: by_seed for place, by_seed in scores.items() if by_seed})
    shared = {place: {seed: by_seed[seed] for seed in common if seed in by_seed} for place, by_seed in scores.items()}
    return {place: by_seed for place, by_seed in shared.items() if by_seed}


def seeds_note(scores: ScoresByPlace, shared: ScoresByPlace) -> list[str]:
    """Return a sentence about finished runs that are in no point, if there are any."""
    unused = sum(len(by_seed) - len(shared.get(place, ())) for place, by_seed in scores.items())
    if not unused:
        return []
    seeds = ", ".join(map(str, next(iter(shared.values()))))
    return [f"Points are means over the seeds that all have finished ({seeds}); {unused} further runs are left out."]


def make_point(
    rest: Table,
    place: Place,
    label_mask: LabelMask,
    shared: Mapping[int, TaskScore],
    all_seeds: Mapping[int, TaskScore],
) -> Point:
    """Return the mean over the shared seeds with its interval; `rest` are the labels before the mask."""
    mean = mean_interval(list(shared.values()))
    labels = label_mask.apply(rest, 0).known
    return Point(*place, labels, *mean, len(shared), tuple(score.mAP for score in all_seeds.values()))


def make_gap(scores: ScoresByPlace, place: Place, other: Place) -> Gap | None:
    """Return the paired difference of two places over their common seeds, or None if they have none."""
    first, second = scores[place], scores[other]
    seeds = [seed for seed in first if seed in second]
    if not seeds:
        return None
    paired = paired_interval([first[seed] for seed in seeds], [second[seed] for seed in seeds])
    return Gap(*place, *other, *paired)


def step_gaps(scores: ScoresByPlace, strategies: Sequence[str]) -> tuple[Gap, ...]:
    """Return the gains of more labels: each share with finished runs minus the previous one."""
    gaps = []
    for name in strategies:
        shares = sorted(share for strategy, share in scores if strategy == name and scores[strategy, share])
        gaps += [make_gap(scores, (name, more), (name, less)) for less, more in itertools.pairwise(shares)]
    return tuple(gap for gap in gaps if gap is not None)


def past_commands(out: Path, command: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the commands stored in a folder, and this one."""
    try:
        stored = json.loads((out / _FILES[1]).read_text(encoding="utf-8"))["commands"]
        commands = [tuple(str(word) for word in words) for words in stored]
    except (OSError, ValueError, KeyError, TypeError):
        commands = []
    return tuple(dict.fromkeys([*commands, *([tuple(command)] if command else [])]))


def save_study(out: Path, result: StudyResult) -> None:
    """Write study.csv (the points) and study.json (everything)."""
    store = Store(out, "study")
    names = [column.name for column in dataclasses.fields(Point)]
    rows = [
        [*(getattr(point, name) for name in names[:-1]), " ".join(f"{value:.6g}" for value in point.per_seed)]
        for point in result.points
    ]
    store.write_csv(_FILES[0], names, rows)
    store.write_json(_FILES[1], to_json_value(asdict(result)))
