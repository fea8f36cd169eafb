"""What a run says of every image of its labels, kept in RUN/scores.parquet so that pages start at once."""

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

from halflabel.errors import UserError
from halflabel.labels.table import LabelTable
from halflabel.runs.folder import RunFolder
from halflabel.system.files import atomic_write
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits

if TYPE_CHECKING:
    from torch import Tensor

    from halflabel.data.sources import Features, Images
    from halflabel.runs.predictor import Predictor

__all__ = ["Scored", "cross_scores", "score_run"]


_FILE = "scores.parquet"
_DIMENSIONS = 64  # of the features kept for telling near-duplicates: angles survive a random projection
_PROJECTION = 0x70726F6A
_LARGE = 1 << 28  # bytes from which on scores are a file's pages instead of memory
_ENTRIES = 1 << 22  # of a table looked at at a time


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the N images of a run's labels.

    Memory: 128 bytes per image beside the labels and names, and 4·C for the scores, in a scratch file from 256 MB on.
    """

    table: LabelTable
    scores: NDArray[np.float32]  # (N, C) calibrated; NaN where an image cannot be read
    features: NDArray[np.float16]  # (N, 64) a random projection of the features
    held_out: NDArray[np.bool_]  # (N,) not trained on
    thresholds: NDArray[np.float64]  # (C,) from which a score says present
    folder: Path
    paths: list[str | None]  # relative to the folder


def score_run(run: RunFolder, folder: Path, reporter: Reporter = SILENT) -> Scored:
    """Scores of a run for the images of its labels: from the file where weights and images are as they were, else new.

    Reading the file does not import torch.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "name the folder with the images")
    run.check_finished()
    table = run.read_labels()
    thresholds = _thresholds(run, table)
    kept = _read(run, table, folder)
    if kept is None:
        paths, scores, features = _compute(run, table, folder, reporter)
        _write(run, table, folder, paths, scores, features)
        kept = paths, scores, features
    paths, scores, features = kept
    return Scored(table, scores, features, _held_out(run, table), thresholds, folder, paths)


def cross_scores(
    run: RunFolder, folder: Path, folds: int = 3, reporter: Reporter = SILENT
) -> NDArray[np.float32] | None:
    """Scores (N, C) of each image by heads that never saw its labels: one head per fold, trained on the other folds.

    Method, settings and seed are the run's. None where the whole network was tuned: that takes as long as training.
    """
    import torch

    from halflabel.runs.crossfit import cross_fit
    from halflabel.runs.predictor import Predictor

    predictor = Predictor.from_run(run)
    if predictor.config.tune != "head" or folds < 2:
        return None
    table = run.read_labels()
    features = _features(run, predictor, _source(table, folder, predictor), reporter, train=True)
    found = cross_fit(features, table, predictor.config, folds=folds)
    return _calibrated(predictor, torch.from_numpy(found.logits))


def _source(table: LabelTable, folder: Path, predictor: Predictor) -> Images:
    from halflabel.data.sources import open_images

    return open_images(table.images, folder, predictor.views, workers=predictor.config.workers, max_bad=1.0)


def _features(run: RunFolder, predictor: Predictor, source: Images, reporter: Reporter, *, train: bool) -> Features:
    from halflabel.models.backbones import Backbone
    from halflabel.runs.crossfit import run_features

    backbone, classes = predictor.model.backbone, len(predictor.classes)
    assert isinstance(backbone, Backbone)
    return run_features(run, predictor.config, backbone, source, classes, train=train, reporter=reporter)


def _compute(
    run: RunFolder, table: LabelTable, folder: Path, reporter: Reporter
) -> tuple[list[str | None], NDArray[np.float32], NDArray[np.float16]]:
    from halflabel.data.decode import locate_images
    from halflabel.models.heads import Model
    from halflabel.models.scoring import score_source
    from halflabel.runs.predictor import Predictor

    predictor = Predictor.from_run(run)
    source = _source(table, folder, predictor)
    if predictor.config.tune == "head":
        cached = _features(run, predictor, source, reporter, train=False)
        found = score_source(Model(None, predictor.model.head), cached, device=predictor.device, batch_size=256)
    else:
        mirror = predictor.config.mirror
        found = score_source(
            predictor.model, source, device=predictor.device, batch_size=32, mirror=mirror, reporter=reporter
        )
    wide = found.features.flatten(1).numpy()
    features = _project(wide)
    scores = _calibrated(predictor, found.logits)
    paths = [_relative(path, folder) for path in locate_images(list(table.images), folder)]
    return paths, scores, features


