"""The command `halflabel figures`: each figure as a PNG, with the numbers behind it in a file next to it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
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
from halflabel.fitting.config import Config
from halflabel.images.decode import BadImage, read_image
from halflabel.images.sources import Images, Subset, open_images
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, seeded
from halflabel.methods.imcl import Interactive
from halflabel.methods.parts.label_graph import Edges
from halflabel.methods.parts.matching_pursuit import Similar
from halflabel.report.curves import check_scores
from halflabel.report.run_facts import HeldOutResults, read_run_facts
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.system.files import atomic_write, write_csv, write_json
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits, hash_names
from halflabel.types import Sweep

BLUE, ORANGE, GREY = "#2b6cb0", "#d97706", "#9ca3af"


def literal(name: str) -> str:
    """Escape the name of a class, a method or a file: matplotlib reads text between two dollar signs as a formula.

    >>> print(literal("a$^$b"))
    a\\$^\\$b
    """
    return name.replace("$", r"\$")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, *, caption: str = "") -> None:
    """Write a figure as PNG atomically, with the caption below it, without touching matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    options: dict[str, Any] = {}
    if caption:
        figure.text(0.01, -0.01, literal(caption), va="top", fontsize="small", color="#4b5563")
        options = {"bbox_inches": "tight", "pad_inches": 0.12}
    with atomic_write(path) as temporary, warnings.catch_warnings():
        # A name may contain letters that the font lacks. Matplotlib draws boxes for them; the user cannot change that.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(temporary, format="png", dpi=130, **options)


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
    index = similar.index.cpu()
    weights = [part.cpu() for part in similar.weights]
    columns = 1 + max(int((index[list(queries)] >= 0).sum(1).max()), 1)
    figure = new_figure(1.9 * columns, 2.05 * len(queries))
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
    edges = strongest_edges(before, after, classes, n)[::-1]
    if not edges:
        raise FigureUnavailable("no label is connected to another one")
    figure = new_figure(6.5, 1.4 + 0.24 * len(edges))
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


Floats = NDArray[np.float64]
_COLOURS = {"present": "#2a9d5c", "absent": "#d1495b"}


class ScoreDensities(NamedTuple):
    """Score densities of true positives and true negatives, and the distance between the two."""

    edges: Floats  # (bins + 1,)
    present: Floats  # (bins,) density over all classes; integrates to 1, NaN without any positive
    absent: Floats  # (bins,)
    distance: float  # Wasserstein distance over all classes
    per_class: Floats  # (C,) Wasserstein distance per class; NaN for classes without positives or without negatives


def score_densities(scores: ArrayLike, truth: ArrayLike, bins: int = 50) -> ScoreDensities:
    """Score densities of positives and negatives, and their Wasserstein distance W₁ = ∫ |F⁺(s) − F⁻(s)| ds.

    scores (N, C) in [0, 1], NaN for unreadable images; truth (N, C) in {−1, 0, +1}, entries of value 0 are ignored.
    W₁ is 0 for equal distributions and 1 for perfect scores. Zhou 2022 compares methods by it.
    """
    scores, truth = check_scores(scores, truth)
    is_readable = ~np.isnan(scores)
    present, absent = (truth > 0) & is_readable, (truth < 0) & is_readable
    edges = np.linspace(0, 1, bins + 1)
    return ScoreDensities(
        edges,
        _density(scores[present], edges),
        _density(scores[absent], edges),
        _distance(scores[present], scores[absent]),
        np.array([_distance(x[on], x[off]) for x, on, off in zip(scores.T, present.T, absent.T, strict=True)]),
    )


