"""A picture of what a method made of the unknown labels, time after time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from halflabel.papers.figures.canvas import BLUE, GREY, ORANGE, save_figure

__all__ = ["draw_relabelling", "relabellings"]

_LINES = {
    "label_proportion": ("labelled, of all entries", GREY, "o-"),
    "tp_rate": ("true positive rate of new labels", BLUE, "s-"),
    "tn_rate": ("true negative rate of new labels", ORANGE, "^-"),
    "accuracy": ("accuracy of new labels", GREY, "x:"),
}


def relabellings(log: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines of a run's log after which labels had been added."""
    return [line for line in log if _is_number(line.get("label_proportion"))]


def draw_relabelling(log: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Label proportion and, where the truth was known, true positive and negative rates after each relabelling.

    The rates are those of `metrics.completion_rates`; one that could not be counted (no such entry was labelled) leaves
    a gap. Returns whether there was anything to draw.
    """
    from matplotlib.figure import Figure

    lines = relabellings(log)
    if not lines:
        return False
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, (label, colour, style) in _LINES.items():
        values = [line[name] if _is_number(line.get(name)) else math.nan for line in lines]
        if not all(map(math.isnan, values)):
            axes.plot([line["epoch"] for line in lines], values, style, color=colour, ms=5, label=label)
    axes.set_xlim(0, max(line["epoch"] for line in log) + 1)
    axes.set_ylim(-0.02, 1.02)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("labels added after epoch")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="best")
    save_figure(figure, path)
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)
