"""The command `halflabel figures`: each figure as a PNG, with the numbers behind it in a file next to it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.stats import wasserstein_distance

from halflabel.errors import UserError, error_summary, in_python, missing_package
from halflabel.features.heads import Model as Network
from halflabel.features.scoring import score_source
from halflabel.fitting import checkpoint
from halflabel.images.decode import BadImage, read_image
from halflabel.images.sources import Images, Subset, open_images
from halflabel.labels.names import Names
from halflabel.methods.base import recipe, seeded
from halflabel.methods.imcl import Interactive
from halflabel.methods.parts.label_graph import Edges
from halflabel.methods.parts.matching_pursuit import Similar
from halflabel.report.run_facts import read_run_facts
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.system.files import atomic_write, write_csv, write_json
from halflabel.system.format import shorten
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits, hash_names
from halflabel.types import Sweep

SOURCES = {
    "densities": "After Zhou 2022 (Acknowledging the Unknown), further analysis: how far the scores of true positives "
    "and true negatives lie apart.",
    "label neighbours": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of "
    "labels.",
    "image neighbours": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of "
    "images.",
}
_BLUE, _GREY = "#2b6cb0", "#9ca3af"
_COLOURS = {"present": "#2a9d5c", "absent": "#d1495b"}
_CLASSES = 40  # with the smallest distances, which are drawn as bars
_EDGES = 30  # between labels, which are drawn as bars
_PHOTOS = 6  # whose neighbours are drawn
_PHOTO_SIDE = 320  # pixels of a photo's longer side
_SAMPLE_STREAM = 0x66696775  # random stream that orders the images

Floats = NDArray[np.float64]


class DrawnFigure(NamedTuple):
    """A figure with its files and the paper it follows; or, without files, the reason why it was skipped."""

    name: str
    files: tuple[Path, ...]
    remark: str


class FigureUnavailable(Exception):
    """This run cannot have this figure; the message is the reason."""


def draw_figures(
    run: RunFolder, out: Path, *, photos: Path | None = None, scan: int = 2000, reporter: Reporter = SILENT
) -> list[DrawnFigure]:
    """Draw the figures of a finished run into a folder; a figure that the run cannot have states the reason.

    Without `photos`, the folder of the run's images, only scores stored in the run can be drawn. At most `scan`
    training images are scored.
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


class ScoreDensities(NamedTuple):
    """Score densities of true positives and true negatives, and the distance between the two."""

    edges: Floats  # (bins + 1,)
    present: Floats  # (bins,) density over all classes; integrates to 1, NaN without any positive
    absent: Floats  # (bins,)
    wasserstein: float  # distance over all classes
    per_class: Floats  # (C,) distance per class; NaN for classes without positives or without negatives


def score_densities(scores: ArrayLike, truth: ArrayLike, bins: int = 50) -> ScoreDensities:
    """Score densities of positives and negatives, and their Wasserstein distance W₁ = ∫ |F⁺(s) − F⁻(s)| ds.

    scores (N, C) in [0, 1], NaN for unreadable images; truth (N, C) in {−1, 0, +1}, entries of value 0 are ignored.
    """
    scores, truth = np.asarray(scores, np.float64), np.asarray(truth)
    present, absent = (truth > 0) & ~np.isnan(scores), (truth < 0) & ~np.isnan(scores)
    edges = np.linspace(0, 1, bins + 1)

    def density(values: Floats) -> Floats:
        return np.histogram(values, edges, density=True)[0] if len(values) else np.full(bins, np.nan)

    def distance(positives: Floats, negatives: Floats) -> float:
        return float(wasserstein_distance(positives, negatives)) if len(positives) and len(negatives) else np.nan

    per_class = [distance(x[on], x[off]) for x, on, off in zip(scores.T, present.T, absent.T, strict=True)]
    values = scores[present], scores[absent]
    return ScoreDensities(
        edges, density(scores[present]), density(scores[absent]), distance(*values), np.array(per_class)
    )


