"""The command `halflabel figures`: each figure as a PNG, with the numbers behind it in a file next to it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError, missing_package
from halflabel.papers.figures import score_distributions
from halflabel.papers.figures.inputs import SAMPLE_STREAM, FigureInputs, FigureUnavailable
from halflabel.report.curves import ScoreHistograms, probability_histograms
from halflabel.system.files import atomic_write, write_json
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits, hash_names

if TYPE_CHECKING:
    from halflabel.methods.imcl import Interactive
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.predictor import Predictor

__all__ = ["FIGURES", "DrawnFigure", "draw_figures"]

FIGURES = ("densities", "histograms", "maps", "neighbours")
SOURCES = {
    "densities": "After Zhou 2022 (Acknowledging the Unknown), further analysis: how far the scores of true positives "
    "and true negatives lie apart.",
    "histograms": "After Wang 2023 (saliency and consistency regularisation), figures 1 and 5: number of entries by "
    "score.",
    "maps": "After Wang 2023 (saliency and consistency regularisation), figure 2: heat maps of equation 1.",
    "labels": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of labels.",
    "images": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of images.",
}
PHOTOS_SHOWN = 6


class DrawnFigure(NamedTuple):
    """A figure with its files and the paper it follows; or, without files, the reason why it was skipped."""

    name: str
    files: tuple[Path, ...]
    remark: str


def draw_figures(
    run: RunFolder,
    out: Path,
    *,
    photos: Path | None = None,
    only: Sequence[str] = FIGURES,
    against: RunFolder | None = None,
    scan: int = 2000,
    reporter: Reporter = SILENT,
) -> list[DrawnFigure]:
    """Draw the chosen figures of a finished run into a folder; a figure that the run cannot have states the reason.

    `photos`: the folder of the run's images; without it, only scores stored in the run can be drawn. `against`: another
    run whose maps are drawn next to this one's. At most `scan` training images are scored; `reporter` gets the
    progress. NAME.json or NAME.csv lies next to NAME.png. The files contain image names, but no folders.
    """
    for name in only:
        if name not in FIGURES:
            raise UserError(f"there is no figure {name!r}", f"choose from {', '.join(FIGURES)}")
    if against is not None and (photos is None or "maps" not in only):
        raise UserError("another run is compared only by its maps", "name the photos, and keep maps among the figures")
    if photos is not None and not photos.is_dir():
        raise UserError(f"{photos} is not a folder", "name the folder with the images")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise missing_package(error, "figures") from None
    run.check_finished()
    if against is not None:
        against.check_finished()
    request = _Request(FigureInputs(run, photos, scan=scan, reporter=reporter), out, against)
    figures = []
    for name in FIGURES:
        if name in only:
            figures += _DRAW[name](request)
    return figures


class _Request(NamedTuple):
    """The inputs, the output folder, and the run to compare with."""

    inputs: FigureInputs
    out: Path
    against: RunFolder | None

    def attempt(self, name: str, source: str, draw: Callable[[_Request], tuple[Path, ...]]) -> DrawnFigure:
        """Draw one figure, or state why the run cannot have it."""
        try:
            return DrawnFigure(name, draw(self), SOURCES[source])
        except FigureUnavailable as reason:
            return DrawnFigure(name, (), str(reason))

    def write_csv(self, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
        path = self.out / name
        with atomic_write(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)
        return path

    def write_json(self, name: str, source: str, content: dict[str, Any]) -> Path:
        write_json(self.out / name, {"figure": SOURCES[source], **content})
        return self.out / name


def _densities(request: _Request) -> tuple[Path, ...]:
    measured, truth, labels_from = request.inputs.held_out()
    if not ((truth > 0).any() and (truth < 0).any()):
        raise FigureUnavailable(
            "the held-out images have no known positive or no known negative: train with --truth LABELS"
        )
    densities = score_distributions.score_densities(measured.scores, truth)
    classes = list(request.inputs.facts.table.classes)
    picture = request.out / "densities.png"
    images = f"{len(measured.images)} held-out images, {labels_from}"
    caption = f"{SOURCES['densities']}\n{images}."
    score_distributions.draw_score_densities(densities, picture, classes, caption=caption)
    numbers = {"on": images, "wasserstein": densities.distance, **densities._asdict()}
    numbers["per_class"] = dict(zip(classes, densities.per_class.tolist(), strict=True))
    del numbers["distance"]
    return picture, request.write_json("densities.json", "densities", numbers)


def _histograms(request: _Request) -> tuple[Path, ...]:
    inputs = request.inputs
    histograms: dict[str, ScoreHistograms] = {}
    if inputs.photos is not None:
        scores = inputs.predictor.platt.scores(inputs.sweep.logits)
        labels = inputs.facts.table.rows(inputs.facts.training[inputs.sample])
        title = f"{len(labels)} training images, by their known labels"
        histograms[title] = probability_histograms(scores.numpy(), labels)
    if inputs.facts.held_out is not None:
        measured, truth, labels_from = inputs.held_out()
        title = f"{len(measured.images)} held-out images, {labels_from}"
        histograms[title] = probability_histograms(measured.scores, truth)
    if not histograms:
        raise FigureUnavailable("no images were held out, and the training images are missing: name the photos")
    picture = request.out / "histograms.png"
    score_distributions.draw_probability_histograms(histograms, picture, caption=SOURCES["histograms"])
    rows = [
        (title, low, high, *entries)
        for title, histogram in histograms.items()
        for low, high, *entries in zip(
            *(edges.round(4).tolist() for edges in (histogram.edges[:-1], histogram.edges[1:])),
            *(counts.tolist() for counts in (histogram.present, histogram.absent, histogram.unknown)),
            strict=True,
        )
    ]
    header = ("images", "score from", "score to", "present", "absent", "unknown")
    return picture, request.write_csv("histograms.csv", header, rows)


def _maps(request: _Request) -> tuple[Path, ...]:
    from halflabel.papers.figures.class_maps import draw_class_maps
    from halflabel.runs.predictor import Predictor

    inputs = request.inputs
    inputs.source()
    picks = _pick_positives(inputs)
    photos = {number: photo for number, _ in picks if (photo := inputs.read_photo(number)) is not None}
    picks = [(number, column) for number, column in picks if number in photos]
    if not picks:
        raise FigureUnavailable("none of the photos with a known positive can be read as a file")
    predictors = {_title(inputs.run): inputs.predictor}
    if request.against is not None:
        title = _title(request.against)
        predictors[title if title not in predictors else f"{title} (2)"] = Predictor.from_run(request.against)
    heat: dict[str, list[NDArray[np.float32]]] = {}
    entries: list[dict[str, Any]] = []
    for title, predictor in predictors.items():
        heat[title], model_entries = _model_maps(inputs, title, predictor, picks, photos)
        entries += model_entries
    picture = request.out / "maps.png"
    classes = inputs.facts.table.classes
    caption = (
        f"{SOURCES['maps']}\nOne known positive of each class, chosen at random. Each map has its own scale; places "
        "without evidence for the class have no colour."
    )
    row_titles = [classes[column] for _, column in picks]
    draw_class_maps([photos[number] for number, _ in picks], heat, row_titles, picture, caption)
    return picture, request.write_json("maps.json", "maps", {"maps": entries})


def _model_maps(
    inputs: FigureInputs,
    title: str,
    predictor: Predictor,
    picks: Sequence[tuple[int, int]],
    photos: dict[int, NDArray[np.uint8]],
) -> tuple[list[NDArray[np.float32]], list[dict[str, Any]]]:
    """One model's map for each picked image and class: as heat over the photo, and as an entry of maps.json."""
    from halflabel.models.class_maps import compute_class_maps, heat_map_on_photo, visible_box

    classes = inputs.facts.table.classes
    columns = predictor.classes.index([classes[column] for _, column in picks])
    if (columns < 0).any():
        missing = classes[picks[int(np.flatnonzero(columns < 0)[0])][1]]
        raise UserError(f"{title} has no class {missing!r}", "compare runs with the same classes")
    numbers = np.array([number for number, _ in picks])
    view, logits = inputs.logits(predictor, numbers)
    try:
        distinct, which = np.unique(columns, return_inverse=True)
        maps = compute_class_maps(predictor.model, view, distinct.tolist())[np.arange(len(columns)), which]
    except UserError as error:
        raise FigureUnavailable(f"{title}: {error.message}") from None
    shapes = [photos[number].shape[:2] for number in numbers]
    boxes = [visible_box(predictor.views["plain"], *shape) for shape in shapes]
    heat = [heat_map_on_photo(*each) for each in zip(maps, shapes, boxes, strict=True)]
    entries = [
        {
            "run": title,
            "image": inputs.facts.table.images[number],
            "class": classes[column],
            "logit": float(image_logits[own_column]),
            "map": class_map,
        }
        for (number, column), class_map, image_logits, own_column in zip(picks, maps, logits, columns, strict=True)
    ]
    return heat, entries


