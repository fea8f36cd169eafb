"""Galleries of photos to look at: labels that are likely missing, labels that are likely wrong, and hard images.

Only entries are chosen here by score; whether the model or the label is wrong is for a person to say.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.report.layout import section
from halflabel.report.run_facts import Facts
from halflabel.system.html import Html, count, decimal, el, score, short
from halflabel.system.rng import bits, hash_names

if TYPE_CHECKING:
    import torch

    from halflabel.data.sources import Images
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.predictor import Predictor

__all__ = [
    "Pick",
    "Scored",
    "contradicted",
    "galleries",
    "hardest",
    "missing_positives",
    "no_galleries",
    "score_images",
]

TILES = 12  # photos per gallery
SIDE = 200  # pixels of a photo's longer side
PHOTO_BYTES = 16_000  # of one photo
MAP_SIDE = 28  # pixels of the picture that is laid over a photo; the browser enlarges it smoothly
_HEAT = (255, 64, 0)
_SAMPLE = 0x72657074  # what the random order of scored training images is for
_WORDS = {1: "labelled present", -1: "labelled absent", 0: "unknown"}
_STATE = {1: "present", -1: "absent", 0: "unknown"}


class Pick(NamedTuple):
    """An entry to show: the row of its image in the scores, its class, and why it ranks where it does."""

    row: int
    column: int
    loss: float = 0.0  # of the whole image, for hard images


class Scored(NamedTuple):
    """Images with scores: M of them, held-out ones first."""

    images: NDArray[np.int64]  # (M,) numbers in the label table
    scores: NDArray[np.float32]  # (M, C), NaN for unread images
    labels: NDArray[np.int8]  # (M, C)
    held_out: int  # how many come first


def missing_positives(
    scores: NDArray[Any], labels: NDArray[Any], thresholds: NDArray[Any], most: int = TILES
) -> list[Pick]:
    """Entries that are not known to be present and score highest, at or above their threshold, one per image.

    No class takes more than a quarter of the places while others are waiting. scores, labels (M, C), thresholds (C,).
    """
    likely = (labels <= 0) & (scores >= thresholds)
    return _varied(np.where(likely, scores, -np.inf), most)


def contradicted(
    scores: NDArray[Any],
    labels: NDArray[Any],
    thresholds: NDArray[Any],
    most: int = TILES,
    shown: Sequence[Pick] = (),
) -> list[Pick]:
    """Known entries on the wrong side of their threshold, those first whose label has the least probability.

    One per image, classes varied as in `missing_positives`; entries already `shown` are left out.
    """
    wrong = np.where(labels > 0, scores < thresholds, scores >= thresholds) & (labels != 0) & ~np.isnan(scores)
    for pick in shown:
        wrong[pick.row, pick.column] = False
    doubt = np.where(labels > 0, 1 - scores, scores)
    return _varied(np.where(wrong, doubt, -np.inf), most)


def hardest(scores: NDArray[Any], labels: NDArray[Any], most: int = TILES) -> list[Pick]:
    """Images with the largest loss, and in each the entry with the largest part of it.

    loss = Σ over the image's known entries of −log p, with p the probability of its label (at least 10⁻⁶).
    """
    loss = entry_loss(scores, labels)
    total = loss.sum(axis=1)
    order = np.argsort(-total, kind="stable")[:most]
    return [Pick(int(row), int(loss[row].argmax()), float(total[row])) for row in order if total[row] > 0]


def entry_loss(scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """−log p of each known entry's label, 0 for unknown entries and unread images: (M, C)."""
    with np.errstate(invalid="ignore"):
        p = np.where(labels > 0, scores, 1 - scores.astype(np.float64))
    known = (labels != 0) & ~np.isnan(scores)
    return np.where(known, -np.log(np.clip(np.nan_to_num(p), 1e-6, 1)), 0.0)


