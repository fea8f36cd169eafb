"""Trials of one method on several sets of labels: how to spend labels (Durand 2019, §4.1), and whether more pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from halflabel.comparison.compare import ExperimentOptions, FinishedTrials, make_bench, run_trials
from halflabel.comparison.conclusions import MEANING, conclude, conclude_growth
from halflabel.comparison.label_mask import GROWING, LabelMask
from halflabel.comparison.result import (
    RESAMPLES,
    Backtest,
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
from halflabel.system.rng import uniform

STRATEGIES = ("partial", "dense", "noisy", "noisy+")
BUDGETS = (0.1, 0.2, 0.5, 0.8, 1.0)
GROWTH = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)

_EXPONENTS = np.geomspace(0.05, 3.0, 48)
_REFINEMENT = np.geomspace(0.92, 1 / 0.92, 33)  # factors of the best exponent

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

    Only images with all labels known are used. `budgets` are the shares of labels that are clean: partial, that share
    of the labels of every image; dense, all labels of that share of the images; noisy, all labels, of which the others
    are wrong (only from one half on); noisy+, one positive per image and all other labels negative. Further `options`:
    see `ExperimentOptions`.
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

    The curve uses whole images with the labels they have; the control as many labels drawn over all images. `worth` is
    the gain in points of mAP that would justify twice the labels. Further `options`: see `ExperimentOptions`.
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


class Law(NamedTuple):
    """mAP = a − b · share^(−c), b ≥ 0, a ≤ 1; arrays (R,), one value per fitted curve."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    c: NDArray[np.float64]

    def at(self, share: float) -> NDArray[np.float64]:
        return np.asarray(self.a - self.b * share**-self.c)


def extrapolate(scores: Mapping[float, Mapping[int, TaskScore]], worth: float = 1.0) -> Growth:
    """Fit the power law to share -> seed -> score, with 1.0 (all labels) among the shares; predict twice the labels.

    Its interval: curves of bootstrap samples of the test images, and noise with the pooled spread over seeds.
    """
    share = np.array(list(scores))
    means, drawn = _resampled(list(scores.values()))
    law, laws = fit_law(share, means[None]), fit_law(share, drawn)
    backtest = None
    half = share <= 0.5
    if half.sum() >= 3 and 0.5 in scores:
        half_law, half_laws = fit_law(share[half], means[None, half]), fit_law(share[half], drawn[:, half])
        at_all, at_half = np.argmax(share == 1), np.argmax(share == 0.5)
        measured = float(means[at_all] - means[at_half])
        predicted = half_law.at(1.0) - half_law.at(0.5)
        # The measured gain is uncertain too, so the interval is that of the predicted minus the measured gain.
        error = half_laws.at(1.0) - half_laws.at(0.5) - (drawn[:, at_all] - drawn[:, at_half])
        backtest = Backtest(_interval(predicted, error + measured), measured)
    curve = [
        (point, *_interval(law.at(point), laws.at(point))) for point in np.geomspace(share.min(), 2.0, 40).tolist()
    ]
    gain = _interval(law.at(2.0) - law.at(1.0), laws.at(2.0) - laws.at(1.0))
    return Growth(
        (float(law.a[0]), float(law.b[0]), float(law.c[0])),
        tuple(curve),
        gain,
        backtest,
        worth,
    )


def fit_law(share: NDArray[np.float64], value: NDArray[np.float64]) -> Law:
    """Fit value = a − b · share^(−c) by least squares with b ≥ 0 and a ≤ 1; share (B,), value (R, B).

    For a fixed exponent the best a and b have a closed form: all R curves are fitted on a grid of exponents, twice.
    """
    coarse = _best_law(np.tile(_EXPONENTS[:, None], len(value)), share, value)
    return _best_law(coarse.c * _REFINEMENT[:, None], share, value)


def _best_law(c: NDArray[np.float64], share: NDArray[np.float64], value: NDArray[np.float64]) -> Law:
    """Return the best fit of each curve among its exponents c (E, R)."""
    z = share ** -c[..., None]  # (E, R, B)
    centred = z - z.mean(2, keepdims=True)
    b = np.maximum(-(value * centred).sum(2) / (centred**2).sum(2), 0.0)
    a = value.mean(1) + b * z.mean(2)
    b = np.where(a > 1, np.maximum(((1 - value) * z).sum(2) / (z**2).sum(2), 0.0), b)
    a = np.minimum(a, 1.0)
    best = ((a[..., None] - b[..., None] * z - value) ** 2).sum(2).argmin(0), np.arange(len(value))
    return Law(a[best], b[best], c[best])


def _resampled(scores: Sequence[Mapping[int, TaskScore]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means over seeds (B,), and resampled means for other test images and other seeds (R, B)."""
    values = [np.array([score.mAP for score in by_seed.values()]) for by_seed in scores]
    means = np.array([group.mean() for group in values])
    images = np.stack([np.mean([score.replicates for score in by_seed.values()], 0) for by_seed in scores], 1)
    freedom = sum(len(group) - 1 for group in values)
    # Pooled over the shares, because three seeds alone give a poor estimate of the spread.
    spread = math.sqrt(sum(((group - group.mean()) ** 2).sum() for group in values) / freedom) if freedom else 0.0
    normal = _normal(len(images), len(values) + freedom)
    noise = normal[:, : len(values)] * spread
    if freedom:  # the spread is estimated from few runs: divide by a χ² number, a sum of squares of normal numbers
        noise *= np.sqrt(freedom / (normal[:, len(values) :] ** 2).sum(1, keepdims=True))
    return means, means + images - np.nanmean(images, 0) + noise / np.sqrt([len(group) for group in values])


def _normal(rows: int, columns: int) -> NDArray[np.float64]:
    """Return normal random numbers (rows, columns) that depend only on their position (Box and Muller 1958)."""
    row, column = np.arange(rows)[:, None], np.arange(columns)[None]
    radius = np.sqrt(-2 * np.log1p(-uniform(0, row, column, 0)))
    return np.asarray(radius * np.cos(2 * math.pi * uniform(0, row, column, 1)))


def _interval(point: NDArray[np.float64], drawn: NDArray[np.float64]) -> Interval:
    value = float(point[0])
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return Interval(value, min(float(low), value), max(float(high), value))
