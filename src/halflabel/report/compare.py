"""Pictures of a comparison: who does how well, with how many labels, at what cost, and how much is chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.papers.figures.canvas import BLUE, GREY, ORANGE, literal, save_figure

if TYPE_CHECKING:
    from halflabel.experiments.result import Comparison, Row

__all__ = ["draw_comparison"]

_MARKS = "osD^vP*X<>"


def draw_comparison(found: Comparison, folder: Path) -> None:
    """methods.png, cost.png, seeds.png, and shares.png where several shares of the labels were compared.

    mAP is in points of 100.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = " (chosen on hidden truth)" if found.select == "hidden" else ""
    panels = [[row for row in found.rows if row.labels == name] for name in _names(found.rows)]
    _draw_methods(panels, note, folder / "methods.png")
    _draw_seeds(panels, note, folder / "seeds.png")
    _draw_cost(panels, note, folder / "cost.png")
    shares = sorted({row.kept for row in found.rows if not math.isnan(row.kept)})
    if len(shares) > 1:
        _draw_shares(found.rows, shares, note, folder / "shares.png")
    else:
        (folder / "shares.png").unlink(missing_ok=True)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.labels for row in rows))


def _panels(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


def _title(rows: Sequence[Row]) -> str:
    return f"labels: {literal(rows[0].labels)} ({100 * rows[0].known:.3g} % of entries known)"


def _errors(row: Row) -> NDArray[Any]:
    """How far its interval reaches from the mean of a method: (2, 1), in points of 100."""
    found: NDArray[Any] = 100 * np.maximum([[row.mAP - row.mAP_low], [row.mAP_high - row.mAP]], 0)
    return found


def _draw_methods(panels: Sequence[Sequence[Row]], note: str, path: Path) -> None:
    """Mean test mAP with its interval; orange: the best, blue: not to be told from it, grey: behind."""
    figure, axes = _panels(len(panels), 5, 1.2 + 0.3 * max(map(len, panels)))
    for axis, rows in zip(axes, panels, strict=True):
        for place, row in enumerate(reversed(rows)):
            best = row is rows[0]
            colour = ORANGE if best else GREY if row.behind_high < 0 else BLUE
            axis.errorbar(100 * row.mAP, place, xerr=_errors(row), fmt="o", color=colour, ms=5, capsize=2)
        axis.set_yticks(range(len(rows)), [literal(row.method) for row in reversed(rows)])
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.grid(axis="x", alpha=0.3)
        axis.set_xlabel(f"test mAP, 95 % interval{note}\norange: best; blue: not told apart from it; grey: behind")
        axis.set_title(_title(rows), fontsize="medium")
    save_figure(figure, path)


def _draw_seeds(panels: Sequence[Sequence[Row]], note: str, path: Path) -> None:
    """Test mAP of every seed, and the mean."""
    figure, axes = _panels(len(panels), 5, 1.2 + 0.3 * max(map(len, panels)))
    for axis, rows in zip(axes, panels, strict=True):
        for place, row in enumerate(reversed(rows)):
            values = 100 * np.array(row.per_seed)
            axis.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.6, ms=5)
            axis.plot([values.mean()] * 2, [place - 0.3, place + 0.3], color=ORANGE)
        axis.set_yticks(range(len(rows)), [literal(row.method) for row in reversed(rows)])
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.grid(axis="x", alpha=0.3)
        axis.set_xlabel(f"test mAP of each seed (line: mean){note}")
        axis.set_title(_title(rows), fontsize="medium")
    save_figure(figure, path)


def _draw_cost(panels: Sequence[Sequence[Row]], note: str, path: Path) -> None:
    """Test mAP against the seconds of one run."""
    figure, axes = _panels(len(panels), 5, 3.8)
    for axis, rows in zip(axes, panels, strict=True):
        for row in rows:
            at, colour = (row.seconds, 100 * row.mAP), ORANGE if row is rows[0] else BLUE
            axis.errorbar(*at, yerr=_errors(row), fmt="o", color=colour, ecolor=GREY, ms=5)
            axis.annotate(literal(row.method), at, (5, 4), textcoords="offset points", fontsize="small")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.tick_params(axis="x", which="both", labelrotation=45)
        axis.margins(x=0.2)
        axis.grid(alpha=0.3)
        axis.set_xlabel("seconds per run")
        axis.set_ylabel(f"test mAP{note}")
        axis.set_title(_title(rows), fontsize="medium")
    save_figure(figure, path)


def _draw_shares(rows: Sequence[Row], shares: Sequence[float], note: str, path: Path) -> None:
    """Test mAP against the share of the labels kept, one line per method."""
    figure, (axis,) = _panels(1, 7, 4)
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        line = sorted((row for row in rows if row.method == method and row.kept in shares), key=lambda row: row.kept)
        values = 100 * np.array([[row.mAP, row.mAP_low, row.mAP_high] for row in line]).reshape(-1, 3).T
        axis.errorbar(
            [row.kept for row in line],
            values[0],
            yerr=np.maximum([values[0] - values[1], values[2] - values[0]], 0),
            label=literal(method),
            color=f"C{number % 10}",
            marker=_MARKS[number % len(_MARKS)],
            ms=5,
            capsize=2,
        )
    axis.set_xscale("log")
    axis.set_xticks(shares, [f"{100 * share:g} %" for share in shares])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.set_xlabel("share of the labels kept")
    axis.set_ylabel(f"test mAP, 95 % interval{note}")
    axis.legend(fontsize="small")
    save_figure(figure, path)
