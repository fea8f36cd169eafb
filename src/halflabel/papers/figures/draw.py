"""The command `halflabel figures`: each figure as a PNG, with the numbers behind it in a file next to it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from halflabel.errors import UserError, missing_package
from halflabel.fitting.config import Config
from halflabel.methods.imcl import Interactive
from halflabel.papers.figures import score_distributions
from halflabel.papers.figures.inputs import FigureInputs, FigureUnavailable
from halflabel.papers.figures.neighbours import (
    draw_image_neighbours,
    draw_label_neighbours,
    spread_queries,
    strongest_edges,
)
from halflabel.runs.folder import RunFolder
from halflabel.system.files import write_csv, write_json
from halflabel.system.reporter import SILENT, Reporter

SOURCES = {
    "densities": "After Zhou 2022 (Acknowledging the Unknown), further analysis: how far the scores of true positives "
    "and true negatives lie apart.",
    "label neighbours": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of "
    "labels.",
    "image neighbours": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of "
    "images.",
}
PHOTOS_SHOWN = 6


class DrawnFigure(NamedTuple):
    """A figure with its files and the paper it follows; or, without files, the reason why it was skipped."""

    name: str
    files: tuple[Path, ...]
    remark: str


def draw_figures(
    run: RunFolder, out: Path, *, photos: Path | None = None, scan: int = 2000, reporter: Reporter = SILENT
) -> list[DrawnFigure]:
    """Draw the figures of a finished run into a folder; a figure that the run cannot have states the reason.

    `photos`: the folder of the run's images; without it, only scores stored in the run can be drawn. At most `scan`
    training images are scored; `reporter` gets the progress. NAME.json or NAME.csv lies next to NAME.png. The files
    contain image names, but no folders.
    """
    if photos is not None and not photos.is_dir():
        raise UserError(f"{photos} is not a folder", "name the folder with the images")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with ‹out›")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise missing_package(error, "figures") from None
    run.check_finished()
    inputs, drawn = FigureInputs(run, photos, scan=scan, reporter=reporter), []
    draw = {"densities": _densities, "label neighbours": _label_neighbours, "image neighbours": _image_neighbours}
    for name, function in draw.items():
        try:
            drawn.append(DrawnFigure(name, function(inputs, out), SOURCES[name]))
        except FigureUnavailable as reason:
            drawn.append(DrawnFigure(name, (), str(reason)))
    return drawn


def _densities(inputs: FigureInputs, out: Path) -> tuple[Path, ...]:
    measured, truth, labels_from = inputs.held_out()
    if not ((truth > 0).any() and (truth < 0).any()):
        raise FigureUnavailable(
            "the held-out images have no known positive or no known negative: train with ‹truth=LABELS›"
        )
    densities = score_distributions.score_densities(measured.scores, truth)
    classes = list(inputs.facts.table.classes)
    picture = out / "densities.png"
    images = f"{len(measured.images)} held-out images, {labels_from}"
    caption = f"{SOURCES['densities']}\n{images}."
    score_distributions.draw_score_densities(densities, picture, classes, caption=caption)
    numbers = {"on": images, "wasserstein": densities.distance, **densities._asdict()}
    numbers["per_class"] = dict(zip(classes, densities.per_class.tolist(), strict=True))
    del numbers["distance"]
    write_json(out / "densities.json", {"figure": SOURCES["densities"], **numbers})
    return picture, out / "densities.json"


def _learned_method(inputs: FigureInputs) -> Interactive:
    """The method imcl of the run with what it has learned."""
    name = Config.from_dict(inputs.facts.config).method
    method = inputs.method if name == "imcl" else None
    if not isinstance(method, Interactive):
        raise FigureUnavailable(f"{name} learns no similarities: imcl does")
    return method


def _label_neighbours(inputs: FigureInputs, out: Path) -> tuple[Path, ...]:
    method, classes = _learned_method(inputs), inputs.facts.table.classes
    after = method.graph.edges()
    before = after._replace(weights=method.start_weights.cpu().numpy().astype(np.float64))
    picture = out / "label_neighbours.png"
    draw_label_neighbours(before, after, classes, picture, caption=SOURCES["label neighbours"])
    rows = strongest_edges(before, after, classes, len(after.rows))
    header = ("label", "inferred from", "weight", "weight at the start")
    write_csv(picture.with_suffix(".csv"), header, rows)
    return picture, picture.with_suffix(".csv")


def _image_neighbours(inputs: FigureInputs, out: Path) -> tuple[Path, ...]:
    method = _learned_method(inputs)
    numbers, table = inputs.facts.training[inputs.sample], inputs.facts.table
    labels = torch.from_numpy(table.rows(numbers))
    groups = None if method.groups is None else method.groups[torch.from_numpy(inputs.sample)]
    similar = method.neighbours(inputs.sweep.features, inputs.sweep.logits, labels, groups)
    queries = spread_queries(similar, PHOTOS_SHOWN)
    index = similar.index.cpu()
    shown = sorted({*queries, *(row for row in index[queries].flatten().tolist() if row >= 0)})
    photos = {row: photo for row in shown if (photo := inputs.read_photo(int(numbers[row]))) is not None}
    titles = {
        row: ", ".join(table.classes[int(c)] for c in torch.nonzero(labels[row] > 0).flatten()) or "none known"
        for row in shown
    }
    picture = out / "image_neighbours.png"
    caption = (
        f"{SOURCES['image neighbours']}\nAmong {len(numbers)} training images. Above each: its known classes. "
        "c weighs labels, c̄ features."
    )
    draw_image_neighbours(photos, similar, queries, titles, picture, caption)
    names, weights = table.images, [part.cpu() for part in similar.weights]
    rows = [
        (
            names[int(numbers[row])],
            names[int(numbers[neighbour])],
            *(f"{float(weight[row, place]):.6g}" for weight in weights),
        )
        for row in range(len(index))
        for place, neighbour in enumerate(index[row].tolist())
        if neighbour >= 0
    ]
    write_csv(picture.with_suffix(".csv"), ("image", "neighbour", "c", "c̄"), rows)
    return picture, picture.with_suffix(".csv")
