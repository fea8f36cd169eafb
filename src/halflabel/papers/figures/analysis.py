"""What a loss or a trained model does, in numbers and pictures: score densities, histograms, gradients, landscape."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halflabel.errors import OwnHead, UserError
from halflabel.papers.figures.canvas import BLUE, GREY, literal, save_figure
from halflabel.report.labels import COLOURS
from halflabel.system.rng import uniform

if TYPE_CHECKING:
    import torch

    from halflabel.methods.base import Method
    from halflabel.models.heads import Model
    from halflabel.types import Batch

__all__ = [
    "Densities",
    "Histograms",
    "Landscape",
    "Regime",
    "draw_gradient_regimes",
    "draw_loss_landscape",
    "draw_probability_histograms",
    "draw_score_densities",
    "gradient_regime",
    "loss_landscape",
    "probability_histograms",
    "score_densities",
]

Floats = NDArray[np.float64]
LINES = {"present": COLOURS["present"], "absent": COLOURS["absent"], "unknown": GREY}
_BACKGROUND = 7  # a tag that keeps the random numbers of this file apart


class Densities(NamedTuple):
    """How scores of true positives and true negatives are spread, and how far apart they lie."""

    edges: Floats  # (bins + 1,)
    present: Floats  # (bins,) density over all classes; integrates to 1, NaN if there is none
    absent: Floats  # (bins,)
    distance: float  # between the two, over all classes
    per_class: Floats  # (C,) the same per class; NaN where one side is empty


class Histograms(NamedTuple):
    """Number of entries per bin of score, by what is known of them."""

    edges: Floats  # (bins + 1,)
    present: NDArray[np.int64]  # (bins,)
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]


class Regime(NamedTuple):
    """dL/dx of one entry against its score p, times the number of images, by what is known of the entry."""

    p: Floats  # (P,)
    present: Floats  # (P,)
    absent: Floats
    unknown: Floats


class Landscape(NamedTuple):
    """The loss of one batch on a slice through the weights: w + x·d₁ + y·d₂."""

    x: Floats  # (S,)
    y: Floats  # (S,)
    loss: Floats  # (S, S), rows over y


def score_densities(scores: ArrayLike, truth: ArrayLike, bins: int = 50) -> Densities:
    """Spread of scores of true positives and negatives, and the Wasserstein distance W₁ = ∫ |F⁺(s) − F⁻(s)| ds.

    scores (N, C) in [0, 1], NaN for unread images; truth (N, C) in {−1, 0, +1}, 0 = not known and left out. W₁ is 0 for
    equal spreads and 1 for perfect scores (Zhou 2022 compares methods by it).
    """
    scores, truth = _entries(scores, truth)
    present, absent = truth > 0, truth < 0
    edges = np.linspace(0, 1, bins + 1)
    return Densities(
        edges,
        _density(scores[present], edges),
        _density(scores[absent], edges),
        float(_wasserstein(scores.reshape(-1, 1), present.reshape(-1, 1), absent.reshape(-1, 1))[0]),
        _wasserstein(scores, present, absent),
    )


def probability_histograms(scores: ArrayLike, labels: ArrayLike, bins: int = 50) -> Histograms:
    """Entries per bin of score, split into known present, known absent and unknown (Wang 2023, figure 5).

    scores (N, C) in [0, 1], NaN for unread images; labels (N, C) in {−1, 0, +1}.
    """
    scores, labels = _entries(scores, labels)
    edges = np.linspace(0, 1, bins + 1)
    read = ~np.isnan(scores)
    counts = [np.histogram(scores[read & (labels == value)], edges)[0].astype(np.int64) for value in (1, -1, 0)]
    return Histograms(edges, *counts)


def gradient_regime(method: Method, *, epoch: int = 5, points: int = 99) -> Regime:
    """How hard a method pulls an entry of score p, when it is known present, known absent or unknown.

    Measured, not derived: whole steps of the method (relabelling, loss, terms) on fixed scores, epochs 1 to `epoch` of
    as many, the gradient taken in the last. Image i of three times `points` holds one entry of score p_i, in a class of
    its own; the others are unknown with low scores, as in sparse labels, so that what a method does to the most likely
    unknowns of a batch, or to frequent classes, shows as it would in training. Only for methods whose loss is charged
    per entry (ℓ⁺, ℓ⁻) and whose step asks only for scores: ranking losses have no such curve, and a step that works
    inside its own head has none on fixed scores. `method` must be fresh: it is planned and started here.
    """
    from halflabel.methods.parts.losses import Loss

    if type(method.loss).pair is Loss.pair:
        raise UserError(
            f"{type(method.loss).__name__} is a loss of rankings, not of entries", "choose methods charged per entry"
        )
    return _regime(method, epoch, points)


def loss_landscape(
    model: Model,
    method: Method,
    batch: Batch,
    *,
    epoch: int = 1,
    span: float = 1.0,
    steps: int = 21,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Landscape:
    """The loss of a batch around the weights, along two random directions (Li 2018).

    Each direction is Gaussian and filter-normalised: every filter (row of a weight of two or more dimensions) is scaled
    to the norm of the model's own filter; biases and normalisation weights stay. `model` and `method` are left as they
    are: copies are moved, in evaluation mode. Memory: three times the weights; `steps`² forward passes, of which
    `progress` is told (done, of how many).
    """
    import torch

    if steps < 2:
        raise UserError(f"a landscape of {steps} × {steps} points shows nothing", "give steps ≥ 2; 21 is a good start")
    moved, judged = copy.deepcopy(model).eval(), copy.deepcopy(method).eval()
    state = copy.deepcopy(judged.state_dict())
    weights = [weight for weight in moved.parameters() if weight.ndim >= 2]
    centre = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    first, second = ([_direction(weight, generator) for weight in centre] for _ in range(2))
    at = np.linspace(-span, span, steps)
    loss = np.empty((steps, steps))
    with torch.no_grad():
        for row, y in enumerate(at):
            for column, x in enumerate(at):
                for weight, middle, one, two in zip(weights, centre, first, second, strict=True):
                    weight.copy_(middle + float(x) * one + float(y) * two)
                judged.load_state_dict(state)  # what a step remembers must not reach the next point
                loss[row, column] = float(judged.step(moved, batch, epoch))
                if progress is not None:
                    progress(row * steps + column + 1, steps * steps)
    return Landscape(at, at, loss)


def draw_score_densities(
    found: Densities, path: Path, classes: Sequence[str], most: int = 40, caption: str = ""
) -> None:
    """The two densities over all classes, and the distance per class (the `most` smallest, where there are more)."""
    from matplotlib.figure import Figure

    judged = np.flatnonzero(~np.isnan(found.per_class))
    shown = judged[np.argsort(found.per_class[judged], kind="stable")][:most][::-1]
    figure = Figure(figsize=(10, max(3.6, 1 + 0.2 * len(shown))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for meaning, density in (("present", found.present), ("absent", found.absent)):
        left.stairs(density, found.edges, fill=True, alpha=0.45, color=LINES[meaning], label=f"truly {meaning}")
    left.set_yscale("symlog", linthresh=1)
    left.set_ylim(bottom=0)
    left.set_xlim(0, 1)
    left.set_xlabel("score")
    left.set_ylabel("density")
    left.legend(loc="upper center")
    left.set_title(f"all classes: Wasserstein distance {found.distance:.3f}", fontsize="medium")
    names = [literal(classes[c]) for c in shown]
    right.barh(np.arange(len(shown)), found.per_class[shown], color=BLUE)
    right.set_yticks(np.arange(len(shown)), names, fontsize="small")
    right.axvline(found.distance, color=GREY, lw=1)
    right.set_xlim(0, 1)
    right.set_xlabel("Wasserstein distance")
    which = f"the {len(shown)} smallest of {len(judged)} classes" if len(judged) > len(shown) else "per class"
    right.set_title(which, fontsize="medium")
    save_figure(figure, path, caption=caption)


def draw_probability_histograms(found: Mapping[str, Histograms], path: Path, caption: str = "") -> None:
    """A column per set of images: one histogram above the other for present, absent and unknown, on a log scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 4.6 * len(found), 6), layout="constrained")
    columns = figure.subplots(3, len(found), sharex=True, sharey="row", squeeze=False).T
    for panels, (title, counts) in zip(columns, found.items(), strict=True):
        for axes, meaning in zip(panels, ("present", "absent", "unknown"), strict=True):
            entries: NDArray[np.int64] = getattr(counts, meaning)
            axes.stairs(entries, counts.edges, fill=True, color=LINES[meaning])
            axes.set_yscale("symlog", linthresh=1)
            axes.set_xlim(0, 1)
            axes.set_title(f"{meaning}: {int(entries.sum()):,} entries", fontsize="medium")
        panels[0].set_title(f"{literal(title)}\n{panels[0].get_title()}", fontsize="medium")
        panels[-1].set_xlabel("score")
    for axes in columns[0]:  # the others share their scale
        axes.set_ylabel("entries")
        axes.set_ylim(bottom=0)
    save_figure(figure, path, caption=caption)


