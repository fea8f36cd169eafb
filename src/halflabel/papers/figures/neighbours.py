"""Pictures of what a method has learned to be similar: images with their neighbours, and labels with theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.papers.figures.canvas import BLUE, GREY, literal, save_figure

if TYPE_CHECKING:
    from halflabel.methods.parts.label_graph import Edges
    from halflabel.methods.parts.matching_pursuit import Similar

__all__ = ["LabelEdge", "draw_image_neighbours", "draw_label_neighbours", "spread_queries", "strongest_edges"]

LONGEST = 22  # letters of a name that fit above a picture
Pixels = NDArray[np.uint8]


class LabelEdge(NamedTuple):
    """`label` is inferred from `neighbour` with this weight."""

    label: str
    neighbour: str
    weight: float
    before: float  # the weight it started with


def strongest_edges(before: Edges, after: Edges, classes: Names | Sequence[str], n: int = 20) -> list[LabelEdge]:
    """The n edges of the largest weight between different labels, largest first; equal ones by class number.

    `before` and `after` are the same edges in one order, as they start and as they are learned. Edges of weight 0,
    which learning has removed, are left out.
    """
    apart = np.flatnonzero((after.rows != after.cols) & (after.weights > 0))
    order = apart[np.lexsort((after.cols[apart], after.rows[apart], -after.weights[apart]))][:n]
    return [
        LabelEdge(
            classes[int(after.rows[e])], classes[int(after.cols[e])], float(after.weights[e]), float(before.weights[e])
        )
        for e in order
    ]


def spread_queries(similar: Similar, most: int = 6) -> list[int]:
    """The numbers of some images that have a neighbour, spread evenly over them."""
    having = np.flatnonzero((similar.index >= 0).any(1).cpu().numpy())
    if not len(having):
        raise UserError("not one image has a neighbour", "train longer")
    return [int(i) for i in having[np.unique(np.linspace(0, len(having) - 1, most).astype(int))]]


def draw_image_neighbours(
    photos: Mapping[int, Pixels],
    similar: Similar,
    queries: Sequence[int],
    titles: Mapping[int, str],
    path: Path,
    caption: str = "",
) -> None:
    """One row per query: the image, then its neighbours in the order of choice, with c (labels) and c̄ (features).

    photos: (H, W, 3) of each image that is asked for or chosen, by its row number in `similar`; where one is missing
    its place stays blank. titles: what stands above each.
    """
    from matplotlib.figure import Figure

    index = similar.index.cpu()
    weights = [part.cpu() for part in similar.weights]
    columns = 1 + max(int((index[list(queries)] >= 0).sum(1).max()), 1)
    figure = Figure(figsize=(1.9 * columns, 2.05 * len(queries)), layout="constrained")
    for line, axes in zip(queries, figure.subplots(len(queries), columns, squeeze=False), strict=True):
        for panel in axes:
            panel.axis("off")
            panel.set_anchor("N")
        _show(axes[0], photos.get(line), titles[line])
        axes[0].axis("on")
        axes[0].set(xticks=[], yticks=[])
        for spine in axes[0].spines.values():
            spine.set(visible=True, color=BLUE, linewidth=2.5)
        for place, other in enumerate(index[line, : columns - 1].tolist()):
            if other >= 0:
                said = " · ".join(
                    f"{name} {float(part[line, place]):.2f}" for name, part in zip(("c", "c̄"), weights, strict=False)
                )
                _show(axes[1 + place], photos.get(other), f"{titles[other]}\n{said}")
    save_figure(figure, path, caption=caption)


def draw_label_neighbours(
    before: Edges, after: Edges, classes: Names | Sequence[str], path: Path, n: int = 30, caption: str = ""
) -> None:
    """Bars of the n strongest edges between different labels, and the weights they started with."""
    from matplotlib.figure import Figure

    shown = strongest_edges(before, after, classes, n)[::-1]
    if not shown:
        raise UserError("no label is connected to another one", "use a label graph other than the identity")
    figure = Figure(figsize=(6.5, 1.4 + 0.24 * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(shown))
    axes.barh(places, [edge.weight for edge in shown], color=BLUE, label="learned")
    axes.plot([edge.before for edge in shown], places, "|", color="black", ms=9, mew=2, label="at the start")
    axes.set_yticks(places, [f"{literal(edge.label)} ← {literal(edge.neighbour)}" for edge in shown], fontsize="small")
    axes.set_ylim(-0.7, len(shown) - 0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel("weight of the edge")
    axes.grid(axis="x", color=GREY, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    apart = int(((after.rows != after.cols) & (after.weights > 0)).sum())
    axes.set_title(f"the {len(shown)} strongest of {apart:,} edges between labels", fontsize="medium")
    save_figure(figure, path, caption=caption)


def _show(axes: Any, picture: Pixels | None, title: str) -> None:
    if picture is not None:
        axes.imshow(picture)
    lines = [line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in title.splitlines()]
    axes.set_title(literal("\n".join(lines)), fontsize="small")
