"""What the figures of a run are drawn from: scores, photos, model and method, each loaded on first use."""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halflabel.errors import UserError, error_summary, in_python
from halflabel.features.heads import Model
from halflabel.features.scoring import score_source
from halflabel.fitting import checkpoint
from halflabel.images.decode import BadImage, read_image
from halflabel.images.sources import Images, Subset, open_images
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, seeded
from halflabel.report.run_facts import HeldOutResults, read_run_facts
from halflabel.runs.folder import RunFolder
from halflabel.runs.predictor import Predictor
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits, hash_names
from halflabel.types import Sweep

PHOTO_SIDE = 320  # pixels of a photo's longer side
_SAMPLE_STREAM = 0x66696775  # random stream that orders the images


class FigureUnavailable(Exception):
    """This run cannot have this figure; the message is the reason."""


class FigureInputs:
    """A finished run. What takes long is loaded on first use and kept.

    At most `scan` training images are scored. `photos` is the image folder; without it there are no photos, no
    features, and no scores except those of held-out images.
    """

    def __init__(self, run: RunFolder, photos: Path | None, *, scan: int, reporter: Reporter = SILENT) -> None:
        self.run, self.photos, self.scan, self.reporter = run, photos, scan, reporter
        self.facts = read_run_facts(run)

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor.from_run(self.run)

    @cached_property
    def truth(self) -> Table | None:
        """The labels of `train --truth`, in the image and class order of the run's own labels."""
        truth, table = self.run.read_truth(), self.facts.table
        if truth is None:
            return None
        return truth.subset(truth.images.index(table.images.array), truth.classes.index(table.classes.array))

    @cached_property
    def source(self) -> Images:
        """The photos, preprocessed for this run's model."""
        if self.photos is None:
            raise FigureUnavailable("it needs the photos: name their folder after the run")
        workers = self.predictor.config.workers
        return open_images(self.facts.table.images, self.photos, self.predictor.views, workers=workers, max_bad=1.0)

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """Positions among the training images: all, or a random sample that depends only on the image names."""
        names = self.facts.table.images.take(self.facts.training).array
        order = np.argsort(bits(_SAMPLE_STREAM, hash_names(names)), kind="stable")
        return np.sort(order[: self.scan])

    @cached_property
    def sweep(self) -> Sweep:
        """Logits and features of the sampled training images."""
        part = Subset(self.source, self.facts.training[self.sample])
        predictor = self.predictor
        return score_source(
            predictor.model, part, device=predictor.device, mirror=predictor.config.mirror, reporter=self.reporter
        )

    @cached_property
    def method(self) -> Method:
        """The method with the state of the last checkpoint."""
        config = self.predictor.config
        newest = checkpoint.load_newest(self.run.checkpoints / config.tune)
        if newest is None:
            raise FigureUnavailable("what the method has learned is in the run's checkpoints, and the run has none")
        method = seeded(config.settings.seed, lambda: recipe(config.method).make(**config.options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training has already warned about the number of epochs
            method.plan(config.settings.epochs)
        try:
            model = self.predictor.model
            trained = Model(None, model.head) if config.tune == "head" else model
            method.start(self.facts.table.subset(self.facts.training), trained)
        except UserError as error:  # for example a file that existed during training
            raise FigureUnavailable(f"{config.method} cannot be started again: {in_python(error.message)}") from None
        try:
            checkpoint.load_state(method, newest["method"])
        except RuntimeError as error:
            reason = error_summary(error)
            raise UserError(
                f"a checkpoint of {self.run.folder} was written by another version ({reason})", "train again"
            ) from None
        return method.to(self.predictor.device)

    def read_photo(self, number: int) -> NDArray[np.uint8] | None:
        """A photo (H, W, 3), scaled down with its own aspect ratio; None if it is unreadable or lies in a pack."""
        try:
            image = read_image(self.source.paths[number])
        except BadImage:
            return None
        photo = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        photo.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
        return np.asarray(photo)

    def held_out(self) -> tuple[HeldOutResults, NDArray[np.int8], str]:
        """The measurements on held-out images, their labels (H, C), and in words where these labels come from."""
        measured = self.facts.held_out
        if measured is None:
            raise FigureUnavailable("no images were held out: train with ‹held_out=0.2›")
        if self.truth is not None:
            return measured, self.truth.rows(measured.images), "by the hidden truth"
        return measured, measured.labels, "by their known labels"