def _pick_positives(inputs: FigureInputs) -> list[tuple[int, int]]:
    """(image number, class): one known positive of each of the most frequent classes, held-out images first."""
    table, measured = inputs.facts.table, inputs.facts.held_out
    held_out = measured.images if measured is not None else np.zeros(0, np.int64)
    frequent = np.argsort(-table.stats().positives, kind="stable")
    picked: dict[int, int] = {}  # each image once
    for numbers in (held_out, inputs.facts.training):
        order = np.argsort(bits(SAMPLE_STREAM, hash_names(table.images.take(numbers).array)), kind="stable")
        candidates = numbers[order][: 50 * PHOTOS_SHOWN]
        present = table.rows(candidates) > 0
        for column in frequent.tolist():
            unused = [int(number) for number in candidates[present[:, column]] if int(number) not in picked]
            if len(picked) < PHOTOS_SHOWN and unused and column not in picked.values():
                picked[unused[0]] = column
    if not picked:
        raise FigureUnavailable("not one image has a known positive label")
    return list(picked.items())


def _title(run: RunFolder) -> str:
    return run.folder.resolve().name


def _method_name(inputs: FigureInputs) -> str:
    from halflabel.training.config import Config

    return Config.from_dict(inputs.facts.config).method


def _learned_method(inputs: FigureInputs) -> Interactive:
    """The method imcl of the run with what it has learned."""
    from halflabel.methods.imcl import Interactive

    name = _method_name(inputs)
    method = inputs.method if name == "imcl" else None
    if not isinstance(method, Interactive):
        raise FigureUnavailable(f"{name} learns no similarities: imcl does")
    return method


