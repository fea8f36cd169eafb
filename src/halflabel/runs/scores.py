"""Scores of a run for images: the stored ones, and those of its final model for others.

What `next` and the review page need is cached, so that the page starts quickly, without torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import NoReadableImage
from halflabel.evaluation.scores import Scores, image_blocks
from halflabel.features.vector_store import Block, VectorStore
from halflabel.fitting.config import Config
from halflabel.images.decode import first_files
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.system.files import file_crc32
from halflabel.system.remote import local_folder, local_path
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits
from halflabel.system.webdataset import tar_files

if TYPE_CHECKING:
    from halflabel.images.sources import Images

_DIMENSIONS = 64  # of the features for finding near-duplicates: a random projection preserves angles
_PROJECTION = 0x70726F6A


@dataclass(frozen=True, eq=False)
class ScoredImages:
    """Scores of the N images of a run's labels; `table` holds the labels that people made.

    Memory: 128 bytes per image beside the labels and names, and 4·C for the scores, in a scratch file from 256 MB on.
    """

    table: Table
    scores: NDArray[np.float32]  # (N, C) calibrated; NaN where an image cannot be read
    features: NDArray[np.float16]  # (N, 64) a random projection of the features
    held_out: NDArray[np.bool_]  # (N,) scored by models that did not see the labels of the image
    thresholds: NDArray[np.float64]  # (C,) scores from which on a class is called present
    folder: Path
    paths: list[str | None]  # relative to the folder
    assumption: str = ""  # under which the scores are probabilities


def score_images(run: RunFolder, names: Names, folder: Path, reporter: Reporter = SILENT) -> Scores:
    """Return the scores of images: those that the run has stored, and those of its final model for the others."""
    scores = _stored_scores(run, names)
    rows = np.flatnonzero(np.isnan(scores.logits).any(1))
    if len(rows):
        from halflabel.runs.model import Model

        predictor = Model.open(run)
        config = predictor.config
        also_in = local_path(config.images) if config.images else None  # may have images that `folder` lacks
        try:
            source = _open(config, names.take(rows), folder, predictor.views, also_in)
            scores.logits[rows] = predictor.logits(source, reporter, cached=True).numpy()
        except NoReadableImage:
            if len(rows) == len(names):
                raise
    return scores


def _stored_scores(run: RunFolder, names: Names) -> Scores:
    """Return the stored scores of images, NaN for others; no model was trained on images that the run never had."""
    stored = run.read_scores()
    if stored is None:
        stored = Scores.unknown(Names([]), run.read_labels().classes)
    scores, further = stored.of(names), stored.fold.max(initial=-1) + 1
    return replace(scores, fold=np.where(run.split_of(names) < 0, further, scores.fold).astype(np.int8))


def _open(config: Config, names: Names, folder: Path, views: Mapping[str, Any], also_in: Path | None = None) -> Images:
    from halflabel.images.sources import open_images

    return open_images(names, folder, views, workers=config.workers, max_bad=1.0, also_in=also_in)


def scored_images(
    run: RunFolder, folder: Path, reporter: Reporter = SILENT, further_photos: Names | None = None
) -> ScoredImages:
    """Return the scores of a run for the images of its labels, from the cache unless weights or images have changed.

    `further_photos` of the folder, of which the run has no label, are scored too. The table holds only labels that
    people made. A run without any label has no model yet: its scores are NaN.
    """
    folder = local_folder(folder)
    rows = run.read_rows() if further_photos is None else run.read_rows().with_images(further_photos)
    table, paths = rows.people, first_files(list(rows.images), folder)
    if table.known:
        run.check_finished()
    scores, store = _stored_scores(run, table.images), _store(run, table, folder, paths)
    if store.fault() is not None:
        store.build(partial(_compute, run, table, folder, reporter), message=reporter.message)
    store.mark_used()
    values = store.values()
    for index in image_blocks(*table.shape):
        stored, final = scores.logits[index], values[index]
        is_stored = ~(np.isnan(stored).any(1) | np.isnan(final[:, -1]))  # and can be read now
        scores.logits[index] = np.where(is_stored[:, None], stored, final[:, :-_DIMENSIONS])
    calibration, by_class = run.read_calibration(), run.read_thresholds() if run.is_calibrated else {}
    return ScoredImages(
        table,
        scores.probabilities(calibration),
        values[:, -_DIMENSIONS:].astype(np.float16),
        scores.unbiased,
        np.array([0.5 if (at := by_class.get(name)) is None else at for name in table.classes]),
        folder,
        [None if path is None else path.relative_to(folder).as_posix() for path in paths],
        calibration.assumption,
    )


def _store(run: RunFolder, table: Table, folder: Path, paths: Sequence[Path | None]) -> VectorStore:
    """Return the store of the logits of the final model, NaN without one, and projected features: (N, C + 64)."""
    # Images in a pack are not files; the pack's index holds all their checksums.
    files = [folder / "index.arrow", *tar_files(folder), *(path for path in paths if path is not None)]
    images = sha256("\0".join((*table.classes, *table.images)).encode("utf-8", "surrogateescape"))
    for path in files:
        with suppress(OSError):
            stat = os.stat(path)
            images.update(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape"))
    key = {"weights": f"{file_crc32(run.weights):08x}" if run.weights.is_file() else "", "images": images.hexdigest()}
    config, name = run.read_config(), f"{run.folder.resolve().name}-scores"
    about = {"backbone": config.get("backbone"), "size": config.get("size"), "kind": "scores"}
    return VectorStore(run.cache, name, key, len(table), title="scores", about=about)


def _compute(
    run: RunFolder, table: Table, folder: Path, reporter: Reporter, rows: NDArray[np.int64]
) -> Iterator[Block]:
    from halflabel.fitting.assembly import Assembly, pooled_features
    from halflabel.runs.model import Model

    names, config = table.images, Config.from_dict(run.read_config())
    predictor = Model.open(run) if run.weights.is_file() else None
    backbone: Any = Assembly(config).make_backbone() if predictor is None else predictor.network.backbone
    source = _open(config, names, folder, config.views(backbone) if predictor is None else predictor.views)
    is_scored = run.score_kind == "out-of-fold" and bool((run.split_of(names) >= 0).all())
    if predictor is not None and not is_scored:
        swept = predictor.sweep(source, reporter, cached=True)
        logits, wide = swept.logits.numpy(), swept.features.flatten(1).numpy()
    else:
        about: dict[str, Any] = {"for_training": False, "reporter": reporter}
        features = Assembly(config).features(backbone, source, len(table.classes), run.cache, **about)
        logits, wide = Scores.unknown(names, table.classes).logits, pooled_features(features).numpy()
    projected = _project(wide)
    for index in image_blocks(rows, len(table.classes)):
        yield Block(index, np.hstack([logits[index], projected[index]]), {})


def _project(wide: NDArray[Any]) -> NDArray[np.float32]:
    """Project features (N, D) to (N, 64), centred and with unit spread, by fixed random signs."""
    total, number = np.zeros(wide.shape[1]), np.zeros(wide.shape[1])
    for index in image_blocks(*wide.shape):
        total += np.nansum(wide[index], axis=0, dtype=np.float64)
        number += (~np.isnan(wide[index])).sum(0)
    mean = (total / np.maximum(number, 1)).astype(np.float32)
    signs = np.where(bits(_PROJECTION, np.arange(wide.shape[1])[:, None], np.arange(_DIMENSIONS)[None, :]) & 1, 1, -1)
    flat = np.concatenate([(wide[index] - mean) @ signs.astype(np.float32) for index in image_blocks(*wide.shape)])
    spread = np.nanstd(flat)
    return np.asarray(flat / (spread if spread > 0 else 1), dtype=np.float32)
