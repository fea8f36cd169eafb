"""Score densities of positives and negatives (Zhou 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halflabel.papers.figures.canvas import BLUE, GREY, literal, save_figure
from halflabel.report.curves import check_scores

Floats = NDArray[np.float64]
_COLOURS = {"present": "#2a9d5c", "absent": "#d1495b"}


class ScoreDensities(NamedTuple):
    """Score densities of true positives and true negatives, and the distance between the two."""

    edges: Floats  # (bins + 1,)
    present: Floats  # (bins,) density over all classes; integrates to 1, NaN without any positive
    absent: Floats  # (bins,)
    distance: float  # Wasserstein distance over all classes
    per_class: Floats  # (C,) Wasserstein distance per class; NaN for classes without positives or without negatives


def score_densities(scores: ArrayLike, truth: ArrayLike, bins: int = 50) -> ScoreDensities:
    """Score densities of positives and negatives, and their Wasserstein distance W₁ = ∫ |F⁺(s) − F⁻(s)| ds.

    scores (N, C) in [0, 1], NaN for unreadable images; truth (N, C) in {−1, 0, +1}, entries of value 0 are ignored.
    W₁ is 0 for equal distributions and 1 for perfect scores. Zhou 2022 compares methods by it.
    """
    scores, truth = check_scores(scores, truth)
    is_readable = ~np.isnan(scores)
    present, absent = (truth > 0) & is_readable, (truth < 0) & is_readable
    edges = np.linspace(0, 1, bins + 1)
    return ScoreDensities(
        edges,
        _density(scores[present], edges),
        _density(scores[absent], edges),
        _distance(scores[present], scores[absent]),
        np.array([_distance(x[on], x[off]) for x, on, off in zip(scores.T, present.T, absent.T, strict=True)]),
    )


def draw_score_densities(
    densities: ScoreDensities, path: Path, classes: Sequence[str], most: int = 40, caption: str = ""
) -> None:
    """Draw the two densities over all classes, and bars of the `most` smallest distances per class."""
    from matplotlib.figure import Figure

    measured = np.flatnonzero(~np.isnan(densities.per_class))
    shown = measured[np.argsort(densities.per_class[measured], kind="stable")][:most][::-1]
    figure = Figure(figsize=(10, max(3.6, 1 + 0.2 * len(shown))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for meaning, density in (("present", densities.present), ("absent", densities.absent)):
        left.stairs(density, densities.edges, fill=True, alpha=0.45, color=_COLOURS[meaning], label=f"truly {meaning}")
    left.set_yscale("symlog", linthresh=1)
    left.set_ylim(bottom=0)
    left.set_xlim(0, 1)
    left.set_xlabel("score")
    left.set_ylabel("density")
    left.legend(loc="upper center")
    left.set_title(f"all classes: Wasserstein distance {densities.distance:.3f}", fontsize="medium")
    names = [literal(classes[c]) for c in shown]
    right.barh(np.arange(len(shown)), densities.per_class[shown], color=BLUE)
    right.set_yticks(np.arange(len(shown)), names, fontsize="small")
    right.axvline(densities.distance, color=GREY, lw=1)
    right.set_xlim(0, 1)
    right.set_xlabel("Wasserstein distance")
    title = f"the {len(shown)} smallest of {len(measured)} classes" if len(measured) > len(shown) else "per class"
    right.set_title(title, fontsize="medium")
    save_figure(figure, path, caption=caption)


def _density(scores: Floats, edges: Floats) -> Floats:
    if not len(scores):
        return np.full(len(edges) - 1, np.nan)
    return np.histogram(scores, edges, density=True)[0].astype(np.float64)


def _distance(present: Floats, absent: Floats) -> float:
    """W₁ of two samples; NaN if one of them is empty."""
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(present, absent)) if len(present) and len(absent) else np.nan
