"""Tests whether the known labels are a random sample: only then do they represent the unknown ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.filling.thresholds import BINS, BinCounts
from halflabel.labels.names import Names

Mask = NDArray[np.bool_]

_MIN_POSITIVES = 5  # with so many known positives, having no negative is not chance
_MIN_RATIO = 1.3  # known more often than expected by this factor
_SIGMAS = 4.0


def positives_only(column: NDArray[Any], present: Mask, classes: int) -> Mask:
    """Return the classes (C,) with several known positives and no negative: only what is present was annotated."""
    positives = np.bincount(column[present], minlength=classes)
    negatives = np.bincount(column[~present], minlength=classes)
    result: Mask = (positives >= _MIN_POSITIVES) & (negatives == 0)
    return result


def positive_sampling_ratio(counts: BinCounts) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    """Return how much more often likely positives (P ≥ 1/2) are known than in a random sample of their class.

    With n_c known entries of m_c, h_c of them likely positives, n_c h_c / m_c of these would be known in a random
    sample (with the variance of the hypergeometric distribution). Returns the ratio of actual to expected number and
    its distance in standard deviations, per class (C,) and over all classes.
    """
    known = counts.present + counts.absent
    whole = known + counts.unknown
    high = np.s_[:, BINS // 2 :]
    actual, likely = known[high].sum(1), whole[high].sum(1)
    n, m = known.sum(1), whole.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(m > 0, n * likely / m, 0.0)
        variance = np.where(m > 1, expected * (1 - likely / m) * (m - n) / (m - 1), 0.0)
        ratio = actual / expected
        sigmas = np.where(variance > 0, (actual - expected) / np.sqrt(variance), 0.0)
        overall = float(actual.sum() / expected.sum())
        total = float((actual - expected).sum() / np.sqrt(variance.sum())) if variance.sum() > 0 else 0.0
    return ratio, sigmas, overall, total


def sampling_warnings(counts: BinCounts, classes: Names, unfillable: Mask, unseen: Mask) -> list[str]:
    """Return reasons to distrust the estimates, each with its consequence; `unseen` classes have no known positive."""
    warnings = []
    if unfillable.any():
        warnings.append(
            f"{_named(classes, unfillable)}: positives are known but no negatives, so nothing can be estimated; left "
            "unknown. Label some images where they are absent."
        )
    if unseen.any():
        warnings.append(
            f"{_named(classes, unseen)}: no positive is known, apart from answers to chosen questions, so nothing "
            "shows that the model finds one; left unknown. Label some images where they are present."
        )
    ratio, sigmas, overall, total = positive_sampling_ratio(counts)
    is_biased = (np.abs(sigmas) > _SIGMAS) & ((ratio > _MIN_RATIO) | (ratio < 1 / _MIN_RATIO))
    if (abs(total) > _SIGMAS and overall > _MIN_RATIO) or (is_biased & (ratio > 1)).any():
        names = _named(classes, is_biased & (ratio > 1))
        warnings.append(
            f"the known labels are not a random sample: likely positives are known {overall:.1f} times as often as "
            f"expected{f' (most: {names})' if names else ''}. If mostly what is present was annotated, the "
            "precision of filled positives is overestimated; check a random sample of them by hand."
        )
    if (abs(total) > _SIGMAS and overall < 1 / _MIN_RATIO) or (is_biased & (ratio < 1)).any():
        names = _named(classes, is_biased & (ratio < 1))
        warnings.append(
            f"the known labels are not a random sample: likely positives are known {overall:.1f} times as often as "
            f"expected{f' (least: {names})' if names else ''}. If present classes were left out on purpose, the "
            "precision of filled negatives is overestimated; check a random sample of them by hand."
        )
    return warnings


def _named(classes: Names, mask: Mask, most: int = 3) -> str:
    chosen = np.flatnonzero(mask)
    shown = ", ".join(classes[int(c)] for c in chosen[:most])
    return shown + (f" and {len(chosen) - most} more" if len(chosen) > most else "")
