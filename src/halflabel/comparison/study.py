"""Trials of one method on several sets of labels: how to spend labels (Durand 2019, §4.1), and whether more pay.

`study` spends the same number of clean labels as partial, dense or noisy ones; `grow` extrapolates to twice the labels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
from torch import Tensor

from halflabel.comparison.compare import ExperimentOptions, FinishedTrials, make_bench, run_trials
from halflabel.comparison.conclusions import MEANING, conclude, conclude_growth
from halflabel.comparison.grid import GROWING, LabelMask
from halflabel.comparison.learning_curve import extrapolate
from halflabel.comparison.result import (
    RESAMPLES,
    Gap,
    Growth,
    Interval,
    TaskScore,
    Trials,
    common_seeds,
    paired_interval,
)
from halflabel.comparison.sources import without_model_labels
from halflabel.errors import UserError
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.system.reporter import SILENT

STRATEGIES = ("partial", "dense", "noisy", "noisy+")
BUDGETS = (0.1, 0.2, 0.5, 0.8, 1.0)
GROWTH = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)

Place = tuple[str, float]  # a strategy and its share of clean labels
Scores = Mapping[Place, Mapping[int, TaskScore]]  # by place and seed

_MIN_IMAGES = 20
_STUDY_PROTOCOL = (
    "; ".join(f"{name}: {meaning}" for name, meaning in MEANING.items())
    + ". Labels are flipped in at most one half of the entries, as beyond they mean the opposite.",
    "All strategies are trained in the same way on the same images; an image without a label adds nothing to the loss.",
)
_GROWTH_PROTOCOL = (
    "Shares are nested: with one seed, smaller ones are contained in larger ones. All are trained in the same way.",
    f"The interval of the gain: {RESAMPLES} curves, from bootstrap samples of the test images and noise with the "
    "pooled spread over seeds. It assumes that the power law holds and that new labels are like the present ones.",
)
_ONE_SEED = "With one seed the spread over seeds is unknown: the interval is too narrow. Use several."
_NO_LAW = Growth((math.nan,) * 3, (), Interval(*(math.nan,) * 3), None)


def study(
    labels: Table | Labels,
    images: str | Path | Tensor,
    *,
    out: str | Path,
    method: str = "bn-bce",
    budgets: Sequence[float] = BUDGETS,
    strategies: Sequence[str] = STRATEGIES,
    seeds: int = 3,
    **options: Unpack[ExperimentOptions],
) -> Trials:
    """Spend the same number of clean labels in several ways and compare the results. (Durand 2019, §4.1.)

    Only images with all labels known are used, and labels made by a model are left out. `budgets` are the shares of
    labels that are clean: partial, that share of the labels of every image; dense, all labels of that share of the
    images; noisy, all labels, of which the others are wrong (only from one half on: below, labels mean the opposite);
    noisy+, one positive per image and all other labels negative, which has one share only. Further `options`: see
    `ExperimentOptions`.
    """
    for name in strategies:
        if name not in STRATEGIES:
            raise UserError(f"no strategy is called {name!r}", f"use some of: {', '.join(STRATEGIES)}")
    shares = _check_shares(budgets)
    table = without_model_labels(labels, options.get("reporter", SILENT))
    complete = _fully_labelled(table)
    bench = make_bench(complete, images, Path(out), options, held_out=0.0)
    masks = [_label_mask(name, share) for name in strategies for share in shares if name != "noisy" or share >= 0.5]
    finished = run_trials(bench, method, _unique(masks), out, options, seeds, kind="annotation study")
    scores = _scores(finished)
    pairs = [(place, other) for place in scores for other in scores if _is_compared(place, other)]
    gaps = [*_gaps(scores, pairs), *_gaps(scores, _steps(scores))]
    used = f"{len(complete)} of {len(table)} images have all labels known and are used."
    return finished.save((used, *_STUDY_PROTOCOL), gaps=tuple(gaps), conclusions=conclude(gaps))


def grow(
    labels: Table | Labels,
    images: str | Path | Tensor,
    *,
    out: str | Path,
    method: str = "bn-bce",
    shares: Sequence[float] = GROWTH,
    seeds: int = 3,
    worth: float = 1.0,
    **options: Unpack[ExperimentOptions],
) -> Trials:
    """Measure the learning curve over nested shares of the known labels, and extrapolate to twice the labels.

    Labels made by a model are left out. The curve uses whole images with the labels they have; the control uses as many
    labels drawn at random over all images. mAP = a − b · share^(−c) is fitted to the means over seeds; its interval
    comes from resampled curves (`learning_curve.extrapolate`). `worth` is the gain in points of mAP that would justify
    twice the labels. In epochs of batches and with config.held_out = 0, the default, the last epoch is evaluated.
    Further `options`: see `ExperimentOptions`.
    """
    shares = _check_shares(shares)
    if len(shares) < 3 or shares[-1] < 1:
        raise UserError("a curve needs three shares or more, and all labels", "use ‹budgets=0.125,0.25,0.5,1›")
    table = without_model_labels(labels, options.get("reporter", SILENT))
    bench = make_bench(table, images, Path(out), options, held_out=0.0)
    masks = [_label_mask(name, share) for name in ("dense", "partial") for share in shares]
    finished = run_trials(bench, method, _unique(masks), out, options, seeds, kind="learning curve")
    scores = _scores(finished)
    # The same seeds at all shares: an easy seed at some shares only would bend the curve.
    common = common_seeds(scores)
    shared = {place: {seed: by_seed[seed] for seed in common if seed in by_seed} for place, by_seed in scores.items()}
    curve = {share: by_seed for (name, share), by_seed in shared.items() if name == "dense" and by_seed}
    law = extrapolate(dict(sorted(curve.items())), worth) if len(curve) >= 3 and 1.0 in curve else _NO_LAW
    control = _gaps(scores, [(("dense", share), ("partial", share)) for share in shares[:-1]])
    return finished.save(
        (*_GROWTH_PROTOCOL, *([_ONE_SEED] if len(common) == 1 else [])),
        gaps=(*control, *_gaps(scores, _steps(scores))),
        growth=law,
        conclusions=(conclude_growth(law), *conclude(control)),
    )


def _label_mask(strategy: str, share: float) -> LabelMask:
    """Return the protocol of a strategy; `share` is that of clean labels."""
    if strategy == "noisy+":
        return LabelMask(strategy)
    if share == 1:
        return LabelMask()
    return LabelMask(strategy, (("share", round(1 - share, 9) if strategy == "noisy" else share),))


def _unique(masks: Iterable[LabelMask]) -> list[LabelMask]:
    """Return each once; noisy+, whose share no one chooses, is last."""
    return sorted(dict.fromkeys(masks), key=lambda mask: mask.protocol == "noisy+")


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


def _scores(finished: FinishedTrials) -> Scores:
    """Return the scores of the finished seeds by place; all labels are a place of each strategy that keeps a share."""
    scores: dict[Place, Mapping[int, TaskScore]] = {}
    for pair in finished.grid.pairs:
        by_seed = finished.scorer.scores(finished.grid, pair, finished.outcomes)
        for name in [pair[1].protocol] if pair[1].protocol else GROWING:
            if by_seed:
                scores[name, pair[1].clean(finished.bench.rest)] = by_seed
    return scores


def _is_compared(place: Place, other: Place) -> bool:
    """Return whether to compare partial with dense at the same share, or with noisy at no smaller share."""
    if place[0] != "partial" or place[1] == 1:
        return False
    if other[0] == "dense":
        return place[1] == other[1]
    return other[0] in ("noisy", "noisy+") and place[1] <= other[1] < 1


def _steps(scores: Scores) -> list[tuple[Place, Place]]:
    """Return each share of a strategy with the one before."""
    places = [sorted(place for place in scores if place[0] == name) for name in GROWING]
    return [(more, less) for ordered in places if len(ordered) > 1 for less, more in itertools.pairwise(ordered)]


def _gaps(scores: Scores, pairs: Iterable[tuple[Place, Place]]) -> list[Gap]:
    """Return the paired differences of pairs of places with common seeds."""
    gaps = []
    for place, other in pairs:
        first, second = scores.get(place, {}), scores.get(other, {})
        if seeds := [seed for seed in first if seed in second]:
            paired = paired_interval([first[seed] for seed in seeds], [second[seed] for seed in seeds])
            gaps.append(Gap(*place, *other, *paired))
    return gaps