def draw_gradient_regimes(found: Mapping[str, Regime], path: Path, caption: str = "") -> None:
    """A panel per method: its three curves, scaled so that the largest pull is 1."""
    from matplotlib.figure import Figure

    if not found:
        raise UserError("no method to draw", "name methods whose loss is charged per entry, such as bce")
    figure = Figure(figsize=(1 + 3 * len(found), 3.4), layout="constrained")
    panels = list(figure.subplots(1, len(found), sharex=True, sharey=True, squeeze=False).flat)
    for axes, (name, regime) in zip(panels, found.items(), strict=True):
        curves = {"present": regime.present, "absent": regime.absent, "unknown": regime.unknown}
        largest = max(float(np.abs(curve).max()) for curve in curves.values()) or 1.0
        axes.axhline(0, color="#d5d8dc", lw=0.8)
        for meaning, curve in curves.items():
            style = {"lw": 2.2, "color": "#374151", "ls": ":"} if meaning == "unknown" else {"lw": 1.4}
            axes.plot(regime.p, curve / largest, label=meaning, **{"color": LINES[meaning], **style})
        axes.set_title(literal(name), fontsize="medium")
        axes.set_xlim(0, 1)
        axes.set_ylim(-1.1, 1.1)
        axes.tick_params(labelsize="small")
    figure.supxlabel("score p", fontsize="medium")
    figure.supylabel("dL/dx, largest = 1\n(below 0 the score is pushed up)", fontsize="medium")
    handles, meanings = panels[0].get_legend_handles_labels()
    figure.legend(handles, meanings, loc="outside upper center", ncols=3, frameon=False)
    save_figure(figure, path, caption=caption)