def draw_score_densities(
    densities: ScoreDensities, path: Path, classes: Sequence[str], most: int = 40, caption: str = ""
) -> None:
    """Draw the two densities over all classes, and bars of the `most` smallest distances per class."""
    measured = np.flatnonzero(~np.isnan(densities.per_class))
    shown = measured[np.argsort(densities.per_class[measured], kind="stable")][:most][::-1]
    figure = new_figure(10, max(3.6, 1 + 0.2 * len(shown)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for meaning, density in (("present", densities.present), ("absent", densities.absent)):
        left.stairs(density, densities.edges, fill=True, alpha=0.45, color=_COLOURS[meaning], label=f"truly {meaning}")
    left.set_yscale("symlog", linthresh=1)
    left.set_ylim(bottom=0)
    left.set_xlim(0, 1)
    left.set_xlabel("score")
    left.set_ylabel("density")
    left.legend(loc="upper center")
    left.set_title(f"all classes: Wasserstein distance {densities.distance:.3f}", fontsize="medium")
    names = [literal(classes[c]) for c in shown]
    right.barh(np.arange(len(shown)), densities.per_class[shown], color=BLUE)
    right.set_yticks(np.arange(len(shown)), names, fontsize="small")
    right.axvline(densities.distance, color=GREY, lw=1)
    right.set_xlim(0, 1)
    right.set_xlabel("Wasserstein distance")
    title = f"the {len(shown)} smallest of {len(measured)} classes" if len(measured) > len(shown) else "per class"
    right.set_title(title, fontsize="medium")
    save_figure(figure, path, caption=caption)


def _density(scores: Floats, edges: Floats) -> Floats:
    if not len(scores):
        return np.full(len(edges) - 1, np.nan)
    return np.histogram(scores, edges, density=True)[0].astype(np.float64)


def _distance(present: Floats, absent: Floats) -> float:
    """W₁ of two samples; NaN if one of them is empty."""
    return float(wasserstein_distance(present, absent)) if len(present) and len(absent) else np.nan


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
    densities = score_densities(measured.scores, truth)
    classes = list(inputs.facts.table.classes)
    picture = out / "densities.png"
    images = f"{len(measured.images)} held-out images, {labels_from}"
    caption = f"{SOURCES['densities']}\n{images}."
    draw_score_densities(densities, picture, classes, caption=caption)
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


PHOTO_SIDE = 320  # pixels of a photo's longer side
_SAMPLE_STREAM = 0x66696775  # random stream that orders the images


class FigureUnavailable(Exception):
    """This run cannot have this figure; the message is the reason."""


class FigureInputs:
    """A finished run. What takes long is loaded on first use and kept.

    At most `scan` training images are scored. `photos` is the image folder; without it there are no photos, no
    features, and no scores except those of held-out images.
    """

    def __init__(self, run: RunFolder, photos: Path | None, *, scan: int, reporter: Reporter = SILENT) -> None:
        self.run, self.photos, self.scan, self.reporter = run, photos, scan, reporter
        self.facts = read_run_facts(run)

    @cached_property
    def predictor(self) -> Model:
        return Model.open(self.run)

    @cached_property
    def truth(self) -> Table | None:
        """The labels of `train --truth`, in the image and class order of the run's own labels."""
        truth, table = self.run.read_truth(), self.facts.table
        if truth is None:
            return None
        return truth.subset(truth.images.index(table.images.array), truth.classes.index(table.classes.array))

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
        part = Subset(self.source, self.facts.training[self.sample])
        predictor = self.predictor
        return score_source(
            predictor.network, part, device=predictor.device, mirror=predictor.config.mirror, reporter=self.reporter
        )

    @cached_property
    def method(self) -> Method:
        """The method with the state of the last checkpoint."""
        config = self.predictor.config
        newest = checkpoint.load_newest(self.run.checkpoints / config.tune)
        if newest is None:
            raise FigureUnavailable("what the method has learned is in the run's checkpoints, and the run has none")
        method = seeded(config.seed, lambda: recipe(config.method).make(**config.options))
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
        photo.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
        return np.asarray(photo)

    def held_out(self) -> tuple[HeldOutResults, NDArray[np.int8], str]:
        """The measurements on held-out images, their labels (H, C), and in words where these labels come from."""
        measured = self.facts.held_out
        if measured is None:
            raise FigureUnavailable("no images were held out: train with ‹held_out=0.2›")
        if self.truth is not None:
            return measured, self.truth.rows(measured.images), "by the hidden truth"
        return measured, measured.labels, "by their known labels"
