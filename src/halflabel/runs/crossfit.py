"""Fit the head of a run again without a part of the images, and score that part: no score is of a label it learned."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from halflabel.errors import NoReadableImage, UserError
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import Backbone
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import FOLDS
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features, Source, Subset, group_images, open_images
from halflabel.labels.split import assign_parts
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.system import memory
from halflabel.system.remote import local_path
from halflabel.system.reporter import SILENT, Reporter


def fit_again(
    run: RunFolder, images: Path, table: Table, *, folds: int | None = None, reporter: Reporter = SILENT
) -> Scores:
    """Fit the head of a run to the labels of `table` once per fold (5) of its images, without it, and score the fold.

    By the run's own solver, method and settings, on its cached features: those of the frozen backbone, or of the tuned
    one, which has seen all labels but the held-out ones.
    """
    folds = FOLDS if folds is None else folds
    if folds < 2:
        raise UserError(f"‹folds={folds}› holds nothing out", "use 2 or more")
    config = Config.from_dict(run.read_config())
    assembly = Assembly(config)
    backbone = assembly.make_backbone() if config.tune == "head" else Predictor.from_run(run).model.backbone
    assert isinstance(backbone, Backbone)
    views, trained_on = config.views(backbone), local_path(config.images) if config.images else None
    source = open_images(table.images, images, views, workers=config.workers, max_bad=1.0, also_in=trained_on)
    features = assembly.features(backbone, source, len(table.classes), run.cache, reporter=reporter)
    reporter.message(f"training the head in {folds} folds")
    groups = group_images(config.group, table.images, source)
    return cross_fit(features, table, config, folds=folds, backbone=backbone, groups=groups)


def cross_fit(
    features: Features,
    table: Table,
    config: Config,
    *,
    folds: int = FOLDS,
    backbone: Backbone | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Scores:
    """Fit the head of a configuration once per fold of the images, without that fold, and score the fold.

    `backbone` is the one that the features come from; None for features of any other kind. Images of one of the
    `groups` (N,) are in the same fold.
    """
    if len(table) < folds:
        raise UserError(f"{len(table)} images cannot be dealt into {folds} folds", "use fewer ‹folds›, or more images")
    assembly = Assembly(config)
    training = assembly.training_table(table)
    assembly.recipe.check_regime(training.stats.regime)
    if assembly.uses_solver(table):
        classifier = None if backbone is None else backbone.classifier
        solved = assembly.solve(features, table, classifier, groups=groups, folds=folds)
        return Scores(table.images, table.classes, solved.logits, solved.fold, "out-of-fold")
    channels = int(features.values.shape[1]) if backbone is None else backbone.channels
    fold = assign_parts(table, [1 / folds] * folds, groups=groups, seed=config.settings.seed)
    logits = memory.scratch_zeros(table.shape, what=f"the scores of {len(table)} images take")
    for number in range(folds):
        inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        model = _train(Subset(features, inside), training.subset(inside), assembly, channels)
        rows = torch.from_numpy(outside)
        try:
            logits[rows] = score_source(
                model, Subset(features, outside), device=assembly.device, batch_size=512, features=False
            ).logits
        except NoReadableImage:  # not an error in a single fold
            logits[rows] = torch.nan
    return Scores(table.images, table.classes, logits.numpy(), fold, "out-of-fold")


def _train(source: Source, table: Table, assembly: Assembly, channels: int) -> Model:
    method = assembly.make_method()
    model = Model(None, assembly.make_head(method, channels, len(table.classes)))
    # Without a validation part the last epoch counts: no label of the fold influences it.
    # A run that was trained on a GPU is scored on a machine without one too.
    settings = dataclasses.replace(assembly.config.settings, save_every=0, patience=0, device=assembly.device)
    fit(model, method, source, table, settings)
    return model
