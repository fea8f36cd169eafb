"""Whether the known labels look like a random sample: only then do they speak for the unknown ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.fill.thresholds import BINS, Counts, Side
from halflabel.labels.names import Names

__all__ = ["known_ratio", "one_sided", "warn"]

Mask = NDArray[np.bool_]

_LEAST = 5  # known positives and no negative: that is no accident
_APART = 1.3  # times as often known as the class's share says
_SIGMAS = 4.0


def one_sided(column: NDArray[Any], present: Mask, classes: int) -> Mask:
    """Classes (C,) of which several positives are known and not one negative: someone only noted what is there."""
    positives = np.bincount(column[present], minlength=classes)
    negatives = np.bincount(column[~present], minlength=classes)
    found: Mask = (positives >= _LEAST) & (negatives == 0)
    return found


def known_ratio(counts: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    """How much more often likely positives (P ≥ 1/2) are known than their class's known share would have it.

    With n_c known entries of m_c, of which h_c likely positives, n_c h_c / m_c of these would be known at random (with
    the variance of the hypergeometric distribution). Returns the ratio of found to expected and its distance in
    standard deviations, per class (C,) and over all classes.
    """
    known = counts.present + counts.absent
    whole = known + counts.unknown
    high = np.s_[:, BINS // 2 :]
    found, likely = known[high].sum(1), whole[high].sum(1)
    n, m = known.sum(1), whole.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(m > 0, n * likely / m, 0.0)
        variance = np.where(m > 1, expected * (1 - likely / m) * (m - n) / (m - 1), 0.0)
        ratio = found / expected
        sigmas = np.where(variance > 0, (found - expected) / np.sqrt(variance), 0.0)
        overall = float(found.sum() / expected.sum())
        total = float((found - expected).sum() / np.sqrt(variance.sum())) if variance.sum() > 0 else 0.0
    return ratio, sigmas, overall, total


def warn(counts: Counts, classes: Names, shut: Mask, sides: Sequence[Side], precision: float) -> list[str]:
    """What a person should know before believing the estimates, each with its consequence."""
    found = []
    if shut.any():
        found.append(
            f"{_named(classes, shut)}: positives are known and not one negative, so nothing can be estimated; left "
            "unknown. Label some images where they are absent."
        )
    ratio, sigmas, overall, total = known_ratio(counts)
    apart = (np.abs(sigmas) > _SIGMAS) & ((ratio > _APART) | (ratio < 1 / _APART))
    if (abs(total) > _SIGMAS and overall > _APART) or (apart & (ratio > 1)).any():
        who = _named(classes, apart & (ratio > 1))
        found.append(
            f"the known labels are no random sample: likely positives are known {overall:.1f} times as often as chance "
            f"would have it{f' (most: {who})' if who else ''}. If people noted above all what is there, the precision "
            "of filled positives is overestimated; check a random part of them by hand."
        )
    if (abs(total) > _SIGMAS and overall < 1 / _APART) or (apart & (ratio < 1)).any():
        who = _named(classes, apart & (ratio < 1))
        found.append(
            f"the known labels are no random sample: likely positives are known {overall:.1f} times as often as chance "
            f"would have it{f' (least: {who})' if who else ''}. If what is present was left out on purpose, the "
            "precision of filled negatives is overestimated; check a random part of them by hand."
        )
    for side, word in zip(sides, ("present", "absent"), strict=True):
        if not side.filled.any():
            tested = int((counts.present if word == "present" else counts.absent).sum())
            found.append(
                f"the model fills nothing as {word}: {tested} known labels do not show that {100 * precision:g} % of "
                "the fills would be right. Ask for less with --precision, or label more."
            )
    return found


def _named(classes: Names, mask: Mask, most: int = 3) -> str:
    chosen = np.flatnonzero(mask)
    shown = ", ".join(classes[int(c)] for c in chosen[:most])
    return shown + (f" and {len(chosen) - most} more" if len(chosen) > most else "")
