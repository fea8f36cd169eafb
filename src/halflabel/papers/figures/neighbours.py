"""Figures of similarities that a method has learned: similar images, and edges between labels (Huynh 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.methods.parts.label_graph import Edges
from halflabel.methods.parts.matching_pursuit import Similar
from halflabel.papers.figures.canvas import BLUE, GREY, literal, save_figure
from halflabel.papers.figures.inputs import FigureUnavailable

MAX_TITLE = 22  # characters of a name that fit above a photo
Pixels = NDArray[np.uint8]


class LabelEdge(NamedTuple):
    """`label` is inferred from `neighbour` with this weight."""

    label: str
    neighbour: str
    weight: float
    start_weight: float  # before training


def strongest_edges(before: Edges, after: Edges, classes: Names | Sequence[str], n: int = 20) -> list[LabelEdge]:
    """The n edges with the largest weights between different labels, largest first; ties by class number.

    `before` and `after` are the same edges in the same order, before and after training. Edges of weight 0, which
    training has removed, are left out.
    """
    between = np.flatnonzero((after.rows != after.cols) & (after.weights > 0))
    order = between[np.lexsort((after.cols[between], after.rows[between], -after.weights[between]))][:n]
    return [
        LabelEdge(
            classes[int(after.rows[e])], classes[int(after.cols[e])], float(after.weights[e]), float(before.weights[e])
        )
        for e in order
    ]


def spread_queries(similar: Similar, most: int = 6) -> list[int]:
    """Row numbers of at most `most` images that have a neighbour, evenly spread."""
    with_neighbour = np.flatnonzero((similar.index >= 0).any(1).cpu().numpy())
    if not len(with_neighbour):
        raise FigureUnavailable("not one image has a neighbour")
    places = np.unique(np.linspace(0, len(with_neighbour) - 1, most).astype(int))
    return [int(i) for i in with_neighbour[places]]


def draw_image_neighbours(
    photos: Mapping[int, Pixels],
    similar: Similar,
    queries: Sequence[int],
    titles: Mapping[int, str],
    path: Path,
    caption: str = "",
) -> None:
    """Draw one row per query: the image, then its neighbours in order of choice, with c (labels) and c̄ (features).

    photos: (H, W, 3) of the query and neighbour images, by their row number in `similar`; a missing photo leaves its
    place blank. titles: the text above each photo.
    """
    from matplotlib.figure import Figure

    index = similar.index.cpu()
    weights = [part.cpu() for part in similar.weights]
    columns = 1 + max(int((index[list(queries)] >= 0).sum(1).max()), 1)
    figure = Figure(figsize=(1.9 * columns, 2.05 * len(queries)), layout="constrained")
    for query, axes in zip(queries, figure.subplots(len(queries), columns, squeeze=False), strict=True):
        for panel in axes:
            panel.axis("off")
            panel.set_anchor("N")
        _show_photo(axes[0], photos.get(query), titles[query])
        axes[0].axis("on")
        axes[0].set(xticks=[], yticks=[])
        for spine in axes[0].spines.values():
            spine.set(visible=True, color=BLUE, linewidth=2.5)
        for place, neighbour in enumerate(index[query, : columns - 1].tolist()):
            if neighbour >= 0:
                text = " · ".join(
                    f"{name} {float(part[query, place]):.2f}" for name, part in zip(("c", "c̄"), weights, strict=False)
                )
                _show_photo(axes[1 + place], photos.get(neighbour), f"{titles[neighbour]}\n{text}")
    save_figure(figure, path, caption=caption)


def draw_label_neighbours(
    before: Edges, after: Edges, classes: Names | Sequence[str], path: Path, n: int = 30, caption: str = ""
) -> None:
    """Draw bars of the n strongest edges between different labels, with the weights before training."""
    from matplotlib.figure import Figure

    edges = strongest_edges(before, after, classes, n)[::-1]
    if not edges:
        raise FigureUnavailable("no label is connected to another one")
    figure = Figure(figsize=(6.5, 1.4 + 0.24 * len(edges)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(edges))
    axes.barh(places, [edge.weight for edge in edges], color=BLUE, label="learned")
    axes.plot([edge.start_weight for edge in edges], places, "|", color="black", ms=9, mew=2, label="at the start")
    axes.set_yticks(places, [f"{literal(edge.label)} ← {literal(edge.neighbour)}" for edge in edges], fontsize="small")
    axes.set_ylim(-0.7, len(edges) - 0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel("weight of the edge")
    axes.grid(axis="x", color=GREY, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    total = int(((after.rows != after.cols) & (after.weights > 0)).sum())
    axes.set_title(f"the {len(edges)} strongest of {total:,} edges between labels", fontsize="medium")
    save_figure(figure, path, caption=caption)


def _show_photo(axes: Any, photo: Pixels | None, title: str) -> None:
    if photo is not None:
        axes.imshow(photo)
    lines = [line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…" for line in title.splitlines()]
    axes.set_title(literal("\n".join(lines)), fontsize="small")
