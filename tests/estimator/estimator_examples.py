"""A small classifier and labels for the tests of the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halflabel.estimator import HalfLabelClassifier

NAN = np.nan


def make(**parameters: Any) -> HalfLabelClassifier:
    return HalfLabelClassifier(**{"fit_by": "batches", "epochs": 4, "lr": 0.3, "device": "cpu", **parameters})


def half_labelled(seed: int = 0, known: float = 0.5) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """X (120, 4); labels of 3 classes in ±1 that X decides; the same with a share of them known and 0 elsewhere."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(120, 4))
    truth = np.where(X[:, :3] + 0.3 * random.normal(size=(120, 3)) > 0, 1, -1)
    return X, truth, np.where(random.random(truth.shape) < known, truth, 0)


# A linear fit


def solved(**parameters: Any) -> HalfLabelClassifier:
    return HalfLabelClassifier(device="cpu", **parameters)
