"""Scores of images: their logits, and which of them a model gave that had not seen the labels of the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from halflabel.labels.names import Names
from halflabel.system.memory import scratch_array

if TYPE_CHECKING:
    from halflabel.evaluation.calibration import Calibration

Kind = Literal["out-of-fold", "held-out", "trained-on"]
MEASURED_ON: dict[Kind, str] = {
    "out-of-fold": "out-of-fold scores",
    "held-out": "held-out images",
    "trained-on": "images that were trained on",
}
_BLOCK_ENTRIES = 1 << 20  # entries of an image block


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits (N, C), NaN for unreadable images, and the fold (N,) of each image.

    Images of one fold ≥ 0 were scored by a model that saw none of their labels; those of fold −1 were trained on and
    are never used for evaluation. Of the kind "out-of-fold", each fold has a model; else one model scored all.
    """

    images: Names
    classes: Names
    logits: NDArray[np.float32]
    fold: NDArray[np.int8]
    kind: Kind

    @classmethod
    def unknown(cls, images: Names, classes: Names) -> Scores:
        """Return the scores of images that nothing has scored: NaN, and fold −1."""
        logits = scratch_array((len(images), len(classes)))
        logits[:] = np.nan
        return cls(images, classes, logits, np.full(len(images), -1, np.int8), "trained-on")

    @classmethod
    def held_out(cls, images: Names, classes: Names, logits: NDArray[np.float32]) -> Scores:
        """Return logits (N, C) of images that no model was trained on."""
        return cls(images, classes, logits, np.zeros(len(images), np.int8), "held-out")

    @property
    def unbiased(self) -> NDArray[np.bool_]:
        """Which images (N,) were scored by a model that saw none of their labels."""
        return self.fold >= 0

    @property
    def description(self) -> str:
        """How the scores came about, in words."""
        if self.kind == "out-of-fold":
            return "out-of-fold scores: each image scored by models that saw none of its labels"
        return (
            f"the run's own scores, evaluated on the {np.count_nonzero(self.unbiased)} images it held out, which also "
            "chose its best epoch; scores of images it was trained on may be closer to 0 and 1"
        )

    def of(self, names: Names) -> Scores:
        """Return the scores in the order of `names`; NaN and fold −1 for images that have none."""
        index = self.images.index(names.array)
        result = Scores.unknown(names, self.classes)
        for rows in image_blocks(np.flatnonzero(index >= 0), len(self.classes)):
            result.logits[rows] = self.logits[index[rows]]
            result.fold[rows] = self.fold[index[rows]]
        return Scores(names, self.classes, result.logits, result.fold, self.kind)

    def probabilities(self, calibration: Calibration) -> NDArray[np.float32]:
        """Return the calibrated probabilities (N, C); NaN for unreadable images."""
        result = scratch_array(self.logits.shape)
        for rows in image_blocks(*self.logits.shape):
            result[rows] = calibration.scores(self.logits[rows])
        return result


def image_blocks(images: int | NDArray[np.int64], classes: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of so many images, or these numbers, in blocks: all entries would not fit into memory."""
    numbers = np.arange(images) if isinstance(images, int) else images
    step = max(1, _BLOCK_ENTRIES // max(classes, 1))
    for first in range(0, len(numbers), step):
        yield numbers[first : first + step]
