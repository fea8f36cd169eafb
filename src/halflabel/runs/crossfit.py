"""Open the images of labels for a fit; fit the head of a run again without a part of them, and score that part."""

from __future__ import annotations

from pathlib import Path

from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import Backbone
from halflabel.features.combined import trained_part
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import FOLDS
from halflabel.fitting.fit import Inputs, Watch, fit
from halflabel.images.sources import group_images, open_images
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.system.remote import local_path
from halflabel.system.reporter import SILENT, Reporter


def open_inputs(
    config: Config,
    labels: Labels | Table,
    images: Path,
    cache: Path,
    reporter: Reporter = SILENT,
    *,
    backbone: Backbone | None = None,
    also_in: Path | None = None,
) -> Inputs:
    """Return the images of labels as inputs of a fit; features that the cache does not have are computed."""
    assembly = Assembly(config)
    backbone = assembly.make_backbone() if backbone is None else backbone
    views = config.views(backbone)
    source = open_images(labels.images, images, views, workers=config.workers, max_bad=1.0, also_in=also_in)
    features = assembly.features(backbone, source, len(labels.classes), cache, reporter=reporter)
    groups = group_images(config.group, labels.images, source)
    likeness = assembly.likeness(backbone, labels.classes, cache)
    return Inputs(lambda: features, backbone, groups=groups, likeness=likeness)


def fit_again(
    run: RunFolder, images: Path, labels: Labels, *, folds: int | None = None, reporter: Reporter = SILENT
) -> Scores:
    """Fit the head of a run to these labels once per fold (5) of their images, without it, and score the fold.

    By the run's own method and settings, on its cached features: those of the frozen backbone, or of the tuned one,
    which has seen all labels but the held-out ones.
    """
    folds = FOLDS if folds is None else folds
    if folds < 2:
        raise UserError(f"‹folds={folds}› holds nothing out", "use 2 or more")
    config = Config.from_dict(run.read_config())
    tuned = None if config.tune == "head" else trained_part(Model.open(run).network).backbone
    assert tuned is None or isinstance(tuned, Backbone)
    trained_on = local_path(config.images) if config.images else None
    inputs = open_inputs(config, labels, images, run.cache, reporter, backbone=tuned, also_in=trained_on)
    reporter.message(f"training the head in {folds} folds")
    scores = fit(labels, inputs, config, folds=folds, watch=Watch(reporter)).scores
    assert scores is not None
    return scores
