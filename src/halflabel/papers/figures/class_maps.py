"""Class-activation maps of one or two models laid over photos (Wang 2023, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.models.class_maps import overlay
from halflabel.papers.figures.canvas import literal, save_figure

__all__ = ["draw_class_maps"]


def draw_class_maps(
    photos: Sequence[NDArray[np.uint8]],
    heat: Mapping[str, Sequence[NDArray[np.float32]]],
    row_titles: Sequence[str],
    path: Path,
    caption: str = "",
) -> None:
    """Draw one row per photo: the photo, then the map of one class by each model, each map on its own scale.

    photos: each (H, W, 3); heat: model title -> the heat of each photo (H, W) in [0, 1]; row_titles: text left of each
    row, such as the class.
    """
    from matplotlib.figure import Figure

    if not heat or not len(photos):
        raise UserError("there is nothing to compare", "give at least one model and one photo")
    figure = Figure(figsize=(0.5 + 2.5 * (1 + len(heat)), 0.4 + 1.9 * len(photos)), layout="constrained")
    panels = figure.subplots(len(photos), 1 + len(heat), squeeze=False)
    for row, photo in enumerate(photos):
        pictures = [photo, *(overlay(photo, maps[row]) for maps in heat.values())]
        for axes, picture in zip(panels[row], pictures, strict=True):
            axes.imshow(picture)
            axes.set_xticks([])
            axes.set_yticks([])
        panels[row][0].set_ylabel(literal(row_titles[row]))
    for axes, title in zip(panels[0], ["photo", *heat], strict=True):
        axes.set_title(literal(title), fontsize="medium")
    save_figure(figure, path, caption=caption)
