"""What a run says of every image of its labels, kept in RUN/scores.parquet so that pages start at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.files import replacing
from halflabel.labels.table import LabelTable
from halflabel.rng import bits
from halflabel.run import Run

if TYPE_CHECKING:
    from halflabel.data.sources import Features, Images
    from halflabel.experiment import Predictor

__all__ = ["Scored", "cross_scores", "score_run"]

Progress = Callable[[int, int], None]

_FILE = "scores.parquet"
_DIMENSIONS = 64  # of the features kept for telling near-duplicates: angles survive a random projection
_PROJECTION = 0x70726F6A


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the N images of a run's labels. Memory: 4·C + 128 bytes per image beside the labels."""

    table: LabelTable
    scores: NDArray[np.float32]  # (N, C) calibrated; NaN where an image cannot be read
    features: NDArray[np.float16]  # (N, 64) a random projection of the features
    held_out: NDArray[np.bool_]  # (N,) not trained on
    thresholds: NDArray[np.float64]  # (C,) from which a score says present
    folder: Path
    paths: list[str | None]  # relative to the folder

    def called_present(self) -> NDArray[np.bool_]:
        """(N, C): at or above the class's threshold."""
        with np.errstate(invalid="ignore"):
            called: NDArray[np.bool_] = self.scores >= self.thresholds
        return called


