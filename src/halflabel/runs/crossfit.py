"""Unbiased scores of a run's images: the score of a known label never comes from a model that was trained on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.errors import NoReadableImage, UserError
from halflabel.features.backbones import Backbone
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import FOLDS
from halflabel.fitting.loop import fit
from halflabel.images.decode import locate_images, none_found_error
from halflabel.images.pack.read import is_pack, open_pack
from halflabel.images.pack.source import open_packed_images
from halflabel.images.sources import Features, Images, Source, Subset, group_images, open_images
from halflabel.images.stored_features import holds_features
from halflabel.labels.names import Names
from halflabel.labels.split import assign_parts, group_numbers
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.system import memory
from halflabel.system.remote import local_folder, local_path
from halflabel.system.reporter import SILENT, Reporter


class Scores(NamedTuple):
    """Logits (N, C), NaN for unreadable images; and on which images they can be evaluated.

    Images of one `part` ≥ 0 were scored by a model that saw none of them; those of part −1 were trained on and are
    never used for evaluation. Memory: 4 bytes per entry, in a scratch file from 256 MB on, and 1 byte per image.
    """

    logits: NDArray[np.float32]
    part: NDArray[np.int8]
    protocol: str


def score_run(
    run: RunFolder,
    images: Path,
    table: Table,
    *,
    folds: int | None = None,
    reporter: Reporter = SILENT,
) -> Scores:
    """Scores of all images of `table` (its classes are the run's) for evaluation and filling.

    Frozen backbone: the out-of-fold scores that the run has stored; with `folds`, or where it has none, the head is
    fitted again by the run's own solver, method and settings, once per fold (5) without it, and scores that fold. So
    known and unknown entries of an image have scores of the same kind. Tuned backbone: the run's own scores, evaluated
    on its held-out images alone; with `folds` the head is trained again as above on the features of the tuned backbone,
    which has seen all labels but the held-out ones.
    """
    config = Config.from_dict(run.read_config())
    if folds is not None and folds < 2:
        raise UserError(f"--folds {folds} holds nothing out", "use 2 or more")
    if folds is None and (stored := run.read_out_of_fold(table.images)) is not None:
        return _complete(stored, run, config, images, table, reporter)
    count = folds or FOLDS
    if config.tune == "head":
        backbone = Assembly(config).make_backbone()
        protocol = f"{count}-fold cross-fitting: each image scored by a head that saw none of its labels"
    else:
        predictor = Predictor.from_run(run)
        if folds is None:
            return _held_out(run, predictor, images, table, reporter)
        assert isinstance(predictor.model.backbone, Backbone)
        backbone = predictor.model.backbone
        protocol = (
            f"{count}-fold cross-fitting of the head; the tuned backbone has seen the labels of its training images, "
            "so precision may be overestimated"
        )
    source = _files(table.images, images, config, config.views(backbone))
    features = run_features(run, config, backbone, source, len(table.classes), reporter=reporter)
    reporter.message(f"training the head in {count} folds")
    groups = group_images(config.group, table.images, source)
    return cross_fit(features, table, config, folds=count, protocol=protocol, backbone=backbone, groups=groups)


def run_features(
    run: RunFolder,
    config: Config,
    backbone: Backbone,
    source: Images,
    classes: int,
    *,
    train: bool = True,
    reporter: Reporter = SILENT,
) -> Features:
    """The features that the training of a run cached; where they are gone or stale they are computed again.

    With `train` there are also the strong views that its method asks for; scoring does without them.
    """
    return Assembly(config).features(backbone, source, classes, run.cache, for_training=train, reporter=reporter)


def cross_fit(
    features: Features,
    table: Table,
    config: Config,
    *,
    folds: int = FOLDS,
    protocol: str = "cross-fitting",
    backbone: Backbone | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Scores:
    """Fit the head of a configuration once per fold of the images, without that fold, and score the fold.

    `backbone` is the one that the features come from; None for features of any other kind. Images of one of the
    `groups` (N,) are in the same fold.
    """
    if len(table) < folds:
        raise UserError(f"{len(table)} images cannot be dealt into {folds} folds", "use fewer --folds, or more images")
    assembly = Assembly(config)
    training = assembly.training_table(table)
    assembly.recipe.check_regime(training.stats.regime)
    if assembly.uses_solver(table):
        classifier = None if backbone is None else backbone.classifier
        solved = assembly.solve(features, table, classifier, groups=groups, folds=folds)
        return Scores(solved.logits, solved.fold, protocol)
    channels = int(features.values.shape[1]) if backbone is None else backbone.channels
    part = assign_parts(table, [1 / folds] * folds, groups=groups, seed=config.settings.seed)
    logits = memory.scratch_zeros(table.shape, what=f"the scores of {len(table)} images take")
    for number in range(folds):
        inside, outside = np.flatnonzero(part != number), np.flatnonzero(part == number)
        model = _train(Subset(features, inside), training.subset(inside), assembly, channels)
        rows = torch.from_numpy(outside)
        try:
            logits[rows] = score_source(
                model, Subset(features, outside), device=assembly.device, batch_size=512, features=False
            ).logits
        except NoReadableImage:  # not an error in a single fold
            logits[rows] = torch.nan
    return Scores(logits.numpy(), part, protocol)


def _train(source: Source, table: Table, assembly: Assembly, channels: int) -> Model:
    method = assembly.make_method()
    model = Model(None, assembly.make_head(method, channels, len(table.classes)))
    # Without a validation part the last epoch counts: no label of the fold influences it.
    # A run that was trained on a GPU is scored on a machine without one too.
    settings = dataclasses.replace(assembly.config.settings, save_every=0, patience=0, device=assembly.device)
    fit(model, method, source, table, settings)
    return model


def _complete(
    stored: tuple[NDArray[np.float32], NDArray[np.int8]],
    run: RunFolder,
    config: Config,
    images: Path,
    table: Table,
    reporter: Reporter,
) -> Scores:
    """Return the out-of-fold scores of a run; images that the run never had are scored by its final model."""
    logits, fold = stored
    new = np.flatnonzero(fold < 0)
    if len(new):
        predictor = Predictor.from_run(run)
        source = _files(table.images.take(new), images, config, predictor.views)
        logits[new] = predictor.cached_logits(source, reporter).numpy()
        fold[new] = fold.max() + 1
    return Scores(logits, fold, "out-of-fold scores: each image scored by models that saw none of its labels")


def _held_out(run: RunFolder, predictor: Predictor, images: Path, table: Table, reporter: Reporter) -> Scores:
    # An image that the run never had was not trained on either.
    is_held_out = run.split_of(table.images) != 0
    if not is_held_out.any():
        raise UserError(
            "the run tuned its backbone on every image, so no label is left to evaluate its scores",
            "train with --held-out 0.2, or add --folds 5 to train the head again on parts of the images",
        )
    part = np.full(len(table), -1, np.int8)
    held = np.flatnonzero(is_held_out)
    few = min(FOLDS, len(held))
    source = _files(table.images, images, predictor.config, predictor.views)
    groups = group_numbers(group_images(predictor.config.group, table.images, source), len(table))[held]
    part[held] = assign_parts(table.subset(held), [1 / few] * few, groups=groups, seed=0) if few > 1 else 0
    logits = predictor.logits(source, reporter).numpy()
    protocol = (
        f"the tuned run's own scores, evaluated on the {len(held)} images it held out, which also chose its best "
        "epoch; scores of images it was trained on may be closer to 0 and 1"
    )
    return Scores(logits, part, protocol)


def _files(names: Names, folder: Path, config: Config, views: Any) -> Images:
    """The files of all images, in the folder given or else in the one that the run was trained on."""
    before = local_path(config.images) if config.images else local_folder(folder)
    folder = local_folder(folder)
    if is_pack(folder) and (before == folder or (open_pack(folder).find(names.array) >= 0).all()):
        return open_packed_images(names, folder, views, workers=config.workers, max_bad=1.0)
    if holds_features(folder):
        return open_images(names, folder, views, max_bad=1.0)
    listed = list(names)
    paths = locate_images(listed, folder)
    if before != folder and before.is_dir() and any(path is None for path in paths):
        paths = [path or other for path, other in zip(paths, locate_images(listed, before), strict=True)]
    if all(path is None for path in paths):
        raise none_found_error(listed, folder)
    files = [path if path is not None else folder / name for name, path in zip(listed, paths, strict=True)]
    return Images(files, names, views, workers=config.workers, max_bad=1.0)
