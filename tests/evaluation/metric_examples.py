"""Scores and labels for the tests of metrics."""

from __future__ import annotations

import numpy as np

KINDS = ["sklearn", "voc07", "interpolated"]


def make(seed, images=60, classes=7, positive=0.3, unknown=0.3, decimals=None, dtype=np.float32):
    rng = np.random.default_rng(seed)
    scores = rng.random((images, classes))
    if decimals is not None:
        scores = scores.round(decimals)
    labels = np.where(rng.random((images, classes)) < positive, 1, -1).astype(np.int8)
    labels[rng.random((images, classes)) < unknown] = 0
    return scores.astype(dtype), labels


def close(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected, dtype=float), rtol=0, atol=tolerance)