def _varied(rank: NDArray[Any], most: int) -> list[Pick]:
    """The images with the highest rank (M, C), each with its best class; −∞ is never chosen."""
    if not rank.size:
        return []
    column = rank.argmax(axis=1)
    best = rank[np.arange(len(rank)), column]
    order = [int(row) for row in np.argsort(-best, kind="stable") if best[row] > -np.inf]
    quota = max(2, most // 4)
    taken: dict[int, int] = {}
    first: list[int] = []
    rest: list[int] = []
    for row in order:
        if len(first) == most:
            break
        c = int(column[row])
        taken[c] = taken.get(c, 0) + 1
        (first if taken[c] <= quota else rest).append(row)
    chosen = set((first + rest)[:most])
    return [Pick(row, int(column[row])) for row in order if row in chosen]


def score_images(
    facts: Facts, predictor: Predictor, source: Images, most: int, progress: Callable[[int, int], None] | None = None
) -> Scored:
    """Held-out images with the scores that the run keeps, and at most `most` training images, scored now.

    Of more, a random sample is scored, which depends on the images' names alone.
    """
    from halflabel.data.sources import Part

    training = facts.training
    if len(training) > most:
        order = np.argsort(bits(_SAMPLE, hash_names(facts.table.images.take(training).array)), kind="stable")
        training = np.sort(training[order[:most]])
    images = np.zeros(0, np.int64)
    scores = np.zeros((0, len(facts.table.classes)), np.float32)
    held_out = 0
    if facts.measured is not None:
        images, scores = facts.measured.images, facts.measured.scores
        held_out = len(images)
    if len(training):
        fresh = predictor.scores(Part(source, training), progress).numpy()
        images, scores = np.concatenate([images, training]), np.concatenate([scores, fresh])
    return Scored(images, scores, facts.table.rows(images), held_out)


def galleries(
    facts: Facts,
    run: RunFolder,
    folder: Path,
    *,
    scan: int,
    tiles: int = TILES,
    progress: Callable[[int, int], None] | None = None,
) -> Html:
    """Three galleries with the photos of a folder; `scan` is how many training images may be scored for them."""
    from halflabel.data.sources import open_images
    from halflabel.runs.predictor import Predictor

    predictor = Predictor.from_run(run)
    source = open_images(facts.table.images, folder, predictor.views, workers=predictor.config.workers, max_bad=1.0)
    found = score_images(facts, predictor, source, scan, progress)
    thresholds = predictor.thresholds.numpy()
    missing = missing_positives(found.scores, found.labels, thresholds, tiles)
    wrong = contradicted(found.scores, found.labels, thresholds, tiles, missing)
    hard = hardest(found.scores, found.labels, tiles)
    shelf = _Shelf(facts, predictor, source, found)
    trained_on = len(found.images) - found.held_out
    on = (
        f"Chosen by score from {count(found.held_out)} held-out images, with the scores of the run, and "
        f"{count(trained_on)} of {count(len(facts.training))} training images, scored for this page. A model has seen "
        "the labels of its training images and is slow to contradict them: each photo says which it is."
    )
    return section(
        "photos",
        "Photos to look at",
        shelf.gallery(
            "missing",
            "Likely missing positives",
            "Not known to be present, yet scored at or above the threshold of the class; highest score first. "
            "Is it there? Then the label is missing.",
            missing,
        ),
        shelf.gallery(
            "wrong",
            "Likely wrong labels",
            "Labelled present but scored below the threshold of the class, or labelled absent but not below it; least "
            "probable label first. Either may be wrong, the label or the model. Those shown above are left out.",
            wrong,
        ),
        shelf.gallery(
            "hard",
            "Hardest images",
            "The known labels of these images surprise the model most. Each photo names the label that does so most; "
            "the loss is the surprise over all known labels of the image, and 0 is none.",
            hard,
        ),
        on=on,
    )


def no_galleries() -> Html:
    """What stands in the galleries' place."""
    hint = el("code", "halflabel report RUN --images PHOTOS")
    line = el("p", "Galleries of likely missing and likely wrong labels need the photos. Get them with ", hint, ".")
    return section("photos", "Photos to look at", line)


class _Shelf:
    """Makes tiles: reads a photo, shrinks it, and lays the class map over it."""

    def __init__(self, facts: Facts, predictor: Predictor, source: Images, found: Scored) -> None:
        self.facts, self.predictor, self.source, self.found = facts, predictor, source, found

    def gallery(self, name: str, title: str, said: str, picks: Sequence[Pick]) -> Html:
        made = [tile for tile in map(self._tile, picks) if tile is not None]
        heading = el("h3", title)
        if not made:
            why = "None of the photos could be read." if picks else "None was found: there is nothing to look at here."
            return el("div", heading, el("p", said, class_="said"), el("p", why, class_="none"), id=name)
        switch: list[Html] = []
        if any('class="map"' in tile for tile in made):
            switch = [
                el("input", type="checkbox", id=f"{name}-maps", checked=True, class_="switch"),
                el("label", "Colour where the model sees the class, on each photo's own scale", for_=f"{name}-maps"),
            ]
        return el("div", heading, el("p", said, class_="said"), *switch, el("div", *made, class_="tiles"), id=name)

    def _tile(self, pick: Pick) -> Html | None:
        import torch

        from halflabel.data.decode import BadImage, read_image
        from halflabel.models.class_maps import visible_box

        number = int(self.found.images[pick.row])
        try:
            image = read_image(self.source.paths[number])
        except BadImage:
            return None
        high, wide = int(image.shape[1]), int(image.shape[2])
        scale = min(1.0, SIDE / max(high, wide))
        width, height = max(1, round(wide * scale)), max(1, round(high * scale))
        photo = el("image", href=_jpeg(image, width, height), width=width, height=height)
        view = self.predictor.views["plain"]
        hot = self._heat(torch.as_tensor(view(image, 0)), pick.column)
        over = None
        if hot is not None:
            left, top, right, bottom = visible_box(view, high, wide)
            box = {
                "x": round(left * width, 1),
                "y": round(top * height, 1),
                "width": round((right - left) * width, 1),
                "height": round((bottom - top) * height, 1),
            }
            over = el("image", href=hot, **box, preserveAspectRatio="none", class_="map")
        name, p = self.facts.table.classes[pick.column], float(self.found.scores[pick.row, pick.column])
        label = int(self.found.labels[pick.row, pick.column])
        cut = float(self.predictor.thresholds[pick.column])
        file = self.facts.table.images[number]
        part = "held\u2011out" if pick.row < self.found.held_out else "training"
        alt = f"Photo {short(file, 60)}: {short(name, 60)} scored {score(p)}, {_WORDS[label]}"
        svg = el("svg", photo, over, viewBox=f"0 0 {width} {height}", role="img", aria_label=alt, class_="photo")
        said = [
            el("div", el("b", short(name, 28), class_="name", title=short(name, 200))),
            el("div", f"score {score(p)}"),
            el("div", f"threshold {score(cut)}", class_="file"),
            el(
                "div",
                el("span", _WORDS[label], class_=f"tag {_STATE[label]}"),
                " ",
                el("span", part, class_="tag part"),
            ),
            self._loss(pick),
            el("div", el("span", short(file, 30), class_="name", title=short(file, 200)), class_="file"),
        ]
        return el("figure", svg, el("figcaption", *said), class_="tile")

    def _loss(self, pick: Pick) -> Html | None:
        """The loss of a hard image, and over how much it was summed."""
        if not pick.loss:
            return None
        known = int((self.found.labels[pick.row] != 0).sum())
        words = "1 known label" if known == 1 else f"{count(known)} known labels"
        return el("div", f"loss {decimal(pick.loss, 1)} over {words}", class_="file")

    def _heat(self, view: torch.Tensor, column: int) -> str | None:
        """The class map as a small transparent picture; None where the head has none."""
        from halflabel.models.class_maps import compute_class_maps, heat_map

        try:
            maps = compute_class_maps(self.predictor.model, view[None], [column])
        except UserError:
            return None
        return _png(heat_map(maps, (MAP_SIDE, MAP_SIDE))[0, 0])


def _jpeg(image: torch.Tensor, width: int, height: int) -> str:
    """A photo as a small JPEG in a data address: no metadata, and never more than PHOTO_BYTES."""
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
    """Heat (H, W) in 0 … 1 as a picture of one colour, the more opaque the hotter."""
    from PIL import Image

    # 16 steps in a palette take a third of the bytes of full colour.
    picture = Image.fromarray(np.rint(15 * hot).astype(np.uint8), mode="P")
    picture.putpalette(_HEAT * 16)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True, transparency=bytes(round(150 * step / 15) for step in range(16)))
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
