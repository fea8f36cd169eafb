"""A picture of a label table: what is known per class, and which classes come together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from halflabel.labels.stats import conditional_probabilities
from halflabel.labels.table import LabelTable
from halflabel.papers.figures.canvas import literal, save_figure

__all__ = ["draw_labels"]

COLOURS = {"present": "#2a9d5c", "absent": "#d1495b", "unknown": "#d5d8dc"}
MOST = 60  # classes that can still be read on one page


def draw_labels(table: LabelTable, path: Path) -> None:
    """Draw bars of present, absent and unknown per class, and P(column | row) where it can be known."""
    from matplotlib.figure import Figure

    stats = table.stats()
    order = np.argsort(-stats.positives, kind="stable")[:MOST]
    names = [literal(table.classes[int(c)]) for c in order]
    size = max(3.5, 0.24 * len(order))
    figure = Figure(figsize=(6 + size, 1.2 + size), layout="constrained")
    bars, pairs = figure.subplots(1, 2, width_ratios=(5, size))
    left = np.zeros(len(order))
    for meaning, counts in (("present", stats.positives), ("absent", stats.negatives), ("unknown", stats.unknown)):
        bars.barh(names, counts[order], left=left, color=COLOURS[meaning], label=meaning)
        left += counts[order]
    bars.invert_yaxis()
    bars.set_xlabel("images")
    bars.legend(loc="lower right", fontsize="small")
    shown = f"the {len(order)} most frequent of " if stats.classes > len(order) else ""
    bars.set_title(f"known: {100 * stats.share_known:.1f} % ({shown}{stats.classes} classes)", fontsize="medium")

    known = conditional_probabilities(table)
    seen = known.seen[order][:, order].toarray()
    together = known.together[order][:, order].toarray().astype(float)
    # Where nothing is known to be absent, P is 1 by construction; the counts themselves are shown then.
    certain = bool(stats.negatives.any())
    values = np.where(seen > 0, together / np.maximum(seen, 1), np.nan) if certain else together
    np.fill_diagonal(values, np.nan)
    shade = pairs.imshow(values, cmap="viridis", vmin=0, vmax=1 if certain else None)
    pairs.set_xticks(range(len(order)), names, rotation=90, fontsize="small")
    pairs.set_yticks(range(len(order)), names, fontsize="small")
    pairs.set_title("P(column | row present), on known labels" if certain else "images with both", fontsize="medium")
    figure.colorbar(shade, ax=pairs, shrink=0.7)
    save_figure(figure, path, kind=path.suffix.lstrip(".").lower() or "png", dpi=120)
