"""Open a live review: the features, labels and settings of a run, or of a review that starts without any label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from halflabel.features.backbone_names import DEFAULT
from halflabel.fitting.assembly import Assembly
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs
from halflabel.images.sources import group_images, open_images
from halflabel.labels.table import Table
from halflabel.questions.choose import asked_entries
from halflabel.review.live import LiveModel, LiveReview
from halflabel.runs.folder import RunFolder
from halflabel.runs.from_nothing import FROM_NOTHING, without_labels
from halflabel.system.files import absolute_path


def start_without_labels(folder: Path, images: Path, classes: Sequence[str], backbone: str | None) -> RunFolder:
    """Start a run folder with the photos of a folder and these classes, and no label."""
    run = RunFolder.create(folder)
    labels = without_labels(images, classes)
    run.folder.mkdir(parents=True, exist_ok=True)
    run.start(labels, Config(method=FROM_NOTHING, images=absolute_path(images), backbone=backbone or DEFAULT).as_dict())
    return run


def open_live_review(run: RunFolder, images: Path, precision: float) -> LiveReview:
    """Load features and labels of a run; features that are not in the cache are computed."""
    config = Config.from_dict(run.read_config())
    assembly = Assembly(config)
    labels = run.read_rows()
    table = labels.training
    backbone = assembly.make_backbone()
    views = config.views(backbone)
    source = open_images(table.images, images, views, workers=config.workers, max_bad=1.0)
    features = assembly.features(backbone, source, len(table.classes), run.cache, for_training=False)
    groups, likeness = (
        group_images(config.group, table.images, source),
        assembly.likeness(backbone, table.classes, run.cache),
    )
    inputs = Inputs(lambda: features, backbone, groups=groups, likeness=likeness)
    return LiveReview(
        LiveModel(inputs, config, from_nothing=not table.known),
        labels,
        precision=precision,
        positives_per_image=config.positives_per_image,
        seed=config.settings.seed,
        fill_weights=_fill_weights(run, table),
    )


def _fill_weights(run: RunFolder, table: Table) -> dict[tuple[int, int], float]:
    """Return the inclusion weights of the random questions of `fill`, by image and class index.

    They are a sample of the likeliest entries only: their answers do not measure the model on the others.
    """
    asked = asked_entries(run.control) if run.control.exists() else {}
    image = table.images.index([name for name, _ in asked]).tolist()
    column = table.classes.index([name for _, name in asked]).tolist()
    return dict(zip(zip(image, column, strict=True), asked.values(), strict=True))