def score_run(run: Run, folder: Path, progress: Callable[[], Progress] | None = None) -> Scored:
    """Scores of a run for the images of its labels: from the file where weights and images are as they were, else new.

    Reading the file needs no torch; `progress` makes what is told (images done, of how many), where there is work.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder", "name the folder with the images")
    run.check_finished()
    table = run.read_labels()
    thresholds = _thresholds(run, table)
    kept = _read(run, table, folder)
    if kept is None:
        paths, scores, features = _compute(run, table, folder, None if progress is None else progress())
        _write(run, table, folder, paths, scores, features)
        kept = paths, scores, features
    paths, scores, features = kept
    return Scored(table, scores, features, _held_out(run, table), thresholds, folder, paths)


def cross_scores(
    run: Run, folder: Path, folds: int = 3, progress: Progress | None = None
) -> NDArray[np.float32] | None:
    """Scores (N, C) of each image by heads that never saw its labels: one head per fold, trained on the other folds.

    Method, settings and seed are the run's. None where the whole network was tuned: that takes as long as training.
    """
    import torch

    from halflabel.data.sources import Part
    from halflabel.experiment import Predictor
    from halflabel.heads import Model
    from halflabel.labels.split import assign
    from halflabel.method import recipe, seeded
    from halflabel.score import score
    from halflabel.train import fit

    predictor = Predictor(run)
    config = predictor.config
    if config.tune != "head" or folds < 2:
        return None
    table = run.read_labels()
    features = _features(run, predictor, _source(table, folder, predictor), progress)
    part = assign(table, (1 / folds,) * folds, seed=config.settings.seed)
    logits = torch.full(table.shape, torch.nan)
    settings = dataclasses.replace(config.settings, device=predictor.device)
    for fold in range(folds):
        inside, outside = np.flatnonzero(part != fold), np.flatnonzero(part == fold)
        method = seeded(settings.seed, partial(recipe(config.method).make, **config.options))
        make = partial(method.head, int(features.values.shape[1]), len(table.classes))
        head = seeded(settings.seed, make)
        model = Model(None, head)
        fit(model, method, Part(features, inside), table.subset(inside), settings)
        logits[torch.from_numpy(outside)] = score(model, Part(features, outside), device=predictor.device).logits
    scores: NDArray[np.float32] = predictor.platt.scores(logits).numpy()
    return scores


def _source(table: LabelTable, folder: Path, predictor: Predictor) -> Images:
    from halflabel.experiment import open_images

    return open_images(table.images, folder, predictor.views, dataclasses.replace(predictor.config, max_bad=1.0))


def _features(run: Run, predictor: Predictor, source: Images, progress: Progress | None) -> Features:
    """The features that training cached; where they are gone or stale, they are computed again."""
    from halflabel.backbones import Backbone
    from halflabel.data.cache import cache_features

    backbone = predictor.model.backbone
    assert isinstance(backbone, Backbone)
    return cache_features(
        backbone,
        source,
        run.folder.parent / "cache",
        maps=predictor.model.head.needs_maps,
        device=predictor.device,
        progress=progress,
    )


def _compute(
    run: Run, table: LabelTable, folder: Path, progress: Progress | None
) -> tuple[list[str | None], NDArray[np.float32], NDArray[np.float16]]:
    from halflabel.data.decode import locate
    from halflabel.experiment import Predictor
    from halflabel.heads import Model
    from halflabel.score import score

    predictor = Predictor(run)
    source = _source(table, folder, predictor)
    if predictor.config.tune == "head":
        cached = _features(run, predictor, source, progress)
        found = score(Model(None, predictor.model.head), cached, device=predictor.device, batch_size=256)
    else:
        mirror = predictor.config.mirror
        found = score(predictor.model, source, device=predictor.device, batch_size=32, mirror=mirror, progress=progress)
    wide = found.features.flatten(1).numpy()
    features = _project(wide)
    scores: NDArray[np.float32] = predictor.platt.scores(found.logits).numpy().astype(np.float32)
    paths = [_relative(path, folder) for path in locate(list(table.images), folder)]
    return paths, scores, features


def _project(wide: NDArray[Any]) -> NDArray[np.float16]:
    """(N, D) features to (N, 64), centred and of unit spread, by signs that are the same for ever."""
    mean = np.nanmean(wide, axis=0)
    signs = np.where(bits(_PROJECTION, np.arange(wide.shape[1])[:, None], np.arange(_DIMENSIONS)[None, :]) & 1, 1, -1)
    flat = (wide - mean) @ signs.astype(np.float32)
    spread = np.nanstd(flat)
    return np.asarray(flat / (spread if spread > 0 else 1), dtype=np.float16)


def _relative(path: Path | None, folder: Path) -> str | None:
    return None if path is None else path.relative_to(folder).as_posix()


def _held_out(run: Run, table: LabelTable) -> NDArray[np.bool_]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    held = np.zeros(len(table), bool)
    path = run / "split.parquet"
    if path.exists():
        found = pq.read_table(path).combine_chunks()
        names = found["image"].filter(pc.equal(found["part"].cast("string"), "validation")).combine_chunks()
        at = table.images.index(names)
        held[at[at >= 0]] = True
    return held


def _thresholds(run: Run, table: LabelTable) -> NDArray[np.float64]:
    if not (run / "thresholds.json").exists():
        return np.full(len(table.classes), 0.5)
    found = run.read_thresholds()
    cuts = [found.get(name) for name in table.classes]
    return np.array([0.5 if cut is None else cut for cut in cuts])


def _stamp(run: Run, folder: Path, paths: Sequence[str | None]) -> str:
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
    run: Run, table: LabelTable, folder: Path
) -> tuple[list[str | None], NDArray[np.float32], NDArray[np.float16]] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.read_table(run / _FILE).combine_chunks()
        about = json.loads(found.schema.metadata[b"halflabel"])
        paths: list[str | None] = found["path"].to_pylist()
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    if about.get("labels") != table.digest() or about.get("stamp") != _stamp(run, folder, paths):
        return None

    def block(name: str, kind: Any) -> NDArray[Any]:
        flat = found[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return np.asarray(flat, dtype=kind).reshape(len(found), -1)

    return paths, block("scores", np.float32), block("features", np.float16)


def _write(
    run: Run,
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
            "path": pa.array(paths, pa.string()),
            "scores": block(scores),
            "features": block(features.astype(np.float32)),
        }
    )
    about = {"labels": table.digest(), "stamp": _stamp(run, folder, paths), "classes": list(table.classes)}
    content = content.replace_schema_metadata({"halflabel": json.dumps(about)})
    with replacing(run / _FILE) as temporary:
        pq.write_table(content, temporary, compression="zstd")
