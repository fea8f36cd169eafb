"""The papers' figures of a run: each as a picture, with the numbers behind it in a file beside it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.papers.figures import analysis
from halflabel.papers.figures.inputs import SAMPLE, Material, Progress, Skip
from halflabel.system.files import replacing, write_json
from halflabel.system.rng import bits, hash_names

if TYPE_CHECKING:
    import torch

    from halflabel.models.heads import Model
    from halflabel.runs.folder import RunFolder

__all__ = ["FIGURES", "Drawn", "draw_figures"]

FIGURES = ("densities", "histograms", "regimes", "landscape", "maps", "neighbours")
PAPERS = {
    "densities": "After Zhou 2022 (Acknowledging the Unknown), further analysis: how far the scores of true positives "
    "and true negatives lie apart.",
    "histograms": "After Wang 2023 (saliency and consistency regularisation), figures 1 and 5: how many entries have "
    "which score.",
    "regimes": "After Zhou 2022 (Acknowledging the Unknown), gradient regimes: how hard a loss pulls a score p.",
    "landscape": "After Zhou 2022 (Acknowledging the Unknown), loss landscapes; directions as in Li 2018.",
    "maps": "After Wang 2023 (saliency and consistency regularisation), figure 2: heat maps of equation 1.",
    "labels": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of labels.",
    "images": "After Huynh 2020 (interactive multi-label CNN learning), figure 1: the learned similarity of images.",
}
ROWS = 6  # photos in a figure
POINTS = 21  # of a landscape, along each direction
POINTS_DEEP = 11  # where each of them takes a pass through the backbone
BATCH, BATCH_DEEP = 64, 32  # images whose loss a landscape shows


class Drawn(NamedTuple):
    """A figure with its files and whose it is; or, without files, why there is none."""

    name: str
    files: tuple[Path, ...]
    said: str


def draw_figures(
    run: RunFolder,
    out: Path,
    *,
    photos: Path | None = None,
    only: Sequence[str] = FIGURES,
    against: RunFolder | None = None,
    scan: int = 2000,
    progress: Progress | None = None,
) -> list[Drawn]:
    """Draw the chosen figures of a finished run into a folder; those it cannot have are said, with the reason.

    `photos`: the folder of the run's images, without which only scores that the run keeps can be drawn. `against`:
    another run, whose maps stand beside. At most `scan` training images are scored; `progress` is told how many of how
    many. Beside NAME.png lies NAME.json or NAME.csv. Files hold names of images, but no folders.
    """
    for name in only:
        if name not in FIGURES:
            raise UserError(f"no figure is called {name!r}", f"choose from {', '.join(FIGURES)}")
    if against is not None and (photos is None or "maps" not in only):
        raise UserError(
            "another run is compared by its maps alone", "name the photos, and leave maps among the figures"
        )
    if photos is not None and not photos.is_dir():
        raise UserError(f"{photos} is not a folder", "name the folder with the images")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    run.check_finished()
    if against is not None:
        against.check_finished()
    asked = _Asked(Material(run, photos, scan=scan, progress=progress), out, against)
    drawn = []
    for name in FIGURES:
        if name in only:
            drawn += _DRAW[name](asked)
    return drawn


def _attempt(name: str, paper: str, draw: Callable[[], tuple[Path, ...]]) -> Drawn:
    """The figure, or the reason why there is none."""
    try:
        return Drawn(name, draw(), PAPERS[paper])
    except Skip as reason:
        return Drawn(name, (), str(reason))


class _Asked(NamedTuple):
    """What to draw from, the folder to draw into, and the run to compare with."""

    of: Material
    out: Path
    against: RunFolder | None

    def path(self, name: str) -> Path:
        return self.out / name

    def write_csv(self, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
        path = self.path(name)
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)
        return path

    def write_json(self, name: str, paper: str, content: dict[str, Any]) -> Path:
        write_json(self.path(name), {"figure": PAPERS[paper], **content})
        return self.path(name)


def _densities(asked: _Asked) -> list[Drawn]:
    def draw() -> tuple[Path, ...]:
        measured, truth, how = asked.of.held_out()
        if not ((truth > 0).any() and (truth < 0).any()):
            raise Skip(
                "of the held-out images either nothing present or nothing absent is known: train with --truth LABELS"
            )
        found, classes = analysis.score_densities(measured.scores, truth), list(asked.of.facts.table.classes)
        picture = asked.path("densities.png")
        on = f"{len(measured.images)} held-out images, {how}"
        analysis.draw_score_densities(found, picture, classes, caption=f"{PAPERS['densities']}\n{on}.")
        numbers = {"on": on, "wasserstein": found.distance, **found._asdict()}
        numbers["per_class"] = dict(zip(classes, found.per_class.tolist(), strict=True))
        del numbers["distance"]
        return picture, asked.write_json("densities.json", "densities", numbers)

    return [_attempt("densities", "densities", draw)]


def _histograms(asked: _Asked) -> list[Drawn]:
    def draw() -> tuple[Path, ...]:
        found: dict[str, analysis.Histograms] = {}
        if asked.of.photos is not None:
            scores = asked.of.predictor.platt.scores(asked.of.sweep.logits)
            labels = asked.of.facts.table.rows(asked.of.facts.training[asked.of.sample])
            title = f"{len(labels)} training images, by their known labels"
            found[title] = analysis.probability_histograms(scores.numpy(), labels)
        if asked.of.facts.measured is not None:
            measured, truth, how = asked.of.held_out()
            title = f"{len(measured.images)} held-out images, {how}"
            found[title] = analysis.probability_histograms(measured.scores, truth)
        if not found:
            raise Skip("no images were held out, and those trained on are not there: name the photos after the run")
        picture = asked.path("histograms.png")
        analysis.draw_probability_histograms(found, picture, caption=PAPERS["histograms"])
        rows = [
            (title, low, high, *entries)
            for title, one in found.items()
            for low, high, *entries in zip(
                *(edges.round(4).tolist() for edges in (one.edges[:-1], one.edges[1:])),
                *(counts.tolist() for counts in (one.present, one.absent, one.unknown)),
                strict=True,
            )
        ]
        header = ("images", "score from", "score to", "present", "absent", "unknown")
        return picture, asked.write_csv("histograms.csv", header, rows)

    return [_attempt("histograms", "histograms", draw)]


def _regimes(asked: _Asked) -> list[Drawn]:
    def draw() -> tuple[Path, ...]:
        from halflabel.methods.base import recipe
        from halflabel.training.config import Config

        config = Config.from_dict(asked.of.facts.config)
        epochs = config.settings.epochs
        try:
            own = analysis.gradient_regime(recipe(config.method).make(**config.options), epoch=epochs)
        except UserError as error:
            raise Skip(f"{config.method} has no gradient per score alone: {error.message}") from None
        found = {f"{config.method} (this run)": own}
        for name in ("an", "em"):
            if name != config.method:
                found[name] = analysis.gradient_regime(recipe(name).make(), epoch=epochs)
        picture = asked.path("regimes.png")
        said = f"{PAPERS['regimes']}\nMeasured in epoch {epochs} of {epochs} on made-up scores; beside it AN and EM."
        analysis.draw_gradient_regimes(found, picture, caption=said)
        rows = [
            (name, *(f"{value:.6g}" for value in values))
            for name, regime in found.items()
            for values in zip(*regime, strict=True)
        ]
        return picture, asked.write_csv("regimes.csv", ("method", "p", "present", "absent", "unknown"), rows)

    return [_attempt("regimes", "regimes", draw)]


def _landscape(asked: _Asked) -> list[Drawn]:
    def draw() -> tuple[Path, ...]:
        import torch

        from halflabel.data.sources import Part
        from halflabel.types import Batch

        source = asked.of.source()
        method, model = asked.of.method
        used, config = asked.of.predictor, asked.of.predictor.config
        frozen = config.tune == "head"
        at = asked.of.sample[np.argsort(bits(SAMPLE, asked.of.sample), kind="stable")][
            : BATCH if frozen else BATCH_DEEP
        ]
        # A frozen backbone was trained on plain views of the images, but for strong ones.
        views = ["plain" if frozen and name == "weak" else name for name in method.views]
        part = Part(source, asked.of.facts.training[np.sort(at)])
        fetched = list(part.fetch([np.arange(len(at))], views, epoch=config.settings.epochs))
        read = fetched[0].images
        if not len(read):
            raise UserError("not one image could be read", "check the image folder")
        shown = tuple(view.to(used.device) for view in fetched[0].views)
        if frozen:
            with torch.no_grad():
                shown = tuple(_features(used.model, view) for view in shown)
        places = np.sort(at)[read]
        labels = torch.from_numpy(asked.of.facts.table.rows(asked.of.facts.training[places]))
        batch = Batch(torch.from_numpy(places).to(used.device), shown, labels.to(used.device))
        try:
            found = analysis.loss_landscape(
                model,
                method,
                batch,
                epoch=config.settings.epochs,
                steps=POINTS if frozen else POINTS_DEEP,
                progress=asked.of.progress,
            )
        except UserError as error:
            raise Skip(f"{config.method} has no loss of one batch alone: {error.message}") from None
        picture = asked.path("landscape.png")
        what = "weights of the head" if frozen else "weights of the network"
        on = f"{config.method}, {len(read)} training images; what is moved: the {what}"
        analysis.draw_loss_landscape(found, picture, caption=f"{PAPERS['landscape']}\n{on}.")
        return picture, asked.write_json("landscape.json", "landscape", {"on": on, **found._asdict()})

    return [_attempt("landscape", "landscape", draw)]


def _features(model: Model, view: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([model.features(view[first : first + 16]) for first in range(0, len(view), 16)])


def _maps(asked: _Asked) -> list[Drawn]:
    def draw() -> tuple[Path, ...]:
        from halflabel.models import class_maps as maps
        from halflabel.runs.predictor import Predictor

        asked.of.source()
        picks = _pick(asked)
        photos = {number: photo for number, _ in picks if (photo := asked.of.read(number)) is not None}
        picks = [(number, column) for number, column in picks if number in photos]
        if not picks:
            raise Skip("none of the photos with a known positive can be read as a file")
        classes = asked.of.facts.table.classes
        models = {_title(asked.of.run): asked.of.predictor}
        if asked.against is not None:
            title = _title(asked.against)
            models[title if title not in models else f"{title} (2)"] = Predictor(asked.against)
        hot, told = {}, []
        for title, used in models.items():
            own = used.classes.index([classes[column] for _, column in picks])
            if (own < 0).any():
                missing = classes[picks[int(np.flatnonzero(own < 0)[0])][1]]
                raise UserError(f"{title} knows no class {missing!r}", "compare runs with the same classes")
            numbers = np.array([number for number, _ in picks])
            view, logits = asked.of.logits(used, numbers)
            try:
                kinds, which = np.unique(own, return_inverse=True)
                found = maps.activations(used.model, view, kinds.tolist())[np.arange(len(own)), which]
            except UserError as error:
                raise Skip(f"{title}: {error.message}") from None
            shapes = [photos[number].shape[:2] for number in numbers]
            boxes = [maps.seen(used.views["plain"], *shape) for shape in shapes]
            hot[title] = [maps.placed(*one) for one in zip(found, shapes, boxes, strict=True)]
            told += [
                {
                    "run": title,
                    "image": asked.of.facts.table.images[number],
                    "class": classes[column],
                    "logit": float(said[place]),
                    "map": one,
                }
                for (number, column), one, said, place in zip(picks, found, logits, own, strict=True)
            ]
        picture = asked.path("maps.png")
        sides = [classes[column] for _, column in picks]
        said = (
            f"{PAPERS['maps']}\nOne known positive of each class, drawn at random; each map on its own scale, "
            "and no colour where no place speaks for the class."
        )
        maps.draw_activations([photos[number] for number, _ in picks], hot, sides, picture, said)
        return picture, asked.write_json("maps.json", "maps", {"maps": told})

    return [_attempt("maps", "maps", draw)]


def _pick(asked: _Asked) -> list[tuple[int, int]]:
    """Image numbers and classes: of the classes with most known positives one image each, held-out ones first."""
    table, measured = asked.of.facts.table, asked.of.facts.measured
    held_out = measured.images if measured is not None else np.zeros(0, np.int64)
    frequent = np.argsort(-table.stats().positives, kind="stable")
    found: dict[int, int] = {}  # each image once
    for numbers in (held_out, asked.of.facts.training):
        numbers = numbers[np.argsort(bits(SAMPLE, hash_names(table.images.take(numbers).array)), kind="stable")]
        present = table.rows(numbers[: 50 * ROWS]) > 0
        for column in frequent.tolist():
            fresh = [int(n) for n in numbers[: 50 * ROWS][present[:, column]] if int(n) not in found]
            if len(found) < ROWS and fresh and column not in found.values():
                found[fresh[0]] = column
    if not found:
        raise Skip("not one image is known to show a class")
    return list(found.items())


def _title(run: RunFolder) -> str:
    return run.folder.resolve().name


def _neighbours(asked: _Asked) -> list[Drawn]:
    from halflabel.methods.imcl import Interactive
    from halflabel.training.config import Config

    name = Config.from_dict(asked.of.facts.config).method

    def learned() -> Interactive:
        method, _ = asked.of.method if name == "imcl" else (None, None)
        if not isinstance(method, Interactive):
            raise Skip(f"{name} learns no similarities: imcl does")
        return method

    def labels() -> tuple[Path, ...]:
        from halflabel.papers.figures.neighbours import draw_label_neighbours, strongest_edges

        method, classes = learned(), asked.of.facts.table.classes
        after = method.graph.edges()
        before = after._replace(weights=method.start_weights.cpu().numpy().astype(np.float64))
        picture = asked.path("label_neighbours.png")
        try:
            draw_label_neighbours(before, after, classes, picture, caption=PAPERS["labels"])
        except UserError as error:
            raise Skip(error.message) from None
        rows = strongest_edges(before, after, classes, len(after.rows))
        header = ("label", "inferred from", "weight", "weight at the start")
        return picture, asked.write_csv("label_neighbours.csv", header, rows)

    def images() -> tuple[Path, ...]:
        import torch

        from halflabel.papers.figures.neighbours import draw_image_neighbours, spread_queries

        method = learned()
        asked.of.source()
        numbers = asked.of.facts.training[asked.of.sample]
        known = torch.from_numpy(asked.of.facts.table.rows(numbers))
        groups = None if method.groups is None else method.groups[torch.from_numpy(asked.of.sample)]
        similar = method.neighbours(asked.of.sweep.features, asked.of.sweep.logits, known, groups)
        try:
            queries = spread_queries(similar, ROWS)
        except UserError as error:
            raise Skip(error.message) from None
        index = similar.index.cpu()
        shown = sorted({*queries, *(i for i in index[queries].flatten().tolist() if i >= 0)})
        photos = {row: photo for row in shown if (photo := asked.of.read(int(numbers[row]))) is not None}
        titles = {row: _known(asked, known[row].numpy()) for row in shown}
        picture = asked.path("image_neighbours.png")
        said = (
            f"{PAPERS['images']}\nAmong {len(numbers)} training images; above each, the classes known to be there; "
            "c weighs labels, c̄ features."
        )
        draw_image_neighbours(photos, similar, queries, titles, picture, said)
        names, weights = asked.of.facts.table.images, [part.cpu() for part in similar.weights]
        rows = [
            (names[int(numbers[row])], names[int(numbers[other])], *(f"{float(w[row, place]):.6g}" for w in weights))
            for row in range(len(index))
            for place, other in enumerate(index[row].tolist())
            if other >= 0
        ]
        return picture, asked.write_csv("image_neighbours.csv", ("image", "neighbour", "c", "c̄"), rows)

    if name != "imcl":
        return [_attempt("neighbours", "labels", labels)]
    return [_attempt("label neighbours", "labels", labels), _attempt("image neighbours", "images", images)]


def _known(asked: _Asked, labels: NDArray[np.int8]) -> str:
    """The classes that are known to be there, in words."""
    return ", ".join(asked.of.facts.table.classes[int(c)] for c in np.flatnonzero(labels > 0)) or "none known"


_DRAW: dict[str, Callable[[_Asked], list[Drawn]]] = {
    "densities": _densities,
    "histograms": _histograms,
    "regimes": _regimes,
    "landscape": _landscape,
    "maps": _maps,
    "neighbours": _neighbours,
}
