"""A live review: after some answers the model is fitted again, and scores, questions and estimates follow.

Runs in a process of its own (`live_process`), so that the page stays quick; benchmarks call it directly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.evaluation.calibration import Calibration, fit_correction
from halflabel.evaluation.decisions import unknown_curve
from halflabel.evaluation.evaluate import evaluate
from halflabel.evaluation.inclusion import share_interval
from halflabel.evaluation.positives_only import expected_f1_threshold
from halflabel.evaluation.scores import Scores
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Fit, Inputs, fit
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.questions.choose import Question, choose_questions
from halflabel.review.live_questions import (
    CONTROL_SHARE,
    NAMES_SHARE,
    QUEUE,
    EntryAnswer,
    Explorer,
    draw_controls,
    mix,
)
from halflabel.runs.from_nothing import learn_from_answers

_LEAST_SLOPE = 0.05  # probabilities keep the order of the logits
_DRAWS = 40  # of slope and offset, for the interval of mAP
_MAX_ENTRIES = 400_000  # entries that mAP is estimated on
_NEIGHBOUR_COMPONENTS = 64  # principal components by which photos are similar
_NOTHING = -10.0  # logit of everything before the first label

Interval = tuple[float, float, float]  # estimate, low, high; with 95 %


def fit_probabilities(z: NDArray[Any], controls: Sequence[EntryAnswer]) -> Calibration:
    """Correct calibrated logits (N, C) by control answers: a logistic regression that few answers change little."""
    readable = [item for item in controls if not np.isnan(z[item.image, item.column])]
    x = np.array([z[item.image, item.column] for item in readable], np.float64)
    present = np.array([item.value > 0 for item in readable], np.bool_)
    fitted = fit_correction(x, present, np.array([item.weight for item in readable]))
    return fitted._replace(slope=max(fitted.slope, _LEAST_SLOPE))


class Quality(NamedTuple):
    """The state of the model after so many answers."""

    answers: int
    controls: int
    threshold: float
    precision: Interval | None  # of what is called present, by controls
    mean_average_precision: Interval
    decided: int  # unknown entries with a probability of being present that is high or low enough
    unknown: int
    per_class: list[dict[str, Any]]


def measure(
    z: NDArray[Any],
    calibration: Calibration,
    labels: NDArray[np.int8],
    controls: Sequence[EntryAnswer],
    *,
    answers: int,
    precision: float = 0.95,
) -> Quality:
    """Measure the model from calibrated out-of-fold logits (N, C), known labels (N, C) and control answers."""
    p = calibration.scores(z)
    unknown = (labels == 0) & ~np.isnan(p)
    threshold = expected_f1_threshold(p)
    # As in `fill`, nothing is decided of a class without a known positive.
    sure = unknown & ((p >= precision) | (p <= 1 - precision)) & (labels > 0).any(0)
    expected = np.where(labels == 0, np.nan_to_num(p), labels > 0).sum(0, dtype=np.float64)
    keys = ("present", "absent", "decided", "unknown", "expected")
    counts = ((labels > 0).sum(0), (labels < 0).sum(0), sure.sum(0), unknown.sum(0), expected)
    called = [item for item in controls if p[item.image, item.column] >= threshold]
    weight, present = np.array([item.weight for item in called]), np.array([item.value > 0 for item in called])
    return Quality(
        answers=answers,
        controls=len(controls),
        threshold=threshold,
        precision=share_interval(weight, present) if called else None,
        mean_average_precision=_expected_map(z, calibration, labels),
        decided=int(sure.sum()),
        unknown=int(unknown.sum()),
        per_class=[dict(zip(keys, row, strict=True)) for row in zip(*(each.tolist() for each in counts), strict=True)],
    )


def _expected_map(z: NDArray[Any], calibration: Calibration, labels: NDArray[np.int8]) -> Interval:
    """Expected mAP if entries are present with their probabilities, and what other calibrations would make of it.

    AP of a class with the images in the order of their logits: Σ_k p_k · (1 + Σ_{j < k} p_j) / k / Σ_k p_k.
    """
    step = max(1, -(-z.size // _MAX_ENTRIES))
    rows = np.flatnonzero(~np.isnan(z).any(1))[::step]
    order = np.argsort(-z[rows], axis=0, kind="stable")
    x, known = np.take_along_axis(z[rows], order, 0), np.take_along_axis(labels[rows], order, 0)
    rank = np.arange(1, len(rows) + 1)[:, None]

    def mean_average_precision(plausible: Calibration) -> float:
        p = np.where(known == 0, plausible.scores(x), known > 0).astype(np.float64)
        before = np.cumsum(p, axis=0) - p
        return float(np.mean((p * (1 + before) / rank).sum(0) / np.maximum(p.sum(0), 1e-12)))

    draws = [
        mean_average_precision(Calibration(max(slope, _LEAST_SLOPE), offset))
        for slope, offset in calibration.draws(_DRAWS).tolist()
    ]
    low, high = np.percentile(draws, (2.5, 97.5)).tolist()
    return mean_average_precision(calibration), float(low), float(high)


class LiveUpdate(NamedTuple):
    """What a fit changes: probabilities (N, C), the queue, the quality, and how long it took."""

    probabilities: NDArray[np.float32]
    queue: list[Question]  # after those to ask, random ones that are answered already: their answers count now
    quality: Quality
    seconds: float


@dataclass(eq=False)
class LiveReview:
    """Fits the model that `train` would fit to the labels of a run and the answers so far.

    Each fit starts from the last one, so that it takes seconds. A run without labels learns by `learn_from_answers`.
    """

    inputs: Inputs
    config: Config
    rows: Labels  # that the run was trained on
    precision: float = 0.95
    fill_weights: Mapping[tuple[int, int], float] = field(default_factory=dict)  # of `fill`'s random questions
    last: Fit | None = None

    def __post_init__(self) -> None:
        table, basis, names = self.rows.training, self.inputs.basis, self.inputs.names
        self.from_nothing = not table.known
        self.evaluation = self.rows.people.dense()
        components = basis.features[:, :_NEIGHBOUR_COMPONENTS].cpu().numpy()
        self.features = np.full((len(table), components.shape[1]), np.nan, np.float32)
        self.features[basis.rows] = components
        named = None if names is None else self.inputs.logits_of_names().sigmoid().numpy()
        self.tests_names = named is not None and self.from_nothing
        has_all_classes = bool(table.stats.positives.all())
        explorer = None if has_all_classes else Explorer(self.features, table.shape[1], self.config.seed, named)
        self.explorer = explorer

    def refit(self, labels: Labels) -> NDArray[np.float32]:
        """Fit the model to labels and return out-of-fold logits (N, C), NaN for unreadable images."""
        table = labels.training
        if not table.known and self.inputs.names is not None:
            return self.inputs.logits_of_names().numpy()
        if not table.known:
            logits = np.full(table.shape, np.nan, np.float32)
            logits[self.inputs.basis.rows] = _NOTHING
            return logits
        config = replace(learn_from_answers(self.config, table), candidates="")  # nothing is measured until Finish
        self.last = fit(labels, self.inputs, config, start=self.last)
        assert self.last.crossfit is not None  # only runs with a linear loss can be reviewed live
        return self.last.crossfit.logits

    def update(self, answers: Sequence[EntryAnswer]) -> LiveUpdate:
        """Fit the model to the labels and these answers, and choose the next questions."""
        begun = time.perf_counter()
        columns = np.array([item for item in answers if item.value], np.float64).reshape(-1, 4).T
        image, column, value = columns[:3].astype(np.int64)
        names = self.rows.images, self.rows.classes
        rows = self.rows.append(Labels.build(*names, image, column, value, "person", weight=columns[3]))
        logits, labels = self.refit(rows), rows.training.dense()
        drawn = [item for item in answers if item.weight and item.weight != self.fill_weights.get(item.entry)]
        controls = [item for item in drawn if item.value]
        z = self._calibrated_logits(logits)
        fitted = fit_probabilities(z, controls)
        quality = measure(z, fitted, labels, controls, answers=len(answers), precision=self.precision)
        p = fitted.scores(z)
        share = NAMES_SHARE if self.tests_names and len(answers) < QUEUE else CONTROL_SHARE
        seed, asked = self.config.seed, [item.entry for item in drawn]
        random = draw_controls(
            p, self.evaluation == 0, asked, quality.threshold, round(share * QUEUE), (seed, len(answers))
        )
        answered = {item.entry for item in answers}
        new = [item for item in random if item.entry not in answered]
        chosen = choose_questions(
            self.explorer.probabilities(p, labels) if self.explorer is not None else p,
            rows.training,
            np.full(p.shape[1], 0.5),
            max(QUEUE - len(new), 1),
            features=self.features,
            control=0.0,
            skip=answered | {item.entry for item in new},
            by_class=False,
            both_teach=True if self.from_nothing else None,
        )
        queue = mix(chosen, new, share, np.random.default_rng([seed, len(answered)]))
        queue += [item for item in random if item.entry in answered]
        return LiveUpdate(p, queue, quality, time.perf_counter() - begun)

    def _calibrated_logits(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Calibrate by the labels that the run began with; from nothing the logits stay as they are."""
        if not self.evaluation.any():
            return logits
        table = Table.from_dense(self.evaluation)
        scores = Scores.held_out(table.images, table.classes, logits)
        positives = self.config.positives_per_image
        decisions, _ = evaluate(scores, table, positives_per_image=positives, resamples=0)
        return np.asarray(unknown_curve(decisions.calibration, scores, table).log_odds(logits), np.float32)