def _calibrated(predictor: Predictor, logits: Tensor) -> NDArray[np.float32]:
    """Logits (N, C) turned into scores where they are: in memory there may be no room for both."""
    step = max(1, _ENTRIES // max(logits.shape[1], 1))
    for first in range(0, len(logits), step):
        part = logits[first : first + step]
        part.copy_(predictor.platt.scores(part))
    found: NDArray[np.float32] = logits.numpy()
    return found


def _project(wide: NDArray[Any]) -> NDArray[np.float16]:
    """(N, D) features to (N, 64), centred and of unit spread, by signs that are the same for ever."""
    step = max(1, _ENTRIES // max(wide.shape[1], 1))
    parts = [slice(first, first + step) for first in range(0, len(wide), step)]
    total, many = np.zeros(wide.shape[1]), np.zeros(wide.shape[1])
    for part in parts:
        total += np.nansum(wide[part], axis=0, dtype=np.float64)
        many += (~np.isnan(wide[part])).sum(0)
    mean = (total / np.maximum(many, 1)).astype(np.float32)
    signs = np.where(bits(_PROJECTION, np.arange(wide.shape[1])[:, None], np.arange(_DIMENSIONS)[None, :]) & 1, 1, -1)
    flat = np.concatenate([(wide[part] - mean) @ signs.astype(np.float32) for part in parts])
    spread = np.nanstd(flat)
    return np.asarray(flat / (spread if spread > 0 else 1), dtype=np.float16)


def _relative(path: Path | None, folder: Path) -> str | None:
    return None if path is None else path.relative_to(folder).as_posix()


def _held_out(run: RunFolder, table: LabelTable) -> NDArray[np.bool_]:
    if not (run / "split.parquet").exists():
        return np.zeros(len(table), bool)
    return np.asarray(run.split_of(table.images) == 1)


def _thresholds(run: RunFolder, table: LabelTable) -> NDArray[np.float64]:
    if not (run / "thresholds.json").exists():
        return np.full(len(table.classes), 0.5)
    found = run.read_thresholds()
    cuts = [found.get(name) for name in table.classes]
    return np.array([0.5 if cut is None else cut for cut in cuts])


def _stamp(run: RunFolder, folder: Path, paths: Sequence[str | None]) -> str:
    """Changes with the weights, the calibration, the folder or any image: by size and time of change."""
    sha = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape"))
    # In a pack there is no file to look at but that with all checksums; in a folder it is missing, for good.
    pack = folder / "index.arrow"
    files = (None if name is None else folder / name for name in paths)
    for path in (run.weights, run / "calibration.json", *([pack] if pack.exists() else ()), *files):
        try:
            found = os.stat(path) if path is not None else None
            sha.update(b"none" if found is None else f"{found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            sha.update(b"missing\n")
    return sha.hexdigest()


def _read(
    run: RunFolder, table: LabelTable, folder: Path
) -> tuple[list[str | None], NDArray[np.float32], NDArray[np.float16]] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(run / _FILE) as file:
            about = json.loads(file.schema_arrow.metadata[b"halflabel"])
            # Bytes, as a name on the disk need not be text; an earlier version wrote text.
            listed = file.read(["path"])["path"].to_pylist()
            paths = [None if path is None else os.fsdecode(path) for path in listed]
            if about.get("labels") != table.digest() or about.get("stamp") != _stamp(run, folder, paths):
                return None
            scores, features = _table(table.shape), np.empty((len(table), _DIMENSIONS), np.float16)
            done = 0
            for batch in file.iter_batches(_rows(table), columns=["scores", "features"]):
                here = slice(done, done + len(batch))
                for name, into in (("scores", scores), ("features", features)):
                    flat = batch.column(name).flatten().to_numpy(zero_copy_only=False)
                    into[here] = flat.reshape(len(batch), into.shape[1])
                done += len(batch)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    return (paths, scores, features) if done == len(table) else None


def _rows(table: LabelTable) -> int:
    """How many images are written or read at a time."""
    return max(1, _ENTRIES // max(len(table.classes), 1))


def _table(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Room for scores: in memory, or a scratch file where they are many; for that alone torch is needed."""
    if 4 * shape[0] * shape[1] < _LARGE:
        return np.empty(shape, np.float32)
    from halflabel.system import memory

    found: NDArray[np.float32] = memory.scratch_zeros(shape, what=f"the scores of {shape[0]} images take").numpy()
    return found


def _write(
    run: RunFolder,
    table: LabelTable,
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
        pq.write_table(content, temporary, compression="zstd", row_group_size=_rows(table))
