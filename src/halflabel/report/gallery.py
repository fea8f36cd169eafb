"""Galleries of photos on a run's page: labels that are likely missing, and labels that are likely wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from halflabel.errors import UserError
from halflabel.features.class_maps import heat_png, photo_heat_maps
from halflabel.images.decode import BadImage, read_image
from halflabel.images.sources import Images, Subset, open_images
from halflabel.labels.table import are_nearly_all_positive
from halflabel.questions.choose import choose_questions, rank_among_equal
from halflabel.questions.next import present_limits
from halflabel.report.layout import Section, limit
from halflabel.report.run_facts import RunFacts
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.system.format import group_digits, probability
from halflabel.system.html import render
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits, hash_names

TILES = 150  # of a gallery at most
WRONG_TILES = 60  # of labels that look wrong
PHOTO_BUDGET = 2_000_000  # bytes of all photos of a page
PHOTO_BYTES = 24_000  # limit of one photo
PHOTO_SIDES = (320, 200)  # pixels of a photo's longer side: with few photos, with many
QUESTIONS = 10  # that are shown where precision can only be estimated
_QUESTIONS_TEXT = (
    "Questions that would tell most",
    "Unknown labels whose answers would teach most, at most one per photo. halflabel next chooses more of them, and "
    "random ones that show how often the model is right.",
)
_MISSING_TEXT = (
    "Likely missing",
    "Unknown, yet scored at or above the threshold of the class; highest score first. If the class is in the photo, "
    "its label is missing.",
)
MAP_SIDE = 40  # pixels of the class map over a photo; the browser scales it up smoothly
_SAMPLE = 0x72657074  # random stream: sample of the training images to score
_STATE_TEXT = {1: "labelled present", -1: "labelled absent", 0: "unknown"}
_STATE_CLASS = {1: "present", -1: "absent", 0: ""}


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


def rank_missing(scores: NDArray[Any], labels: NDArray[Any], thresholds: NDArray[Any]) -> NDArray[Any]:
    """Return the scores (M, C) of unknown entries at or above their threshold (C,); −∞ elsewhere."""
    return np.where((labels == 0) & (scores >= thresholds), scores, -np.inf)


def rank_contradicted(scores: NDArray[Any], labels: NDArray[Any], thresholds: NDArray[Any]) -> NDArray[Any]:
    """Return how improbable the label is of known entries on the wrong side of their threshold; −∞ elsewhere.

    Where hardly any label is known to be absent, a present one must be below the lower limit of `present_limits`.
    """
    if are_nearly_all_positive(labels, labels.size):
        is_present = labels > 0
        limits = present_limits(np.nonzero(is_present)[1], scores[is_present], labels.shape[1])
        thresholds = np.where(is_present, np.minimum(thresholds, limits), thresholds)
    wrong = np.where(labels > 0, scores < thresholds, scores >= thresholds) & (labels != 0) & ~np.isnan(scores)
    return np.where(wrong, np.where(labels > 0, 1 - scores, scores), -np.inf)


def choose_entries(rank: NDArray[Any], most: int = TILES) -> list[GalleryEntry]:
    """Return the entries with the highest rank (M, C); every class gets its share before others get more."""
    rows, columns = np.nonzero(rank > -np.inf)
    order = np.argsort(-rank[rows, columns], kind="stable")
    rows, columns = rows[order], columns[order]
    over_share = rank_among_equal(columns) >= max(2, most // max(len(np.unique(columns)), 1))
    chosen = np.sort(np.argsort(over_share, kind="stable")[:most])
    return [GalleryEntry(int(rows[k]), int(columns[k])) for k in chosen]


def score_images(
    facts: RunFacts, predictor: Model, source: Images, most: int, reporter: Reporter = SILENT
) -> GalleryScores:
    """Return images with the scores in the run, and a sample of at most `most` training images, scored now."""
    training = facts.training
    if facts.is_out_of_fold:
        training = training[:0]  # an image without a score could not be read
    elif facts.held_out is not None:
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
    facts: RunFacts, run: RunFolder, folder: Path, *, scan: int, maps: bool, reporter: Reporter
) -> Section | None:
    """Return galleries with photos of a folder; `maps` draws where the model sees the class."""
    predictor = Model.open(run)
    source = open_images(facts.table.images, folder, predictor.views, workers=predictor.config.workers, max_bad=1.0)
    scored = score_images(facts, predictor, source, scan, reporter)
    thresholds = predictor.thresholds.numpy()
    missing = rank_missing(scored.scores, scored.labels, thresholds)
    wrong = rank_contradicted(scored.scores, scored.labels, thresholds)
    questions = _question_entries(facts, scored)
    chosen = [
        ("questions", *_QUESTIONS_TEXT, questions, len(questions)),
        ("missing", *_MISSING_TEXT, choose_entries(missing, TILES), int((missing > -np.inf).sum())),
        ("wrong", *_wrong_text(scored.labels), choose_entries(wrong, WRONG_TILES), int((wrong > -np.inf).sum())),
    ]
    columns: dict[int, list[int]] = {}
    for *_, entries, _ in chosen:
        for entry in entries:
            columns.setdefault(entry.row, []).append(entry.column)
    most = min(PHOTO_BYTES, PHOTO_BUDGET * 3 // 4 // max(len(columns), 1))  # base64 adds a third
    photos: dict[int, _Photo] = {}
    for done, (row, of_photo) in enumerate(columns.items(), start=1):
        number = int(scored.images[row])
        photo = _read_photo(
            source.paths[number], facts.table.images[number], of_photo, most, predictor if maps else None
        )
        if photo is not None:
            photos[row] = photo
        reporter.progress(done, len(columns))
    drawn: set[int] = set()
    shown = []
    for name, title, caption, entries, total in chosen:
        tiles = [_tile(facts, scored, entry, photos[entry.row], drawn) for entry in entries if entry.row in photos]
        limits = limit(len(entries), total, "are in this file; halflabel review shows all", "labels")
        if entries:
            shown.append(
                {"name": name, "title": title, "caption": caption, "total": total, "limits": limits, "tiles": tiles}
            )
    if not shown:
        return None
    trained_on = len(scored.images) - scored.held_out
    on = (
        f"Chosen by score from {group_digits(scored.held_out)} held-out images, with the scores of the run, and "
        f"{group_digits(trained_on)} of {group_digits(len(facts.training))} training images, scored for this page. A "
        "model has seen the labels of its training images and rarely contradicts them: each photo is marked as one or "
        "the other."
        if not facts.is_out_of_fold
        else f"Chosen by score from {group_digits(scored.held_out)} images, each scored by a model without its labels."
    )
    body = render("report/galleries.html.j2", galleries=shown)
    return Section(*("photos", "Photos", "Labels to check", on), body=body)


def _wrong_text(labels: NDArray[Any]) -> tuple[str, str]:
    """Return title and caption of the gallery of labels that look wrong."""
    if not are_nearly_all_positive(labels, labels.size):
        return "The model disagrees", (
            "Labelled present but scored below the threshold of the class, or labelled absent but not below it; least "
            "probable label first. Either the label or the model is wrong."
        )
    return "The model disagrees", (
        "Labels with less than a tenth of the probability that photos with the same label usually have; least probable "
        "first. The photo may be unusual, or the label wrong. Other labels that the model misses are not listed."
    )


def _question_entries(facts: RunFacts, scored: GalleryScores) -> list[GalleryEntry]:
    """Return the unknown entries whose answers would tell most, one per image, if precision is only estimated."""
    results = facts.held_out
    if results is None or results.knows_absence or not len(results.images):
        return []
    table = facts.table.subset(results.images)
    questions = choose_questions(results.scores, table, results.thresholds, QUESTIONS, control=0, per_image=1)
    row = {int(image): number for number, image in enumerate(scored.images)}
    return [GalleryEntry(row[int(results.images[item.image])], item.column) for item in questions]


class _Photo(NamedTuple):
    """A photo on the page: its name, its small copy as a data URL, and a class map per class."""

    name: str
    address: str
    width: int
    height: int
    maps: dict[int, str]


def _read_photo(
    path: str | Path, name: str, columns: Sequence[int], most: int, predictor: Model | None
) -> _Photo | None:
    """Read a photo, shrink it to `most` bytes and compute its class maps; None where it cannot be read."""
    try:
        image = read_image(path)
    except BadImage:
        return None
    height, width = int(image.shape[1]), int(image.shape[2])
    scale = min(1.0, PHOTO_SIDES[most < PHOTO_BYTES] / max(height, width))
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    maps = {} if predictor is None else _class_maps(predictor, image, columns)
    return _Photo(name, _jpeg(image, width, height, most), width, height, maps)


def _class_maps(predictor: Model, image: torch.Tensor, columns: Sequence[int]) -> dict[int, str]:
    """Return class maps as data URLs of small transparent images; empty where the head has none."""
    try:
        heat = photo_heat_maps(predictor.network, predictor.views["plain"], image, columns, MAP_SIDE)
    except UserError:
        return {}
    return {column: _data_url("png", heat_png(hot)) for column, hot in zip(columns, heat, strict=True)}


def _tile(
    facts: RunFacts, scored: GalleryScores, entry: GalleryEntry, photo: _Photo, drawn: set[int]
) -> dict[str, Any]:
    """Return what a tile shows; the page holds each photo once, however many tiles show it."""
    name, row = facts.table.classes[entry.column], entry.row
    label = int(scored.labels[row, entry.column])
    part = "held\u2011out" if row < scored.held_out else "training"
    is_first = row not in drawn
    drawn.add(row)
    return {
        "photo": photo,
        "row": row,
        "is_first": is_first,
        "class": name,
        "column": entry.column,
        "score": probability(float(scored.scores[row, entry.column])),
        "state": _STATE_TEXT[label],
        "css": _STATE_CLASS[label],
        "part": "" if facts.is_out_of_fold else part,
    }


def _jpeg(image: torch.Tensor, width: int, height: int, most: int = PHOTO_BYTES) -> str:
    """Return a photo as a data URL of a small JPEG without metadata, of at most `most` bytes."""
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    for quality in (78, 60, 40, 20, 5):
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality, optimize=True)
        if stream.tell() <= most:
            break
    return _data_url("jpeg", stream.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
