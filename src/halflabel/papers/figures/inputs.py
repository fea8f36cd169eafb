"""What the figures of a run are drawn from: its scores, its photos, its model and its method, each made when needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halflabel.errors import UserError
from halflabel.report.run_facts import Measured, gather
from halflabel.system.rng import bits, hash_names

if TYPE_CHECKING:
    from torch import Tensor

    from halflabel.data.sources import Images
    from halflabel.labels.table import LabelTable
    from halflabel.methods.base import Method
    from halflabel.models.heads import Model
    from halflabel.runs.folder import RunFolder
    from halflabel.runs.predictor import Predictor
    from halflabel.types import Sweep

__all__ = ["SAMPLE", "Material", "Progress", "Skip"]

SIDE = 320  # pixels of a photo's longer side
SAMPLE = 0x66696775  # what the random order of images is for

Progress = Callable[[int, int], None]


class Skip(Exception):
    """This run cannot have this figure, for the reason given."""


class Material:
    """A finished run; what takes long is made when it is first needed, and once.

    Of the training images at most `scan` are scored. `photos` is their folder, without which there are no photos, no
    features, and no scores but those of held-out images.
    """

    def __init__(self, run: RunFolder, photos: Path | None, *, scan: int, progress: Progress | None = None) -> None:
        self.run, self.photos, self.scan, self.progress = run, photos, scan, progress
        self.facts = gather(run)
        self._sources: dict[int, Images] = {}

    @cached_property
    def predictor(self) -> Predictor:
        from halflabel.runs.predictor import Predictor

        return Predictor(self.run)

    @cached_property
    def truth(self) -> LabelTable | None:
        """The hidden labels, in the order of the run's own."""
        found, table = self.run.read_truth(), self.facts.table
        if found is None:
            return None
        return found.subset(found.images.index(table.images.array), found.classes.index(table.classes.array))

    def source(self, of: Predictor | None = None) -> Images:
        """The photos, as the model of this run or of another one is shown them."""
        from halflabel.data.sources import open_images

        if self.photos is None:
            raise Skip("it needs the photos: name their folder after the run")
        of = self.predictor if of is None else of
        if id(of) not in self._sources:
            self._sources[id(of)] = open_images(
                self.facts.table.images, self.photos, of.views, workers=of.config.workers, max_bad=1.0
            )
        return self._sources[id(of)]

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """Places among the training images: all, or a random sample of them that their names alone decide."""
        names = self.facts.table.images.take(self.facts.training).array
        order = np.argsort(bits(SAMPLE, hash_names(names)), kind="stable")
        return np.sort(order[: self.scan])

    @cached_property
    def sweep(self) -> Sweep:
        """Logits and features of the sampled training images."""
        from halflabel.data.sources import Part
        from halflabel.models.scoring import score

        part = Part(self.source(), self.facts.training[self.sample])
        used = self.predictor
        return score(used.model, part, device=used.device, mirror=used.config.mirror, progress=self.progress)

    @cached_property
    def method(self) -> tuple[Method, Model]:
        """The method as the last checkpoint has it, and the trained model with the head that belongs to it."""
        from halflabel.methods.base import recipe, seeded
        from halflabel.models.heads import Model
        from halflabel.training import checkpoint

        used, config = self.predictor, self.predictor.config
        kept = checkpoint.newest(self.run.checkpoints / config.tune)
        if kept is None:
            raise Skip("what the method itself has learned lies in the run's checkpoints, and there are none")
        method = seeded(config.settings.seed, lambda: recipe(config.method).make(**config.options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what training had to say of so few epochs it has said
            method.plan(config.settings.epochs)
        try:
            method.start(self.facts.table.subset(self.facts.training))
        except UserError as error:  # a file that was there in training, say
            raise Skip(f"{config.method} cannot be started again: {error.message}") from None
        backbone: Any = used.model.backbone
        head = method.head(backbone.channels, len(used.classes))
        try:
            method.load_state_dict(checkpoint.restore("method", kept.tensors))
            head.load_state_dict(used.model.head.state_dict())
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"a checkpoint of {self.run.folder} is of another version ({reason})", "train again"
            ) from None
        model = Model(None if config.tune == "head" else backbone, head)
        return method.to(used.device), model.to(used.device)

    def read(self, number: int) -> NDArray[np.uint8] | None:
        """A photo in its own shape, made small: (H, W, 3); None where it cannot be read, or lies in a pack."""
        from PIL import Image

        from halflabel.data.decode import BadImage, read_image

        try:
            image = read_image(self.source().paths[number])
        except BadImage:
            return None
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        picture.thumbnail((SIDE, SIDE))
        return np.asarray(picture)

    def held_out(self) -> tuple[Measured, NDArray[np.int8], str]:
        """What was measured on held-out images, what is true of them, and how that is known."""
        found = self.facts.measured
        if found is None:
            raise Skip("no images were held out: train with --held-out 0.2")
        if self.truth is not None:
            return found, self.truth.rows(found.images), "by the hidden truth"
        return found, found.labels, "by their known labels"

    def logits(self, used: Predictor, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Plain views of some images (B, 3, S, S), as this model is shown them, and what it says of them (B, C)."""
        import torch

        (fetched,) = self.source(used).fetch([numbers], ("plain",))
        if len(fetched.images) < len(numbers):
            raise UserError("an image cannot be read any more", "leave the photos as they are, and start again")
        with torch.no_grad():
            found: Tensor = used.model(fetched.views[0].to(used.device)).logits.float().cpu()
        return fetched.views[0], found
