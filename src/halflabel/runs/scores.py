"""Scores of a run for all images of its labels, cached in RUN/scores.parquet so that the review page starts quickly."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.system.files import atomic_write
from halflabel.system.remote import local_folder
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits
from halflabel.system.webdataset import tar_files

if TYPE_CHECKING:
    from torch import Tensor

    from halflabel.runs.predictor import Predictor


_FILE = "scores.parquet"
_DIMENSIONS = 64  # of the features for finding near-duplicates: a random projection preserves angles
_PROJECTION = 0x70726F6A
_SCRATCH_BYTES = 1 << 28  # from this size on, scores are in a memory-mapped scratch file
_BLOCK_ENTRIES = 1 << 22  # entries processed at a time


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


def cached_scores(
    run: RunFolder, folder: Path, reporter: Reporter = SILENT, further_photos: Names | None = None
) -> ScoredImages:
    """Return the scores of a run for the images of its labels, from the cache unless weights or images have changed.

    `further_photos` of the folder, of which the run has no label, are scored too.

    The table holds only labels that people made: labels made by a model are no evidence of what is present. Reading the
    cache does not import torch. A run without any label has no model yet: its scores are NaN.
    """
    folder = local_folder(folder)
    rows = run.read_rows() if further_photos is None else run.read_rows().with_images(further_photos)
    table = rows.people
    if table.known:
        run.check_finished()
    thresholds = _thresholds(run, table)
    cached = _read_cache(run, table, folder)
    if cached is None:
        cached = _compute(run, table, folder, reporter)
        _write_cache(run, table, folder, *cached)
    paths, scores, features = cached
    assumption = run.read_calibration().assumption if run.is_calibrated else ""
    return ScoredImages(table, scores, features, _held_out(run, table), thresholds, folder, paths, assumption)


def crossfit_scores(
    run: RunFolder, folder: Path, folds: int = 3, reporter: Reporter = SILENT
) -> NDArray[np.float32] | None:
    """Return scores (N, C) of each image by a head that never saw its labels: one head per fold of images.

    A run with out-of-fold scores needs no training: they are returned, whatever the number of folds. Else method,
    settings, seed and training labels are the run's. None where the whole network was tuned, as that would take as
    long as training, or with fewer than two folds.
    """
    if run.out_of_fold.exists():
        return cached_scores(run, folder, reporter).scores
    import torch

    from halflabel.runs.crossfit import score_run
    from halflabel.runs.predictor import Predictor

    if folds < 2:
        return None
    predictor = Predictor.from_run(run)
    if predictor.config.tune != "head":
        return None
    scored = score_run(run, folder, run.read_labels(), folds=folds, reporter=reporter)
    return _calibrate(predictor, torch.from_numpy(scored.logits))


def _compute(
    run: RunFolder, table: Table, folder: Path, reporter: Reporter
) -> tuple[list[str | None], NDArray[np.float32], NDArray[np.float16]]:
    from halflabel.images.items import first_files

    if run.weights.is_file():
        scores, features = _score(run, table, folder, reporter)
    else:
        scores, features = np.full(table.shape, np.nan, np.float32), _first_features(run, table, folder, reporter)
    located = first_files(list(table.images), folder)
    paths = [None if path is None else path.relative_to(folder).as_posix() for path in located]
    return paths, scores, features


def _first_features(run: RunFolder, table: Table, folder: Path, reporter: Reporter) -> NDArray[np.float16]:
    """Return the projected features of a run that has no model yet."""
    from halflabel.fitting.assembly import Assembly, pooled_features
    from halflabel.fitting.config import Config
    from halflabel.images.sources import open_images
    from halflabel.runs.crossfit import run_features

    config = Config.from_dict(run.read_config())
    backbone = Assembly(config).make_backbone()
    views = config.views(backbone)
    source = open_images(table.images, folder, views, workers=config.workers, max_bad=1.0)
    features = run_features(run, config, backbone, source, len(table.classes), train=False, reporter=reporter)
    return _project(pooled_features(features).numpy())


def _score(
    run: RunFolder, table: Table, folder: Path, reporter: Reporter
) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    from halflabel.features.backbones import Backbone
    from halflabel.features.heads import Model
    from halflabel.features.scoring import score_source
    from halflabel.images.sources import open_images
    from halflabel.runs.crossfit import run_features
    from halflabel.runs.predictor import Predictor

    predictor = Predictor.from_run(run)
    config, device, backbone = predictor.config, predictor.device, predictor.model.backbone
    source = open_images(table.images, folder, predictor.views, workers=config.workers, max_bad=1.0)
    if config.tune == "head":
        assert isinstance(backbone, Backbone)
        cached = run_features(run, config, backbone, source, len(table.classes), train=False, reporter=reporter)
        scored = score_source(Model(None, predictor.model.head), cached, device=device, batch_size=256)
    else:
        options: dict[str, Any] = {"batch_size": 32, "mirror": config.mirror, "reporter": reporter}
        scored = score_source(predictor.model, source, device=device, **options)
    features = _project(scored.features.flatten(1).numpy())
    _use_out_of_fold(run, table, scored.logits)
    return _calibrate(predictor, scored.logits), features


def _use_out_of_fold(run: RunFolder, table: Table, logits: Tensor) -> None:
    """Replace logits (N, C) by the run's out-of-fold logits, if it has any, for images readable then and now.

    Other images have no labels that the run was trained on: the final model scores them without bias.
    """
    import torch

    stored = run.read_out_of_fold(table.images)
    if stored is None:
        return
    out_of_fold = torch.from_numpy(stored[0])
    rows = ~(torch.isnan(out_of_fold) | torch.isnan(logits)).any(1)
    logits[rows] = out_of_fold[rows]


def _calibrate(predictor: Predictor, logits: Tensor) -> NDArray[np.float32]:
    """Turn logits (N, C) into scores in place, as memory may not hold both."""
    step = max(1, _BLOCK_ENTRIES // max(logits.shape[1], 1))
    for first in range(0, len(logits), step):
        part = logits[first : first + step]
        part.copy_(predictor.calibration.scores(part))
    scores: NDArray[np.float32] = logits.numpy()
    return scores


def _project(wide: NDArray[Any]) -> NDArray[np.float16]:
    """Project features (N, D) to (N, 64), centred and with unit spread, by fixed random signs."""
    step = max(1, _BLOCK_ENTRIES // max(wide.shape[1], 1))
    parts = [slice(first, first + step) for first in range(0, len(wide), step)]
    total, number = np.zeros(wide.shape[1]), np.zeros(wide.shape[1])
    for part in parts:
        total += np.nansum(wide[part], axis=0, dtype=np.float64)
        number += (~np.isnan(wide[part])).sum(0)
    mean = (total / np.maximum(number, 1)).astype(np.float32)
    signs = np.where(bits(_PROJECTION, np.arange(wide.shape[1])[:, None], np.arange(_DIMENSIONS)[None, :]) & 1, 1, -1)
    flat = np.concatenate([(wide[part] - mean) @ signs.astype(np.float32) for part in parts])
    spread = np.nanstd(flat)
    return np.asarray(flat / (spread if spread > 0 else 1), dtype=np.float16)


def _held_out(run: RunFolder, table: Table) -> NDArray[np.bool_]:
    if run.out_of_fold.exists():  # no score comes from a model that saw the image's labels
        return np.ones(len(table), bool)
    if not (run / "split.parquet").exists():
        return np.zeros(len(table), bool)
    return np.asarray(run.split_of(table.images) == 1)


def _thresholds(run: RunFolder, table: Table) -> NDArray[np.float64]:
    if not (run / "thresholds.json").exists():
        return np.full(len(table.classes), 0.5)
    thresholds = run.read_thresholds()
    known = [thresholds.get(name) for name in table.classes]
    return np.array([0.5 if threshold is None else threshold for threshold in known])


def _stamp(run: RunFolder, folder: Path, paths: Sequence[str | None]) -> str:
    """Return a digest of weights, scores, calibration, folder and images, by size and modification time."""
    sha = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape"))
    # Images in a pack are not files; the pack's index holds all their checksums.
    packed = [folder / "index.arrow", *tar_files(folder)]
    files = (None if name is None else folder / name for name in paths)
    optional = [path for path in (run.out_of_fold, *packed) if path.exists()]
    for path in (run.weights, run / "calibration.json", *optional, *files):
        try:
            stat = os.stat(path) if path is not None else None
            sha.update(b"none" if stat is None else f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n".encode())
        except OSError:
            sha.update(b"missing\n")
    return sha.hexdigest()


def _read_cache(
    run: RunFolder, table: Table, folder: Path
) -> tuple[list[str | None], NDArray[np.float32], NDArray[np.float16]] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(run / _FILE) as file:
            about = json.loads(file.schema_arrow.metadata[b"halflabel"])
            # Bytes, as a file name need not be UTF-8.
            stored = file.read(["path"])["path"].to_pylist()
            paths = [None if path is None else os.fsdecode(path) for path in stored]
            if about.get("labels") != table.digest() or about.get("stamp") != _stamp(run, folder, paths):
                return None
            scores, features = _empty_scores(table.shape), np.empty((len(table), _DIMENSIONS), np.float16)
            done = 0
            for batch in file.iter_batches(_block_images(table), columns=["scores", "features"]):
                rows = slice(done, done + len(batch))
                for name, target in (("scores", scores), ("features", features)):
                    flat = batch.column(name).flatten().to_numpy(zero_copy_only=False)
                    target[rows] = flat.reshape(len(batch), target.shape[1])
                done += len(batch)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    return (paths, scores, features) if done == len(table) else None


def _block_images(table: Table) -> int:
    """Return the number of images written or read at a time."""
    return max(1, _BLOCK_ENTRIES // max(len(table.classes), 1))


def _empty_scores(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Allocate scores in memory, or in a scratch file where they are large; only that needs torch."""
    if 4 * shape[0] * shape[1] < _SCRATCH_BYTES:
        return np.empty(shape, np.float32)
    from halflabel.system import memory

    scores: NDArray[np.float32] = memory.scratch_zeros(shape, what=f"the scores of {shape[0]} images take").numpy()
    return scores


def _write_cache(
    run: RunFolder,
    table: Table,
    folder: Path,
    paths: list[str | None],
    scores: NDArray[np.float32],
    features: NDArray[np.float16],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def block(values: NDArray[Any]) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])

    content = pa.table(
        {
            "image": table.images.array,
            "path": pa.array([None if path is None else os.fsencode(path) for path in paths], pa.binary()),
            "scores": block(scores),
            "features": block(features.astype(np.float32)),
        }
    )
    about = {"labels": table.digest(), "stamp": _stamp(run, folder, paths), "classes": list(table.classes)}
    content = content.replace_schema_metadata({"halflabel": json.dumps(about)})
    with atomic_write(run / _FILE) as temporary:
        pq.write_table(content, temporary, compression="zstd", row_group_size=_block_images(table))