def _densities(inputs: FigureInputs, out: Path) -> tuple[Path, ...]:
    """Draw the two densities over all classes, and bars of the smallest distances per class."""
    measured, truth = inputs.facts.held_out, inputs.run.read_truth()
    if measured is None:
        raise FigureUnavailable("no images were held out: train with ‹held_out=0.2›")
    table, labels, source = inputs.facts.table, measured.labels, "by their known labels"
    if truth is not None:
        truth = truth.subset(truth.images.index(table.images.array), truth.classes.index(table.classes.array))
        labels, source = truth.rows(measured.images), "by the hidden truth"
    if not ((labels > 0).any() and (labels < 0).any()):
        raise FigureUnavailable(
            "the held-out images have no known positive or no known negative: train with ‹truth=LABELS›"
        )
    densities = score_densities(measured.scores, labels)
    classes, images = list(table.classes), f"{len(measured.images)} held-out images, {source}"
    with_distance = np.flatnonzero(~np.isnan(densities.per_class))
    shown = with_distance[np.argsort(densities.per_class[with_distance], kind="stable")][:_CLASSES][::-1]
    figure = _new_figure(10, max(3.6, 1 + 0.2 * len(shown)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for meaning, density in (("present", densities.present), ("absent", densities.absent)):
        left.stairs(density, densities.edges, fill=True, alpha=0.45, color=_COLOURS[meaning], label=f"truly {meaning}")
    left.set_yscale("symlog", linthresh=1)
    left.set(xlim=(0, 1), ylim=(0, None), xlabel="score", ylabel="density")
    left.legend(loc="upper center")
    left.set_title(f"all classes: Wasserstein distance {densities.wasserstein:.3f}", fontsize="medium")
    right.barh(np.arange(len(shown)), densities.per_class[shown], color=_BLUE)
    right.set_yticks(np.arange(len(shown)), [literal(classes[c]) for c in shown], fontsize="small")
    right.axvline(densities.wasserstein, color=_GREY, lw=1)
    right.set(xlim=(0, 1), xlabel="Wasserstein distance")
    right.set_title(f"the {len(shown)} smallest of {len(with_distance)} classes", fontsize="medium")
    picture = out / "densities.png"
    save_figure(figure, picture, f"{SOURCES['densities']}\n{images}.")
    numbers = {**densities._asdict(), "per_class": dict(zip(classes, densities.per_class.tolist(), strict=True))}
    write_json(out / "densities.json", {"figure": SOURCES["densities"], "on": images, **numbers})
    return picture, out / "densities.json"


class LabelEdge(NamedTuple):
    """`label` is inferred from `neighbour` with this weight."""

    label: str
    neighbour: str
    weight: float
    start_weight: float  # before training


def strongest_edges(before: Edges, after: Edges, classes: Names | Sequence[str]) -> list[LabelEdge]:
    """The edges of weight > 0 between different labels, strongest first, with their weights before training."""
    between = np.flatnonzero((after.rows != after.cols) & (after.weights > 0))
    order = between[np.lexsort((after.cols[between], after.rows[between], -after.weights[between]))]
    names = [(classes[int(after.rows[e])], classes[int(after.cols[e])]) for e in order]
    weights = zip(after.weights[order].tolist(), before.weights[order].tolist(), strict=True)
    return [LabelEdge(*pair, *both) for pair, both in zip(names, weights, strict=True)]


def _label_neighbours(inputs: FigureInputs, out: Path) -> tuple[Path, ...]:
    """Draw bars of the strongest edges between different labels, with the weights before training."""
    method, classes = inputs.method, inputs.facts.table.classes
    after = method.graph.edges()
    before = after._replace(weights=method.start_weights.cpu().numpy().astype(np.float64))
    edges = strongest_edges(before, after, classes)
    if not edges:
        raise FigureUnavailable("no label is connected to another one")
    shown = edges[:_EDGES][::-1]
    figure = _new_figure(6.5, 1.4 + 0.24 * len(shown))
    axes, places = figure.subplots(), np.arange(len(shown))
    axes.barh(places, [edge.weight for edge in shown], color=_BLUE, label="learned")
    axes.plot([edge.start_weight for edge in shown], places, "|", color="black", ms=9, mew=2, label="at the start")
    axes.set_yticks(places, [f"{literal(edge.label)} ← {literal(edge.neighbour)}" for edge in shown], fontsize="small")
    axes.set(xlim=(0, None), ylim=(-0.7, len(shown) - 0.3), xlabel="weight of the edge")
    axes.grid(axis="x", color=_GREY, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    axes.set_title(f"the {len(shown)} strongest of {len(edges):,} edges between labels", fontsize="medium")
    picture = out / "label_neighbours.png"
    save_figure(figure, picture, SOURCES["label neighbours"])
    write_csv(picture.with_suffix(".csv"), ("label", "inferred from", "weight", "weight at the start"), edges)
    return picture, picture.with_suffix(".csv")


def spread_queries(similar: Similar, most: int = _PHOTOS) -> list[int]:
    """Row numbers of at most `most` images that have a neighbour, evenly spread."""
    with_neighbour = np.flatnonzero((similar.index >= 0).any(1).cpu().numpy())
    if not len(with_neighbour):
        raise FigureUnavailable("not one image has a neighbour")
    places = np.unique(np.linspace(0, len(with_neighbour) - 1, most).astype(int))
    return [int(i) for i in with_neighbour[places]]


def _image_neighbours(inputs: FigureInputs, out: Path) -> tuple[Path, ...]:
    """Draw one row per photo, then its neighbours in order of choice, with c (labels) and c̄ (features)."""
    method, table = inputs.method, inputs.facts.table
    numbers = inputs.facts.training[inputs.sample]
    labels = torch.from_numpy(table.rows(numbers))
    groups = None if method.groups is None else method.groups[torch.from_numpy(inputs.sample)]
    similar = method.neighbours(inputs.sweep.features, inputs.sweep.logits, labels, groups)
    queries, index = spread_queries(similar), similar.index.cpu()
    weights = [part.cpu() for part in similar.weights]
    columns = 1 + max(int((index[queries] >= 0).sum(1).max()), 1)
    figure = _new_figure(1.9 * columns, 2.05 * len(queries))
    for query, axes in zip(queries, figure.subplots(len(queries), columns, squeeze=False), strict=True):
        for place, (panel, row) in enumerate(zip(axes, [query, *index[query, : columns - 1].tolist()], strict=True)):
            panel.axis("off")
            panel.set_anchor("N")
            if row < 0:
                continue
            if (photo := inputs.read_photo(int(numbers[row]))) is not None:
                panel.imshow(photo)
            known = ", ".join(table.classes[int(c)] for c in torch.nonzero(labels[row] > 0).flatten()) or "none known"
            title = literal(shorten(known, 22))
            if place:
                title += "\n" + " · ".join(
                    f"{name} {float(part[query, place - 1]):.2f}"
                    for name, part in zip(("c", "c̄"), weights, strict=True)
                )
            panel.set_title(title, fontsize="small")
    picture = out / "image_neighbours.png"
    caption = f"{SOURCES['image neighbours']}\nAmong {len(numbers)} training images. Above each: its known classes. "
    save_figure(figure, picture, f"{caption}c weighs labels, c̄ features.")
    rows = [
        (
            table.images[int(numbers[row])],
            table.images[int(numbers[neighbour])],
            *(f"{float(weight[row, place]):.6g}" for weight in weights),
        )
        for row in range(len(index))
        for place, neighbour in enumerate(index[row].tolist())
        if neighbour >= 0
    ]
    write_csv(picture.with_suffix(".csv"), ("image", "neighbour", "c", "c̄"), rows)
    return picture, picture.with_suffix(".csv")


def literal(name: str) -> str:
    """Escape the name of a class, a method or a file: matplotlib reads text between two dollar signs as a formula.

    >>> print(literal("a$^$b"))
    a\\$^\\$b
    """
    return name.replace("$", r"\$")


def _new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches, without touching matplotlib's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, caption: str) -> None:
    """Write a figure as PNG atomically, with the caption below it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.text(0.01, -0.01, literal(caption), va="top", fontsize="small", color="#4b5563")
    with atomic_write(path) as temporary, warnings.catch_warnings():
        # A name may contain letters that the font lacks. Matplotlib draws boxes for them; the user cannot change that.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(temporary, format="png", dpi=130, bbox_inches="tight", pad_inches=0.12)


class FigureInputs:
    """A finished run. What takes long is loaded on first use and kept."""

    def __init__(self, run: RunFolder, photos: Path | None, *, scan: int, reporter: Reporter = SILENT) -> None:
        self.run, self.photos, self.scan, self.reporter = run, photos, scan, reporter
        self.facts = read_run_facts(run)

    @cached_property
    def predictor(self) -> Model:
        return Model.open(self.run)

    @cached_property
    def source(self) -> Images:
        """The photos, preprocessed for this run's model."""
        if self.photos is None:
            raise FigureUnavailable("it needs the photos: name their folder after the run")
        workers = self.predictor.config.workers
        return open_images(self.facts.table.images, self.photos, self.predictor.views, workers=workers, max_bad=1.0)

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """Positions among the training images: all, or a random sample that depends only on the image names."""
        names = self.facts.table.images.take(self.facts.training).array
        order = np.argsort(bits(_SAMPLE_STREAM, hash_names(names)), kind="stable")
        return np.sort(order[: self.scan])

    @cached_property
    def sweep(self) -> Sweep:
        """Logits and features of the sampled training images."""
        part, predictor = Subset(self.source, self.facts.training[self.sample]), self.predictor
        return score_source(predictor.network, part, device=predictor.device, reporter=self.reporter)

    @cached_property
    def method(self) -> Interactive:
        """The method imcl with what it has learned: the state of the last checkpoint."""
        config = self.predictor.config
        if config.method != "imcl":
            raise FigureUnavailable(f"{config.method} learns no similarities: imcl does")
        newest = checkpoint.load_newest(self.run.checkpoints / config.tune)
        if newest is None:
            raise FigureUnavailable("what the method has learned is in the run's checkpoints, and the run has none")
        method = seeded(config.seed, lambda: recipe(config.method).make(**config.options))
        assert isinstance(method, Interactive)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training has already warned about the number of epochs
            method.plan(config.epochs)
        try:
            model = self.predictor.network
            trained = Network(None, model.head) if config.tune == "head" else model
            method.start(self.facts.table.subset(self.facts.training), trained)
        except UserError as error:  # for example a file that existed during training
            raise FigureUnavailable(f"{config.method} cannot be started again: {in_python(error.message)}") from None
        try:
            checkpoint.load_state(method, newest["method"])
        except RuntimeError as error:
            reason = error_summary(error)
            raise UserError(
                f"a checkpoint of {self.run.folder} was written by another version ({reason})", "train again"
            ) from None
        return method.to(self.predictor.device)

    def read_photo(self, number: int) -> NDArray[np.uint8] | None:
        """A photo (H, W, 3), scaled down with its own aspect ratio; None if it is unreadable or lies in a pack."""
        try:
            image = read_image(self.source.paths[number])
        except BadImage:
            return None
        photo = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        photo.thumbnail((_PHOTO_SIDE, _PHOTO_SIDE))
        return np.asarray(photo)
