"""Pictures of what a method has learned to be similar: images with their neighbours, and labels with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.report.training import BLUE, save_figure

if TYPE_CHECKING:
    from torch import Tensor

    from halflabel.label_graph import Edges
    from halflabel.omp import Similar

__all__ = ["LabelEdge", "draw_image_neighbours", "draw_label_neighbours", "strongest_edges"]

LONGEST = 22  # letters of a name that fit above a picture


class LabelEdge(NamedTuple):
    """`label` is inferred from `neighbour` with this weight."""

    label: str
    neighbour: str
    weight: float


def strongest_edges(edges: Edges, classes: Names | Sequence[str], n: int = 20) -> list[LabelEdge]:
    """The n edges of the largest weight between different labels, largest first; equal ones by class number.

    Edges of weight 0, which learning has removed, are left out.
    """
    apart = np.flatnonzero((edges.rows != edges.cols) & (edges.weights > 0))
    order = apart[np.lexsort((edges.cols[apart], edges.rows[apart], -edges.weights[apart]))][:n]
    return [LabelEdge(classes[int(edges.rows[e])], classes[int(edges.cols[e])], float(edges.weights[e])) for e in order]


def draw_image_neighbours(
    images: Tensor,
    similar: Similar,
    path: Path,
    *,
    queries: Sequence[int] | None = None,
    names: Names | Sequence[str] | None = None,
) -> None:
    """One row per query: the image, then its neighbours in the order of choice, with c (labels) and c̄ (features).

    images (N, 3, H, W) uint8; `similar` numbers them, one row per image. queries: image numbers, by default six spread
    over the images that have a neighbour. names: of the images, to be written above them.
    """
    from matplotlib.figure import Figure

    if images.ndim != 4 or images.shape[1] != 3 or len(images) != len(similar.index):
        raise UserError(
            f"images have shape {tuple(images.shape)}, neighbours are of {len(similar.index)} images",
            "give (N, 3, H, W) pictures, one for each row of the neighbours",
        )
    index, pictures = similar.index.cpu(), images.cpu()
    weights = [part.cpu() for part in similar.weights]
    if queries is None:
        having = np.flatnonzero((index >= 0).any(1).numpy())
        queries = (
            [int(i) for i in having[np.unique(np.linspace(0, len(having) - 1, 6).astype(int))]] if len(having) else []
        )
    if not queries:
        raise UserError("not one image has a neighbour", "name the images to show, or train longer")
    columns = 1 + max(int((index[list(queries)] >= 0).sum(1).max()), 1)
    figure = Figure(figsize=(1.5 * columns, 1.85 * len(queries)), layout="constrained")
    for line, axes in zip(queries, figure.subplots(len(queries), columns, squeeze=False), strict=True):
        for panel in axes:
            panel.axis("off")
        _show(axes[0], pictures[line], _short(names, line))
        for spine in axes[0].spines.values():
            spine.set(visible=True, color=BLUE, linewidth=2)
        axes[0].axis("on")
        axes[0].set(xticks=[], yticks=[])
        for place, other in enumerate(index[line, : columns - 1].tolist()):
            if other >= 0:
                said = " · ".join(
                    f"{name} {float(part[line, place]):.2f}" for name, part in zip(("c", "c̄"), weights, strict=False)
                )
                above = _short(names, other)
                _show(axes[1 + place], pictures[other], f"{above}\n{said}" if above else said)
    save_figure(figure, path)


def draw_label_neighbours(edges: Edges, classes: Names | Sequence[str], path: Path, n: int = 30) -> None:
    """Bars of the n strongest edges between different labels."""
    from matplotlib.figure import Figure

    shown = strongest_edges(edges, classes, n)[::-1]
    if not shown:
        raise UserError("no label is connected to another one", "use a label graph other than the identity")
    figure = Figure(figsize=(6.5, 1.2 + 0.24 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.barh(np.arange(len(shown)), [edge.weight for edge in shown], color=BLUE)
    axes.set_yticks(np.arange(len(shown)), [f"{edge.label} ← {edge.neighbour}" for edge in shown], fontsize="small")
    axes.set_xlabel("weight of the edge")
    apart = int(((edges.rows != edges.cols) & (edges.weights > 0)).sum())
    axes.set_title(f"the {len(shown)} strongest of {apart:,} edges between labels", fontsize="medium")
    save_figure(figure, path)


def _show(axes: Any, picture: Tensor, title: str) -> None:
    axes.imshow(picture.permute(1, 2, 0).numpy())
    axes.set_title(title, fontsize="x-small")


def _short(names: Names | Sequence[str] | None, number: int) -> str:
    if names is None:
        return ""
    name = names[number]
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
