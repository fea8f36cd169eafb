"""How a model decides: probabilities from logits, and thresholds on them, fitted to known labels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from halflabel.evaluation.calibration import (
    Calibration,
    describe_answers,
    fit_class_platt,
    fit_correction,
    fit_platt,
    sigmoid,
)
from halflabel.evaluation.positives_only import (
    expected_f1_threshold,
    fit_positives_only,
    log_odds_of_unknown,
    match_positives_per_image,
    trust_in_known,
)
from halflabel.evaluation.scores import Scores, image_blocks
from halflabel.labels.table import Table

NOTHING_KNOWN = "class names rank photos as they do elsewhere: no label is known, and nothing was measured"
_FOLDS = 5  # of the images, in the choice between one curve and one per class
_FEWEST_UNLIKELY = 10  # random answers about unlikely entries from which on answers change the slope of the curve
_COMPARED_ENTRIES = 1 << 22  # entries that this choice uses


class Decisions(NamedTuple):
    """How a model decides: a class is present where its calibrated probability reaches its threshold."""

    calibration: Calibration  # from logits to probabilities, with the assumption under which they hold
    thresholds: Tensor  # (C,)


def fit_decisions(
    logits: Tensor,
    labels: Tensor,
    *,
    control: csr_array | None = None,
    positives_per_image: float = 0.0,
    is_asked: bool = False,
) -> Decisions:
    """Fit calibration and thresholds to logits (N, C) by models that did not see these labels; NaN rows are left out.

    Probabilities are those of `calibrate`, or such that images have as many `positives_per_image` as somebody states.
    Answers to random questions in `control` (N, C), a sparse array of their inclusion weights, negative for no, correct
    probabilities that rest on an assumption; `is_asked`: hardly anything else than answers is known. The threshold of
    all classes is the probability that maximises the expected micro F1.
    """
    x, known = logits.cpu().numpy(), labels.cpu().numpy()
    calibration = _fit_known(x, known) if is_asked else calibrate(x, known)
    if control is not None and is_asked:
        z, weight = _readable(calibration.log_odds(x), control)
        change = fit_correction(z, weight > 0, np.abs(weight)) if len(z) else Calibration()
        calibration = calibration.corrected(change.slope, change.offset, labels.shape[1])
    elif control is not None and calibration.assumption:
        calibration = _correct(calibration, x, known, control)
    if positives_per_image:
        calibration = match_positives_per_image(x, calibration, positives_per_image)
    threshold = expected_f1_threshold(calibration.scores(logits).cpu().numpy())
    return Decisions(calibration, torch.full((labels.shape[1],), threshold))


def calibrate(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit a calibration to known labels (N, C) of logits (N, C), for known and unknown entries alike.

    Where people mostly note what they see, the curve of the known labels is too high for the others:
    `fit_positives_only` then tells how much, under an assumption that is stored with the curve. With at least twice as
    many negatives as positives, and where everything is known, unknown entries are taken to be like the known ones.
    In between, the parameters of both curves are mixed (`trust_in_known`), so that no single label decides.
    """
    readable = ~np.isnan(logits)
    present, absent = ((labels > 0) & readable).sum(), ((labels < 0) & readable).sum()
    if not present and not absent:
        return Calibration(assumption=NOTHING_KNOWN)
    trust = trust_in_known(float(present), float(absent), float(readable.sum()))
    if trust >= 1:
        return _fit_known(logits, labels)
    given = fit_positives_only(logits, labels)
    return given.towards(_fit_known(logits, labels), trust, labels.shape[1]) if trust > 0 else given


def unknown_curve(calibration: Calibration, scores: Scores, table: Table) -> Calibration:
    """Return P(present) of an unknown entry by its logit: lower than `calibration`, as the label was not given."""
    classes = len(table.classes)
    blocks = image_blocks(*table.shape)
    expected = sum(float(np.nansum(calibration.scores(np.asarray(scores.logits[index])))) for index in blocks)
    positives = np.bincount(table.entries()[0][table.value > 0], minlength=len(table))
    negatives = int((table.value < 0).sum())
    return calibration.corrected(1.0, log_odds_of_unknown(positives, negatives, classes, expected), classes)


def _readable(z: NDArray[Any], control: csr_array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the log odds of answered entries, without those of unreadable images, and their inclusion weights."""
    asked = z[control.nonzero()]
    return asked[~np.isnan(asked)], control.data[~np.isnan(asked)]


def _correct(calibration: Calibration, logits: NDArray[Any], known: NDArray[Any], control: csr_array) -> Calibration:
    """Correct a calibration from positives by answers (N, C) to random questions about unknown entries."""
    z = calibration.log_odds(logits)
    positives, negatives, classes = (known > 0).sum(1), int((known < 0).sum()), known.shape[1]
    # The correction is that of unknown entries, whose odds are lower: they were not given.
    shift = log_odds_of_unknown(positives, negatives, classes, float(np.nansum(sigmoid(z))))
    unknown = z + shift
    asked, weight = _readable(unknown, control)
    if not len(asked):
        return calibration
    present, keep_slope = weight > 0, int((asked < 0).sum()) < _FEWEST_UNLIKELY
    change = fit_correction(asked, present, np.abs(weight), keep_slope=keep_slope)
    expected = positives.sum() + float(np.nansum(change.scores(unknown)[known == 0]))
    after = log_odds_of_unknown(positives, negatives, classes, expected)
    corrected = calibration.corrected(change.slope, change.slope * shift + change.offset - after, classes)
    return corrected._replace(assumption=f"{calibration.assumption}; {describe_answers(sigmoid(asked), present)}")


def _fit_known(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit one curve for all classes, or one per class if that has a lower log loss in five folds of the images.

    The curves per class count from one to three standard errors by which the mean loss of an image is lower.
    """
    step = max(1, -(-labels.size // _COMPARED_ENTRIES))
    gain = _compare(logits[::step], labels[::step])
    error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    weight = min(max((float(gain.mean()) / error - 1) / 2, 0.0), 1.0) if error else 0.0
    shared = fit_platt(logits, labels) if weight < 1 else Calibration()
    return shared.towards(_fit_classes(logits, labels), weight, labels.shape[1]) if weight else shared


def _compare(logits: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """Return by how much the log loss of each image (N,) is lower with one curve per class, by folds of the images."""
    fold = np.arange(len(logits)) % _FOLDS
    loss = np.zeros((2, len(logits)))
    judged = (labels != 0) & ~np.isnan(logits)
    for number in range(_FOLDS):
        inside, outside = fold != number, fold == number
        for kind, fit in enumerate((fit_platt, _fit_classes)):
            z = fit(logits[inside], labels[inside]).log_odds(np.nan_to_num(logits[outside].astype(np.float64)))
            entry = np.logaddexp(0, z) - z * (labels[outside] > 0)
            loss[kind, outside] = (entry * judged[outside]).sum(1)
    return np.asarray(loss[0] - loss[1])


def _fit_classes(logits: NDArray[Any], labels: NDArray[Any]) -> Calibration:
    """Fit one curve per class, shrunk towards the curve of all classes."""
    known = (labels != 0) & ~np.isnan(logits)
    return fit_class_platt(known.nonzero()[1], logits[known].astype(np.float64), labels[known] > 0, labels.shape[1])