def _label_neighbours(request: _Request) -> tuple[Path, ...]:
    from halflabel.papers.figures.neighbours import draw_label_neighbours, strongest_edges

    method, classes = _learned_method(request.inputs), request.inputs.facts.table.classes
    after = method.graph.edges()
    before = after._replace(weights=method.start_weights.cpu().numpy().astype(np.float64))
    picture = request.out / "label_neighbours.png"
    try:
        draw_label_neighbours(before, after, classes, picture, caption=SOURCES["labels"])
    except UserError as error:
        raise FigureUnavailable(error.message) from None
    rows = strongest_edges(before, after, classes, len(after.rows))
    header = ("label", "inferred from", "weight", "weight at the start")
    return picture, request.write_csv("label_neighbours.csv", header, rows)


def _image_neighbours(request: _Request) -> tuple[Path, ...]:
    import torch

    from halflabel.papers.figures.neighbours import draw_image_neighbours, spread_queries

    inputs = request.inputs
    method = _learned_method(inputs)
    inputs.source()
    numbers, table = inputs.facts.training[inputs.sample], inputs.facts.table
    labels = torch.from_numpy(table.rows(numbers))
    groups = None if method.groups is None else method.groups[torch.from_numpy(inputs.sample)]
    similar = method.neighbours(inputs.sweep.features, inputs.sweep.logits, labels, groups)
    try:
        queries = spread_queries(similar, PHOTOS_SHOWN)
    except UserError as error:
        raise FigureUnavailable(error.message) from None
    index = similar.index.cpu()
    shown = sorted({*queries, *(row for row in index[queries].flatten().tolist() if row >= 0)})
    photos = {row: photo for row in shown if (photo := inputs.read_photo(int(numbers[row]))) is not None}
    titles = {
        row: ", ".join(table.classes[int(c)] for c in torch.nonzero(labels[row] > 0).flatten()) or "none known"
        for row in shown
    }
    picture = request.out / "image_neighbours.png"
    caption = (
        f"{SOURCES['images']}\nAmong {len(numbers)} training images. Above each: its known classes. c weighs labels, "
        "c̄ features."
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
    return picture, request.write_csv("image_neighbours.csv", ("image", "neighbour", "c", "c̄"), rows)


def _neighbours(request: _Request) -> list[DrawnFigure]:
    if _method_name(request.inputs) != "imcl":
        return [request.attempt("neighbours", "labels", _label_neighbours)]
    return [
        request.attempt("label neighbours", "labels", _label_neighbours),
        request.attempt("image neighbours", "images", _image_neighbours),
    ]


_DRAW: dict[str, Callable[[_Request], list[DrawnFigure]]] = {
    "densities": lambda request: [request.attempt("densities", "densities", _densities)],
    "histograms": lambda request: [request.attempt("histograms", "histograms", _histograms)],
    "maps": lambda request: [request.attempt("maps", "maps", _maps)],
    "neighbours": _neighbours,
}
