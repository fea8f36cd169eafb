"""Honest scores of a run's images: those of a known label never come from a model that was trained on it."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.backbones import build
from halflabel.data.cache import cache_features
from halflabel.data.decode import Quarantine, locate
from halflabel.data.packed import open_packed
from halflabel.data.shards import is_pack, open_pack
from halflabel.data.sources import Features, Images, Part, Source
from halflabel.errors import UserError
from halflabel.experiment import Config, Predictor, make_views
from halflabel.heads import Model
from halflabel.labels.names import Names
from halflabel.labels.split import assign
from halflabel.labels.table import LabelTable
from halflabel.method import recipe, seeded
from halflabel.run import Run
from halflabel.score import score
from halflabel.train import fit

__all__ = ["Scores", "cross_fit", "score_run"]

_FOLDS = 5
_IN_MEMORY = 1 << 28  # entries; more go to a file that is gone when the scores are
_AT_ONCE = 1024  # images scored at a time

Progress = Callable[[int, int], None]


class Scores(NamedTuple):
    """Logits (N, C), NaN for unreadable images; and which images can judge them.

    Images of one `part` ≥ 0 were scored by a model that saw none of them; part −1 were trained on, and judge nothing.
    Memory: 4 bytes per entry, in a temporary file above 268 million of them, and 1 byte per image.
    """

    logits: NDArray[np.float32]
    part: NDArray[np.int8]
    protocol: str


def score_run(
    run: Run,
    images: Path,
    table: LabelTable,
    *,
    folds: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Scores:
    """Scores of all images of `table` (its classes are the run's) for judging and filling.

    Frozen backbone: the head is trained `folds` (5) times on cached features, each time without one part of the images
    and with the run's own method and settings, and scores that part. So known and unknown entries of an image have
    scores of the same kind. Tuned backbone: the run's own scores, judged on its held-out images alone; with `folds`
    the head is trained again as above on the features of the tuned backbone, which has seen all labels but the held-out
    ones.
    """
    config = Config.from_dict(run.read_config())
    if folds is not None and folds < 2:
        raise UserError(f"--folds {folds} holds nothing out", "use 2 or more")
    if config.tune == "head":
        backbone = build(config.backbone, weights=Path(config.weights) if config.weights else None, size=config.size)
        count = folds or _FOLDS
        protocol = f"{count}-fold cross-fitting: each image scored by a head that saw none of its labels"
    else:
        predictor = Predictor(run)
        if folds is None:
            return _held_out(run, predictor, images, table, progress)
        assert predictor.model.backbone is not None
        backbone, count = predictor.model.backbone, folds  # type: ignore[assignment]
        protocol = (
            f"{count}-fold cross-fitting of the head; the tuned backbone has seen the labels of its training images, "
            "so precision may be overestimated"
        )
    size = config.size or backbone.preprocess.size
    source = _files(table.images, images, config, make_views(size, config.resize, backbone))
    method = recipe(config.method).make(**config.options)
    needs_maps = method.head(backbone.channels, len(table.classes)).needs_maps
    device = _device(config)
    features = cache_features(
        backbone.to(device),
        source,
        run.folder.parent / "cache",
        maps=needs_maps,
        copies=config.copies if "strong" in method.views else 0,
        device=device,
        batch_size=128 if device == "cuda" else 16,
        progress=progress,
        say=say,
    )
    say(f"training the head {count} times")
    return cross_fit(features, table, config, folds=count, protocol=protocol, channels=backbone.channels)


def cross_fit(
    features: Features,
    table: LabelTable,
    config: Config,
    *,
    folds: int = _FOLDS,
    protocol: str = "cross-fitting",
    channels: int | None = None,
) -> Scores:
    """Train the head of a configuration once per fold of the images and score that fold."""
    if len(table) < folds:
        raise UserError(f"{len(table)} images cannot be dealt into {folds} folds", "use fewer --folds, or more images")
    how = recipe(config.method)
    how.check_regime(table.stats().regime)
    wide = int(features.values.shape[1]) if channels is None else channels
    part = assign(table, [1 / folds] * folds, seed=config.settings.seed)
    logits = _room(table.shape)
    for number in range(folds):
        inside = np.flatnonzero(part != number)
        model = _train(Part(features, inside), table.subset(inside), config, wide)
        for here in _pieces(np.flatnonzero(part == number)):
            with _unreadable_stay_nan():
                found = score(model, Part(features, here), device=_device(config), batch_size=512)
                logits[here] = found.logits.numpy()
    return Scores(logits, part, protocol)


def _train(source: Source, table: LabelTable, config: Config, channels: int) -> Model:
    method = seeded(config.settings.seed, lambda: recipe(config.method).make(**config.options))
    head = seeded(config.settings.seed, lambda: method.head(channels, len(table.classes)))
    model = Model(None, head)
    # Without a validation part the last epoch counts: no label of the fold has any say in it.
    fit(model, method, source, table, dataclasses.replace(config.settings, save_every=0, patience=0))
    return model


def _held_out(run: Run, predictor: Predictor, images: Path, table: LabelTable, progress: Progress | None) -> Scores:
    import pyarrow.parquet as pq

    split = pq.read_table(run / "split.parquet")
    kept = np.array(split["part"].to_pylist()) == "validation"
    names = Names(split["image"].combine_chunks())
    at = names.index(table.images.array)
    # An image that the run never had was not trained on either.
    judges = np.where(at < 0, True, kept[np.maximum(at, 0)])
    if not judges.any():
        raise UserError(
            "the run tuned its backbone on every image, so no label is left to judge its scores by",
            "train with --held-out 0.2, or add --folds 5 to train the head again on parts of the images",
        )
    part = np.full(len(table), -1, np.int8)
    held = np.flatnonzero(judges)
    few = min(_FOLDS, len(held))
    part[held] = assign(table.subset(held), [1 / few] * few, seed=0) if few > 1 else 0
    source = _files(table.images, images, predictor.config, predictor.views)
    logits = _room(table.shape)

    for here in _pieces(np.arange(len(table))):
        with _unreadable_stay_nan():
            logits[here] = predictor.logits(Part(source, here)).numpy()
        if progress is not None:
            progress(int(here[-1]) + 1, len(table))
    protocol = (
        f"the tuned run's own scores, judged on the {len(held)} images it held out, which also chose its best epoch; "
        "images it was trained on may be scored more boldly"
    )
    return Scores(logits, part, protocol)


def _pieces(index: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(index), _AT_ONCE):
        yield index[first : first + _AT_ONCE]


@contextmanager
def _unreadable_stay_nan() -> Iterator[None]:
    """Scoring refuses a source of which no image can be read; of a piece of a larger one that is no fault."""
    try:
        yield
    except UserError as error:
        if "not one image" not in error.message:
            raise


def _device(config: Config) -> str:
    return "cuda" if config.settings.device != "cpu" and torch.cuda.is_available() else "cpu"


def _room(shape: tuple[int, int]) -> NDArray[np.float32]:
    if math.prod(shape) <= _IN_MEMORY:
        return np.full(shape, np.nan, np.float32)
    with tempfile.NamedTemporaryFile(prefix="halflabel-fill-") as file:  # its name goes, its bytes stay while mapped
        found: NDArray[np.float32] = np.memmap(file, np.float32, "w+", shape=shape)
    found[:] = np.nan
    return found


def _files(names: Names, folder: Path, config: Config, views: Any) -> Images:
    """The files of all images, in the folder given or else in the one that the run was trained on."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder", "name the folder with the images")
    before = Path(config.images) if config.images else folder
    if is_pack(folder) and (before == folder or (open_pack(folder).find(names.array) >= 0).all()):
        return open_packed(names, folder, views, workers=config.workers, max_bad=1.0)
    listed = list(names)
    paths = locate(listed, folder)
    if before != folder and before.is_dir() and any(path is None for path in paths):
        paths = [path or other for path, other in zip(paths, locate(listed, before), strict=True)]
    if all(path is None for path in paths):
        raise UserError(
            f"none of the {len(listed)} images of the label table is in {folder} (first: {listed[0]!r})",
            "check the folder; names may leave out the ending, such as .jpg",
        )
    files = [path if path is not None else folder / name for name, path in zip(listed, paths, strict=True)]
    return Images(files, names, views, workers=config.workers, max_bad=1.0, quarantine=Quarantine())
