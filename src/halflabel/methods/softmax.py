"""Softmax cross-entropy, for data with one label per image."""

from __future__ import annotations

from torch import Tensor

from halflabel.methods.base import Method, method
from halflabel.methods.parts.losses import Loss, over_images
from halflabel.types import Targets, at_least_float32


@method(lr=3e-4, serves=("full", "single-positive"), paper="common baseline; Cevikalp 2019 (RML), row Softmax")
def softmax() -> Method:
    """Cross-entropy over all classes, for data where exactly one class is present in each image.

    The classes of an image compete, so it fits single-label data only: with several positives each gets an equal share
    of the probability, and none can be near 1. All other classes, absent or unknown, are in the denominator;
    images without a known positive are left out.

        L = 1/B Σ_i mean over positives j of (log Σ_k exp(x_k) − x_j)

    Use the scores to rank the classes of an image, or measure accuracy; as probabilities of "present" they need the
    calibration that a run learns.
    """
    return Method(Softmax(), reduce=over_images)


class Softmax(Loss):
    """pos_j / Σ pos · (log Σ_k exp(x_k) − x_j): the mean over the positives of an image, each in its column."""

    def forward(self, logits: Tensor, targets: Targets) -> Tensor:
        x = at_least_float32(logits)
        pos = targets.pos.to(x.dtype)
        share = pos / pos.sum(1, keepdim=True).masked_fill(~(pos > 0).any(1, keepdim=True), 1)
        return -share * x.log_softmax(1)
