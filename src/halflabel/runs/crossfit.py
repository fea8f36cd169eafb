"""Fit the head of a run again without a part of the images, and score that part: no score is of a label it learned."""

from __future__ import annotations

from pathlib import Path

from halflabel.errors import UserError
from halflabel.evaluation.scores import Scores
from halflabel.features.backbones import Backbone
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.crossfit import FOLDS
from halflabel.fitting.fit import Inputs, Watch, fit
from halflabel.images.sources import group_images, open_images
from halflabel.labels.labels import Labels
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.system.remote import local_path
from halflabel.system.reporter import SILENT, Reporter


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
    config, names = Config.from_dict(run.read_config()), labels.images
    assembly = Assembly(config)
    backbone = assembly.make_backbone() if config.tune == "head" else Predictor.from_run(run).model.backbone
    assert isinstance(backbone, Backbone)
    views, trained_on = config.views(backbone), local_path(config.images) if config.images else None
    source = open_images(names, images, views, workers=config.workers, max_bad=1.0, also_in=trained_on)
    features = assembly.features(backbone, source, len(labels.classes), run.cache, reporter=reporter)
    reporter.message(f"training the head in {folds} folds")
    groups, likeness = group_images(config.group, names, source), assembly.likeness(backbone, labels.classes, run.cache)
    inputs = Inputs(lambda: features, backbone, groups=groups, likeness=likeness)
    scores = fit(labels, inputs, config, folds=folds, watch=Watch(reporter)).scores
    assert scores is not None
    return scores