def draw_loss_landscape(found: Landscape, path: Path, caption: str = "") -> None:
    """Contours of the slice; the cross is the model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.subplots()
    shade = axes.contourf(found.x, found.y, found.loss, levels=24, cmap="viridis")
    axes.contour(found.x, found.y, found.loss, levels=12, colors="white", linewidths=0.5, alpha=0.6)
    axes.plot(0, 0, marker="+", color="white", ms=12, mew=2)
    axes.set_xlabel("first direction, in norms of the filters")
    axes.set_ylabel("second direction")
    axes.set_aspect("equal")
    axes.locator_params(nbins=5)
    figure.colorbar(shade, ax=axes, label="loss of the batch", shrink=0.85)
    save_figure(figure, path, caption=caption)


def _entries(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int8]]:
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.shape != labels.shape or scores.ndim != 2:
        raise UserError(
            f"scores have shape {scores.shape}, labels {labels.shape}", "give both as images × classes, in one order"
        )
    outside = (scores < 0) | (scores > 1)
    if outside.any():
        raise UserError(f"{scores[outside].flat[0]:g} is not a score", "give scores in [0, 1]: the sigmoid of logits")
    return scores, labels.astype(np.int8)


def _density(scores: Floats, edges: Floats) -> Floats:
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return np.full(len(edges) - 1, np.nan)
    return np.histogram(scores, edges, density=True)[0].astype(np.float64)


def _wasserstein(scores: Floats, present: NDArray[np.bool_], absent: NDArray[np.bool_]) -> Floats:
    """W₁ per column, exactly: both distribution functions are steps, constant between neighbouring scores."""
    read = ~np.isnan(scores)
    positive, negative = present & read, absent & read
    positives, negatives = positive.sum(axis=0), negative.sum(axis=0)
    weight = positive / np.maximum(positives, 1) - negative / np.maximum(negatives, 1)
    scores = np.where(read, scores, 1.0)  # of weight 0: anywhere will do
    order = np.argsort(scores, axis=0, kind="stable")
    difference = np.cumsum(np.take_along_axis(weight, order, axis=0), axis=0)[:-1]
    gaps = np.diff(np.take_along_axis(scores, order, axis=0), axis=0)
    distance: Floats = (np.abs(difference) * gaps).sum(axis=0)
    distance[(positives == 0) | (negatives == 0)] = np.nan
    return distance


class _Asked(OwnHead, AttributeError):
    """A step asked the head for something by name."""


def _regime(method: Method, epoch: int, points: int) -> Regime:
    import torch

    from halflabel.labels.table import LabelTable
    from halflabel.models.heads import Head, Model
    from halflabel.types import Batch, Output, Sweep

    p = (np.arange(points) + 0.5) / points
    at = np.arange(points)
    # Most entries score near 0, one in forty above a half: mean 3 %, like a class that is in few images.
    scores = 0.002 + 0.9 * uniform(0, _BACKGROUND, np.arange(3 * points)[:, None], at) ** 30
    labels = np.zeros((3 * points, points), np.int8)
    for block, value in enumerate((1, -1, 0)):
        scores[block * points + at, at] = p
        labels[block * points + at, at] = value
    logits = torch.from_numpy(np.log(scores / (1 - scores))).requires_grad_()
    features = torch.from_numpy(uniform(1, _BACKGROUND, np.arange(3 * points)[:, None], np.arange(8)))

    class Fixed(Head):
        def forward(self, view: torch.Tensor) -> Output:
            return Output(logits, features, logits[:, :, None, None])

        def __getattr__(self, name: str) -> Any:
            raise _Asked(f"the step uses {name!r} of its own head", "choose methods that need only scores")

    model = Model(None, Fixed())
    batch = Batch(torch.arange(len(labels)), (features,) * len(method.views), torch.from_numpy(labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what too few epochs mean for training is no news here
        method.plan(epoch)
    method.start(LabelTable.from_dense(labels))
    for number in range(1, epoch + 1):
        loss = method.step(model, batch, number)
        if number < epoch and method.relabel.wants_sweep(number):
            fixed, passes = logits.detach().float(), method.relabel.passes
            mean = None if passes is None else torch.sigmoid(fixed) if passes.of == "score" else fixed
            spread = None if mean is None else torch.zeros_like(mean)  # fixed scores do not change with dropout
            method.relabel.absorb(Sweep(fixed, features.float(), mean, spread), number)
    (gradient,) = torch.autograd.grad(loss, logits)
    curve = (gradient * len(labels)).numpy()
    present, absent, unknown = (curve[block * points + at, at].copy() for block in range(3))
    return Regime(p, present, absent, unknown)


def _direction(weight: torch.Tensor, generator: Any) -> torch.Tensor:
    import torch

    drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float32).to(weight)
    filters = tuple(range(1, weight.ndim))
    own, norm = (torch.linalg.vector_norm(one, dim=filters, keepdim=True) for one in (weight, drawn))
    scaled: torch.Tensor = drawn * own / norm
    return scaled
