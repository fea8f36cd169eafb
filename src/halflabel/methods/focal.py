"""Focal loss: easy entries have little weight."""

from __future__ import annotations

from halflabel.methods.base import REGIMES, Method, NonNegative, Share, method
from halflabel.methods.parts.losses import Focal
from halflabel.methods.parts.relabel import AssumeNegative


@method(
    lr=3e-4,
    serves=REGIMES,
    paper="Lin 2017 (focal loss); Zhou 2022 (EM+APL), row Focal loss",
    tune={"gamma": (1.0, 2.0, 4.0)},
)
def focal(gamma: NonNegative = 2.0, alpha: Share = 0.0) -> Method:
    """Unknown taken as absent, with little weight for entries that the model already gets right.

    Use it if there are many classes and so many easy negatives. A missing positive is a hard negative, which gets a
    large weight: if many are missing, `em` or `asl` are better.

        L = 1/(B·C) (Σ_present −(1 − p)^γ log p + Σ_{absent or unknown} −p^γ log(1 − p))

    Options: gamma (γ; 0 gives `an`); alpha: weight α for present and 1 − α for absent, 0 = both 1.
    """
    return Method(Focal(gamma, alpha), AssumeNegative())
