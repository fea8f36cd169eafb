"""Studies of how to spend labels: the annotation study of Durand 2019, §4.1, and the learning curve of your data.

`study` spends the same number of clean labels as partial, dense or noisy ones; `grow` extrapolates to twice the labels.
Both train with `experiments.bench`: shared features, stored runs, the same intervals as `compare`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from halflabel.comparison.bench import Bench
from halflabel.comparison.conclusions import conclude, conclude_growth, describe_control
from halflabel.comparison.data import without_model_labels
from halflabel.comparison.grid import Candidate, Grid, LabelMask, Outcome, Task
from halflabel.comparison.learning_curve import Extrapolation, extrapolate
from halflabel.comparison.result import RESAMPLES, Interval, TaskScore, TaskScorer
from halflabel.comparison.run_grid import run_grid
from halflabel.comparison.setup import ExperimentOptions, make_bench, open_store
from halflabel.comparison.study_result import (
    Growth,
    Place,
    ScoresByPlace,
    Study,
    make_gap,
    make_point,
    of_common_seeds,
    past_commands,
    save_study,
    seeds_note,
    step_gaps,
)
from halflabel.errors import UserError
from halflabel.fitting.auto import short_list
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.system.reporter import SILENT

STRATEGIES = ("partial", "dense", "noisy", "noisy+")
BUDGETS = (0.1, 0.2, 0.5, 0.8, 1.0)
GROWTH = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
CURVES = ("whole images", "random labels")

_MIN_IMAGES = 20
_NOISY_PLUS = LabelMask("noisy+")
_STUDY_PROTOCOL = (
    "partial: a share of the labels of every image; dense: all labels of a share of the images, none of the others; "
    "noisy: all labels, the others flipped (not below 50 %, where labels mean the opposite); noisy+: one positive per "
    "image kept, all other labels negative",
    "All strategies are trained in the same way on the same images; an image without a label adds nothing to the loss.",
    f"95 % intervals: {RESAMPLES} bootstrap samples of the test images and the spread over seeds together, wider where "
    "known positives are few; differences are paired by image and by seed, and not corrected for their number.",
)
_GROWTH_PROTOCOL = (
    "Shares are nested: with one seed, smaller ones are contained in larger ones. All are trained in the same way.",
    f"The interval of the gain: {RESAMPLES} curves, from bootstrap samples of the test images and noise with the "
    "pooled spread over seeds. It assumes that the power law holds and that new labels are like the present ones.",
)
_ONE_SEED = "With one seed the spread over seeds is unknown: the interval is too narrow. Use several."


def study(
    labels: Table | Labels,
    images: str | Path | Tensor,
    *,
    out: str | Path,
    method: str = "bn-bce",
    budgets: Sequence[float] = BUDGETS,
    strategies: Sequence[str] = STRATEGIES,
    seeds: int = 3,
    command: Sequence[str] = (),
    **options: Unpack[ExperimentOptions],
) -> Study:
    """Spend the same number of clean labels in several ways and compare the results. (Durand 2019, §4.1.)

    Only images with all labels known are used, and labels made by a model are left out. `budgets` are the shares of
    labels that are clean: partial, that share of the labels of every image; dense, all labels of that share of the
    images; noisy, all labels, of which the others are wrong (only from one half on: below, labels mean the opposite);
    noisy+, one positive per image and all other labels negative, which has one share only. `command` is stored for the
    page. Further `options`: see `ExperimentOptions`.
    """
    out = Path(out)
    for name in strategies:
        if name not in STRATEGIES:
            raise UserError(f"no strategy is called {name!r}", f"use some of: {', '.join(STRATEGIES)}")
    shares = _check_shares(budgets)
    table = without_model_labels(labels, options.get("reporter", SILENT))
    complete = _fully_labelled(table)
    masks: dict[Place, LabelMask] = {}
    for name in dict.fromkeys(strategies):
        for share in shares:
            if name == "noisy+" or (name == "noisy" and share < 0.5):
                continue
            masks[name, share] = _label_mask(name, share)
    has_noisy_plus = "noisy+" in strategies
    all_masks = [*masks.values(), *([_NOISY_PLUS] if has_noisy_plus else [])]
    runs = _train(complete, images, out, method, all_masks, seeds, options)
    rest = runs.bench.rest
    if has_noisy_plus:
        masks["noisy+", float(np.mean(_NOISY_PLUS.apply(rest, 0).value == rest.value))] = _NOISY_PLUS
    scores = {place: runs.scores(mask) for place, mask in masks.items()}
    shared = of_common_seeds(scores)
    pairs = [(place, other) for place in scores for other in scores if _is_compared(place, other)]
    gaps = [gap for place, other in pairs if (gap := make_gap(scores, place, other)) is not None]
    used = f"{len(complete)} of {len(table)} images have all labels known and are used; {runs.describe(seeds)}"
    result = Study(
        gaps=tuple(gaps),
        conclusions=tuple(conclude(gaps)),
        protocol=(used, *_STUDY_PROTOCOL, *seeds_note(scores, shared)),
        steps=step_gaps(scores, ("partial", "dense")),
        commands=past_commands(out, command),
        **runs.facts(masks, scores, shared),
    )
    save_study(out, result)
    return result


def grow(
    labels: Table | Labels,
    images: str | Path | Tensor,
    *,
    out: str | Path,
    method: str = "bn-bce",
    shares: Sequence[float] = GROWTH,
    seeds: int = 3,
    worth: float = 1.0,
    command: Sequence[str] = (),
    **options: Unpack[ExperimentOptions],
) -> Growth:
    """Measure the learning curve over nested shares of the known labels, and extrapolate to twice the labels.

    Labels made by a model are left out. The curve uses whole images with the labels they have; the control uses as many
    labels drawn at random over all images. mAP = a − b · share^(−c) is fitted to the means over seeds; its interval
    comes from resampled curves (`learning_curve.extrapolate`). `worth` is the gain in points of mAP that would justify
    twice the labels. In epochs of batches and with config.held_out = 0, the default, the last epoch is evaluated.
    Further `options`: see `ExperimentOptions`.
    """
    out = Path(out)
    shares = _check_shares(shares)
    if len(shares) < 3 or shares[-1] < 1:
        raise UserError("a curve needs three shares or more, and all labels", "use ‹budgets=0.125,0.25,0.5,1›")
    masks: dict[Place, LabelMask] = {(CURVES[0], share): _label_mask("dense", share) for share in shares}
    masks |= {(CURVES[1], share): _label_mask("partial", share) for share in shares}
    table = without_model_labels(labels, options.get("reporter", SILENT))
    runs = _train(table, images, out, method, list(masks.values()), seeds, options)
    scores = {place: runs.scores(mask) for place, mask in masks.items()}
    shared = of_common_seeds(scores)
    gaps = [
        gap for share in shares[:-1] if (gap := make_gap(scores, (CURVES[0], share), (CURVES[1], share))) is not None
    ]
    # The same seeds at all shares: an easy seed at some shares only would bend the curve.
    curve = {share: shared[CURVES[0], share] for share in shares if (CURVES[0], share) in shared}
    has_curve = len(curve) >= 3 and 1.0 in curve
    law = extrapolate(curve) if has_curve else Extrapolation((math.nan,) * 3, (), Interval(*(math.nan,) * 3), None)
    has_one_seed = len(next(iter(shared.values()), {0: None})) == 1
    protocol = [runs.describe(seeds), *_GROWTH_PROTOCOL, *([_ONE_SEED] if has_one_seed else [])]
    result = Growth(
        gaps=tuple(gaps),
        **law._asdict(),
        worth=worth,
        advice=conclude_growth(law, worth),
        control=describe_control(gaps),
        protocol=(*protocol, *seeds_note(scores, shared)),
        steps=step_gaps(scores, CURVES),
        commands=past_commands(out, command),
        **runs.facts(masks, scores, shared),
    )
    save_study(out, result)
    return result


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


def _fully_labelled(table: Table) -> Table:
    """Return the images with all labels known."""
    images = np.flatnonzero(np.diff(table.start) == len(table.classes))
    if len(images) < _MIN_IMAGES:
        raise UserError(
            f"{len(images)} of {len(table)} images have all their labels known: too few for hiding labels",
            "use ‹unlisted=absent› or ‹zero=absent› if that is what the file means, label some images fully, or use "
            "‹grow›, which takes labels as they are",
        )
    return table.subset(images)


@dataclass
class _Runs:
    """The finished runs of one candidate on several label masks."""

    bench: Bench
    candidate: Candidate
    grid: Grid
    outcomes: Mapping[Task, Outcome]
    not_run: Sequence[Task]
    scorer: TaskScorer

    def scores(self, label_mask: LabelMask) -> dict[int, TaskScore]:
        """Return the test scores of the finished seeds."""
        tasks = self.grid.finished(self.candidate, label_mask, self.outcomes)
        return {seed: self.scorer(task, self.outcomes[task]) for seed, task in tasks.items()}

    def facts(self, masks: Mapping[Place, LabelMask], scores: ScoresByPlace, shared: ScoresByPlace) -> dict[str, Any]:
        """Return the fields of a result that need no conclusion."""
        points = (make_point(self.bench.rest, place, masks[place], shared[place], scores[place]) for place in shared)
        failed = {task: outcome.error for task, outcome in self.outcomes.items() if outcome.error}
        return {
            "method": self.candidate.name,
            "points": tuple(points),
            "failures": tuple(f"{task.describe()}: {error}" for task, error in failed.items()),
            "left_out": len(self.not_run),
            "waiting": self.bench.sources.unfinished_features,
        }

    def describe(self, seeds: int) -> str:
        """Return a sentence on how the runs were trained and evaluated."""
        config, bench = self.bench.config, self.bench
        epoch = f"the epoch selected on {100 * config.held_out:g} % held out" if config.held_out else "the last epoch"
        network = f"a head on frozen {config.backbone}" if config.tune == "head" else f"all of {config.backbone}"
        training = f"{config.settings.epochs} epochs at learning rate {self.candidate.lr:g}, {epoch} is evaluated"
        if self.candidate.solver == "lbfgs":
            training = "by L-BFGS, with the strength of regularisation that gives the best out-of-fold scores"
        return (
            f"{len(bench.rest)} training images and {len(bench.test)} test images, the same for all; "
            f"{self.candidate.name} trains {network}, {training}; "
            f"{seeds} seed{'s' if seeds > 1 else ''}, which also select{'' if seeds > 1 else 's'} the labels"
        )


def _train(
    table: Table,
    images: str | Path | Tensor,
    out: Path,
    method: str,
    label_masks: Sequence[LabelMask],
    seeds: int,
    options: ExperimentOptions,
) -> _Runs:
    bench = make_bench(table, images, out, options, held_out=0.0)
    label_masks = tuple(dict.fromkeys(label_masks))
    if method == "auto":
        choice = short_list(*(bench.stats(label_mask) for label_mask in label_masks))[0]
        bench.reporter.message(f"auto: {choice.method}: {choice.why}")
        candidate = Candidate.of_choice(choice, lr=options.get("lr"))
    else:
        candidate = Candidate.parse(method, lr=options.get("lr"))
    candidate = bench.choose_solver(candidate)
    grid = Grid((candidate,), label_masks, seeds, "none")
    store = open_store(out, "study", bench, options)
    outcomes, not_run = run_grid(grid, bench, store, bench.reporter)
    return _Runs(bench, candidate, grid, outcomes, not_run, TaskScorer(bench, store))


def _is_compared(place: Place, other: Place) -> bool:
    """Return whether to compare partial with dense at the same share, or with noisy at no smaller share."""
    if place[0] != "partial" or place[1] == 1:
        return False
    if other[0] == "dense":
        return place[1] == other[1]
    return other[0] in ("noisy", "noisy+") and place[1] <= other[1] < 1
