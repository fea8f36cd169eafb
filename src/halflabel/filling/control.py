"""Fill present labels where only positives are known, certified by answers to control questions or by an assumption.

Known labels cannot show how often a fill is wrong. Control questions do: they are a random sample, stratified by
probability, of the entries that would be filled. Without answers, fills rest on the assumption of the calibration.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.evaluation.calibration import Calibration, describe_answers, fit_correction, sigmoid
from halflabel.evaluation.decisions import unknown_curve
from halflabel.evaluation.scores import Scores, image_blocks
from halflabel.filling.plan import FillOptions, FillPlan, make_plan
from halflabel.filling.thresholds import BINS, BinCounts, FillDecision, bin_logits, bin_of
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.questions.choose import CONTROL_FILL, FEWEST_ANSWERS, Question

_STREAM = 0x66696C6C  # random stream of the control questions
_DRAWS = 1000  # of the curve after the answers, for the confidence bound


class NothingToFill(UserError):
    """No unknown label is probable enough for the wanted precision; `count` labels are at `precision`.

    `precision` is such that these are enough to ask about, or all that are more likely present than absent.
    """

    def __init__(self, wanted: float, precision: float, count: int) -> None:
        super().__init__(
            f"no unknown label is probable enough to be filled at a precision of {100 * wanted:g} %",
            f"‹precision={precision:g}›, for which {count} labels are"
            if count
            else "label more photos, and train again",
        )
        self.precision, self.count = precision, count


def draw_control(
    scores: Scores,
    table: Table,
    calibration: Calibration,
    *,
    precision: float,
    count: int,
    seed: int = 0,
    known: Table | None = None,
    among: NDArray[np.int64] | None = None,
) -> list[Question]:
    """Return questions about `count` random unknown entries that might be filled, in random order.

    Entries are ranked by probability, down to where the expected share of wrong ones is twice the allowed one, and
    divided into `count` groups of equal size; one entry is drawn from each. At most half of the entries are drawn:
    what people answer is no longer to be filled. The probability returned is that of `calibration`, which other pages
    show. Entries that `known`, by default `table`, knows are not drawn, and with `among` only those of these images.
    """
    known = table if known is None else known
    curve, parts = unknown_curve(calibration, scores, table), []
    for index in image_blocks(len(table) if among is None else among, len(table.classes)):
        p = curve.scores(scores.logits[index]).astype(np.float64)
        row, column = np.nonzero((known.rows(index) == 0) & (p >= 0.5))
        parts.append((index[row], column, p[row, column]))
    image, column, p = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(-p, kind="stable")
    image, column, p = image[order], column[order], p[order]
    mean = np.cumsum(p) / np.arange(1, len(p) + 1)
    size = int((mean >= 1 - 2 * (1 - precision)).sum())
    if not size:
        # The mean falls with the number of entries. Half of them are asked about.
        last = min(2 * FEWEST_ANSWERS, len(p)) - 1
        lower = math.floor(100 * (1 + mean[last]) / 2 + 1e-9) / 100 if len(p) else 0.0
        raise NothingToFill(precision, lower, int((mean >= 2 * lower - 1).sum()))
    edges = np.linspace(0, size, min(count, (size + 1) // 2) + 1).astype(np.int64)
    generator = np.random.default_rng([seed, _STREAM])
    drawn = generator.integers(edges[:-1], edges[1:])
    order = generator.permutation(len(drawn))
    image, column, weight = image[drawn][order], column[drawn][order], np.diff(edges)[order]
    shown = calibration.scores(np.asarray(scores.logits[image, column]), column)
    entries = zip(*(values.tolist() for values in (image, column, shown, weight)), strict=True)
    return [Question(i, c, p, CONTROL_FILL, w) for i, c, p, w in entries]


def plan_present(
    scores: Scores,
    labels: Labels,
    calibration: Calibration,
    answers: Labels | None,
    options: FillOptions = FillOptions(),
    region: Scores | None = None,
) -> FillPlan:
    """Decide which unknown entries to fill as present, so that they reach the precision; none are filled as absent.

    With `answers` the probabilities are corrected by them (`fit_correction`), and the cut is the lowest probability at
    which the precision is reached with the confidence, over the curves that are plausible after the answers and over
    what is then present by chance; it is never below the entries that were asked about. Guaranteed if the share of
    right fills rises with the probability along such a curve. Nothing is filled where the scores of `region` are NaN.
    """
    table, people = labels.training, labels.evaluation
    classes = len(table.classes)
    curve, correction = unknown_curve(calibration, scores, people), None
    if answers is not None:
        logits, present = np.asarray(scores.logits[answers.image, answers.column]), answers.value > 0
        weight = np.nan_to_num(answers.weight, nan=1.0)  # answers in a file without weights count alike
        asked = curve.log_odds(logits, answers.column)
        change = fit_correction(asked, present, weight)
        curve = curve.corrected(change.slope, change.offset, classes)
        p = curve.scores(logits, answers.column)
        check = describe_answers(sigmoid(asked), present)
        was_unknown = np.asarray(table.values[answers.image, answers.column]).ravel() == 0
        correction = _Correction(change, float(p.min(initial=1.0)), bin_of(p), was_unknown, check)

    def decide(counts: BinCounts, target: float) -> tuple[FillDecision, FillDecision]:
        return _cut(counts, correction, target, options.confidence), FillDecision.nothing(classes)

    no_evidence = people.keep(np.zeros(len(people.value), bool))
    calibrations = [curve] * (int(scores.fold.max()) + 2)
    plan = make_plan(
        region or scores, table, no_evidence, labels, calibrations, np.zeros(classes, bool), decide, options
    )
    if correction is None:
        return replace(plan, assumption=calibration.assumption)
    missing = plan.missing
    if region is not None:
        blocks = image_blocks(plan.images_to_fill, classes)
        missing = sum(float(np.nansum(curve.scores(scores.logits[i])[table.rows(i) == 0])) for i in blocks)
    return replace(plan, check=correction.check, missing=missing)


class _Correction(NamedTuple):
    """How control answers change the probabilities."""

    change: Calibration
    floor: float  # the lowest probability, after the change, that was asked about
    bins: NDArray[np.int64]  # of the answered entries, after the change
    is_unknown: NDArray[np.bool_]  # whether an answered entry counts among the unknown ones; it will not be filled
    check: str  # what the answers say about the probabilities before it


def _cut(counts: BinCounts, correction: _Correction | None, precision: float, confidence: float) -> FillDecision:
    """Return the lowest bin from which on the precision is reached, the same for all classes."""
    classes = len(counts.unknown)
    unknown, logits = counts.unknown.sum(0), bin_logits()
    above = np.cumsum(unknown[::-1])[::-1]
    draws, lowest = np.array([[1.0, 0.0]]), 0.5
    if correction is not None:
        if correction.change.slope <= 0:
            return FillDecision.nothing(classes)
        draws, lowest = correction.change.draws(_DRAWS), max(lowest, correction.floor)
        logits = (logits - correction.change.offset) / correction.change.slope
    right = 1 / (1 + np.exp(-(draws[:, :1] * logits + draws[:, 1:])))
    bound = np.cumsum((right * unknown)[:, ::-1], 1)[0, ::-1] / np.maximum(above, 1)
    if correction is not None:
        # Of few entries by chance fewer are right than expected.
        left = unknown - np.bincount(correction.bins[correction.is_unknown], minlength=BINS)
        left = np.maximum(left, 0).astype(np.int64)
        hits = np.random.default_rng(0).binomial(left, right)
        left_above = np.cumsum(left[::-1])[::-1]
        reached = np.cumsum(hits[:, ::-1], 1)[:, ::-1] / np.maximum(left_above, 1)
        bound = np.where(left_above > 0, np.quantile(reached, 1 - confidence, axis=0), 1.0)
    allowed = (bound >= precision) & (above > 0) & (np.arange(BINS) >= bin_of(np.array([lowest]))[0])
    if not allowed.any():
        return FillDecision.nothing(classes)
    cut = int(allowed.argmax())
    mask = np.arange(BINS) >= cut
    filled, summed = (counts.unknown * mask).sum(1), (counts.summed * mask).sum(1)
    with np.errstate(invalid="ignore"):
        estimate = summed / filled
    return FillDecision.nothing(classes)._replace(
        cut=np.full(classes, cut),
        filled=filled.astype(np.int64),
        estimate=estimate,
        known_labels=0 if correction is None else int((correction.bins >= cut).sum()),
        precision=float(summed.sum() / filled.sum()),
        bound=float(bound[cut]),
    )
