"""Pictures of the demo: some scenes with their labels, and the methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from halflabel.data.datasets.digits import Scenes
from halflabel.papers.figures.canvas import BLUE, GREY, ORANGE, literal, save_figure

if TYPE_CHECKING:
    from halflabel.cli.demo import Row

__all__ = ["draw_demo", "draw_scenes"]


def draw_scenes(scenes: Scenes, path: Path, rows: int = 3, columns: int = 8) -> None:
    """A sheet of scenes with what is in them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.3 * columns, 1.5 * rows), layout="constrained")
    for axes, image, labels in zip(figure.subplots(rows, columns).flat, scenes.images, scenes.labels, strict=False):
        axes.imshow(image.permute(1, 2, 0).numpy())
        axes.set_title(" ".join(c for c, label in zip(scenes.classes, labels, strict=True) if label > 0), fontsize=9)
        axes.axis("off")
    save_figure(figure, path)


def draw_demo(found: Sequence[Row], path: Path) -> None:
    """Test mAP of each method, one panel per way of hiding labels; the line is what all labels give."""
    from matplotlib.figure import Figure

    oracle = found[0].mAP
    panels = list(dict.fromkeys(row.known for row in found[1:]))
    most = max(sum(row.known == known for row in found) for known in panels)
    figure = Figure(figsize=(4.5 * len(panels), 1 + 0.35 * most), layout="constrained")
    for axes, known in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        rows = sorted((row for row in found if row.known == known), key=lambda row: row.mAP)
        colours = [GREY if row.method == "an" else BLUE for row in rows]
        axes.barh([literal(row.method) for row in rows], [100 * row.mAP for row in rows], color=colours)
        axes.axvline(100 * oracle, color=ORANGE)
        axes.set_xlim(0, 100)
        axes.set_title(f"{known} known (line: all)", fontsize="medium")
        axes.set_xlabel("test mAP")
    save_figure(figure, path)
