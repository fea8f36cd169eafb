"""Galleries of photos on a run's page: labels that are likely missing, and labels that are likely wrong.

Entries are chosen by score; a person has to decide whether the model or the label is wrong.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.report.layout import section
from halflabel.report.run_facts import RunFacts
from halflabel.system.format import probability, shorten
from halflabel.system.html import Html, count, el
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits, hash_names

if TYPE_CHECKING:
    import torch

    from halflabel.data.sources import Images
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.predictor import Predictor

__all__ = [
    "GalleryEntry",
    "GalleryScores",
    "contradicted",
    "galleries",
    "missing_positives",
    "no_galleries",
    "score_images",
]

TILES = 12  # photos per gallery
PHOTO_SIDE = 200  # pixels of a photo's longer side
PHOTO_BYTES = 16_000  # limit of one photo
MAP_SIDE = 28  # pixels of the class map over a photo; the browser scales it up smoothly
_MAP_COLOUR = (255, 64, 0)
_SAMPLE = 0x72657074  # random stream: sample of the training images to score
_STATE_TEXT = {1: "labelled present", -1: "labelled absent", 0: "unknown"}
_STATE_CLASS = {1: "present", -1: "absent", 0: "unknown"}


class GalleryEntry(NamedTuple):
    """An entry to show: the row of its image in the scores, and its class."""

    row: int
    column: int


class GalleryScores(NamedTuple):
    """Scores of M images, held-out images first."""

    images: NDArray[np.int64]  # (M,) indices in the label table
    scores: NDArray[np.float32]  # (M, C), NaN for unread images
    labels: NDArray[np.int8]  # (M, C)
    held_out: int  # number of held-out images


def missing_positives(
    scores: NDArray[Any], labels: NDArray[Any], thresholds: NDArray[Any], most: int = TILES
) -> list[GalleryEntry]:
    """Return the entries not known to be present with the highest scores at or above their threshold, one per image.

    No class takes more than a quarter of the tiles while other classes have entries.
    scores, labels (M, C), thresholds (C,).
    """
    likely = (labels <= 0) & (scores >= thresholds)
    return _vary_classes(np.where(likely, scores, -np.inf), most)


def contradicted(
    scores: NDArray[Any],
    labels: NDArray[Any],
    thresholds: NDArray[Any],
    most: int = TILES,
    shown: Sequence[GalleryEntry] = (),
) -> list[GalleryEntry]:
    """Return known entries on the wrong side of their threshold, least probable label first.

    One per image, classes varied as in `missing_positives`; entries in `shown` are left out.
    """
    wrong = np.where(labels > 0, scores < thresholds, scores >= thresholds) & (labels != 0) & ~np.isnan(scores)
    for entry in shown:
        wrong[entry.row, entry.column] = False
    doubt = np.where(labels > 0, 1 - scores, scores)
    return _vary_classes(np.where(wrong, doubt, -np.inf), most)


def _vary_classes(rank: NDArray[Any], most: int) -> list[GalleryEntry]:
    """Return the images with the highest rank (M, C), each with its best class; −∞ is never chosen."""
    if not rank.size:
        return []
    column = rank.argmax(axis=1)
    best = rank[np.arange(len(rank)), column]
    order = [int(row) for row in np.argsort(-best, kind="stable") if best[row] > -np.inf]
    quota = max(2, most // 4)
    per_class: dict[int, int] = {}
    first: list[int] = []
    rest: list[int] = []
    for row in order:
        if len(first) == most:
            break
        c = int(column[row])
        per_class[c] = per_class.get(c, 0) + 1
        (first if per_class[c] <= quota else rest).append(row)
    chosen = set((first + rest)[:most])
    return [GalleryEntry(row, int(column[row])) for row in order if row in chosen]


def score_images(
    facts: RunFacts, predictor: Predictor, source: Images, most: int, reporter: Reporter = SILENT
) -> GalleryScores:
    """Return images with the scores in the run, held-out or out-of-fold, and at most `most` others, scored now.

    Of more training images a random sample is scored, which depends only on the image names.
    """
    from halflabel.data.sources import Subset

    training = facts.training
    if facts.held_out is not None:
        training = np.setdiff1d(training, facts.held_out.images)
    if len(training) > most:
        order = np.argsort(bits(_SAMPLE, hash_names(facts.table.images.take(training).array)), kind="stable")
        training = np.sort(training[order[:most]])
    images = np.zeros(0, np.int64)
    scores = np.zeros((0, len(facts.table.classes)), np.float32)
    held_out = 0
    if facts.held_out is not None:
        images, scores = facts.held_out.images, facts.held_out.scores
        held_out = len(images)
    if len(training):
        fresh = predictor.scores(Subset(source, training), reporter).numpy()
        images, scores = np.concatenate([images, training]), np.concatenate([scores, fresh])
    return GalleryScores(images, scores, facts.table.rows(images), held_out)


def galleries(
    facts: RunFacts,
    run: RunFolder,
    folder: Path,
    *,
    scan: int,
    tiles: int = TILES,
    reporter: Reporter = SILENT,
) -> Html:
    """Return two galleries with photos of a folder; at most `scan` training images are scored for them."""
    from halflabel.data.sources import open_images
    from halflabel.runs.predictor import Predictor

    predictor = Predictor.from_run(run)
    source = open_images(facts.table.images, folder, predictor.views, workers=predictor.config.workers, max_bad=1.0)
    scored = score_images(facts, predictor, source, scan, reporter)
    thresholds = predictor.thresholds.numpy()
    missing = missing_positives(scored.scores, scored.labels, thresholds, tiles)
    wrong = contradicted(scored.scores, scored.labels, thresholds, tiles, missing)
    tiles_of = _TileMaker(facts, predictor, source, scored)
    trained_on = len(scored.images) - scored.held_out
    on = (
        f"Chosen by score from {count(scored.held_out)} held-out images, with the scores of the run, and "
        f"{count(trained_on)} of {count(len(facts.training))} training images, scored for this page. A model has seen "
        "the labels of its training images and rarely contradicts them: each photo is marked as one or the other."
        if scored.held_out < len(facts.table)
        else f"Chosen by score from {count(scored.held_out)} images, each scored by a model without its labels."
    )
    return section(
        "photos",
        "Photos to look at",
        tiles_of.gallery(
            "missing",
            "Likely missing positives",
            "Not known to be present, yet scored at or above the threshold of the class; highest score first. "
            "If the class is in the photo, the label is missing.",
            missing,
        ),
        tiles_of.gallery(
            "wrong",
            "Likely wrong labels",
            "Labelled present but scored below the threshold of the class, or labelled absent but not below it; least "
            "probable label first. Either the label or the model may be wrong. Entries shown above are left out.",
            wrong,
        ),
        on=on,
    )


def no_galleries() -> Html:
    """Return the section without photos: how to get galleries."""
    hint = el("code", "halflabel report RUN --images PHOTOS")
    line = el("p", "Galleries of likely missing and likely wrong labels need the photos. Get them with ", hint, ".")
    return section("photos", "Photos to look at", line)


class _TileMaker:
    """Makes gallery tiles: reads a photo, shrinks it, and overlays the class map."""

    def __init__(self, facts: RunFacts, predictor: Predictor, source: Images, scored: GalleryScores) -> None:
        self.facts, self.predictor, self.source, self.scored = facts, predictor, source, scored

    def gallery(self, name: str, title: str, caption: str, entries: Sequence[GalleryEntry]) -> Html | None:
        tiles = [tile for tile in map(self._tile, entries) if tile is not None]
        heading = el("h3", title)
        if not entries:
            return None
        if not tiles:
            why = "None of the photos could be read."
            return el("div", heading, el("p", caption, class_="muted"), el("p", why, class_="none"), id=name)
        switch: list[Html] = []
        if any('class="map"' in tile for tile in tiles):
            switch = [
                el("input", type="checkbox", id=f"{name}-maps", checked=True, class_="switch"),
                el("label", "Show where the model sees the class; colours are scaled per photo", for_=f"{name}-maps"),
            ]
        return el("div", heading, el("p", caption, class_="muted"), *switch, el("div", *tiles, class_="tiles"), id=name)

    def _tile(self, entry: GalleryEntry) -> Html | None:
        import torch

        from halflabel.data.decode import BadImage, read_image
        from halflabel.models.class_maps import visible_box

        number = int(self.scored.images[entry.row])
        try:
            image = read_image(self.source.paths[number])
        except BadImage:
            return None
        height, width = int(image.shape[1]), int(image.shape[2])
        scale = min(1.0, PHOTO_SIDE / max(height, width))
        tile_width, tile_height = max(1, round(width * scale)), max(1, round(height * scale))
        photo = el("image", href=_jpeg(image, tile_width, tile_height), width=tile_width, height=tile_height)
        view = self.predictor.views["plain"]
        class_map = self._class_map(torch.as_tensor(view(image, 0)), entry.column)
        overlay = None
        if class_map is not None:
            left, top, right, bottom = visible_box(view, height, width)
            box = {
                "x": round(left * tile_width, 1),
                "y": round(top * tile_height, 1),
                "width": round((right - left) * tile_width, 1),
                "height": round((bottom - top) * tile_height, 1),
            }
            overlay = el("image", href=class_map, **box, preserveAspectRatio="none", class_="map")
        name, p = self.facts.table.classes[entry.column], float(self.scored.scores[entry.row, entry.column])
        label = int(self.scored.labels[entry.row, entry.column])
        threshold = float(self.predictor.thresholds[entry.column])
        file = self.facts.table.images[number]
        part = "held\u2011out" if entry.row < self.scored.held_out else "training"
        alt = f"Photo {shorten(file, 60)}: {shorten(name, 60)} scored {probability(p)}, {_STATE_TEXT[label]}"
        svg = el(
            "svg", photo, overlay, viewBox=f"0 0 {tile_width} {tile_height}", role="img", aria_label=alt, class_="photo"
        )
        caption = [
            el("div", el("b", shorten(name, 28), class_="name", title=shorten(name, 200))),
            el("div", f"score {probability(p)}"),
            el("div", f"threshold {probability(threshold)}", class_="file"),
            el(
                "div",
                el("span", _STATE_TEXT[label], class_=f"tag {_STATE_CLASS[label]}"),
                " ",
                el("span", part, class_="tag part"),
            ),
            el("div", el("span", shorten(file, 30), class_="name", title=shorten(file, 200)), class_="file"),
        ]
        return el("figure", svg, el("figcaption", *caption), class_="tile")

    def _class_map(self, view: torch.Tensor, column: int) -> str | None:
        """Return the class map as a data URL of a small transparent image; None where the head has none."""
        from halflabel.models.class_maps import compute_class_maps, heat_map

        try:
            maps = compute_class_maps(self.predictor.model, view[None], [column])
        except UserError:
            return None
        return _png(heat_map(maps, (MAP_SIDE, MAP_SIDE))[0, 0])


def _jpeg(image: torch.Tensor, width: int, height: int) -> str:
    """Return a photo as a data URL of a small JPEG without metadata, of at most PHOTO_BYTES."""
    from PIL import Image

    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    for quality in (78, 60, 40, 20, 5):
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality, optimize=True)
        if stream.tell() <= PHOTO_BYTES:
            break
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _png(hot: NDArray[Any]) -> str:
    """Return a map (H, W) in 0 … 1 as a data URL of a one-colour PNG whose opacity follows the map."""
    from PIL import Image

    # 16 steps in a palette take a third of the bytes of full colour.
    picture = Image.fromarray(np.rint(15 * hot).astype(np.uint8), mode="P")
    picture.putpalette(_MAP_COLOUR * 16)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True, transparency=bytes(round(150 * step / 15) for step in range(16)))
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
