"""Scores and labels made up so that the truth is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from halflabel.evaluation.scores import Scores
from halflabel.labels.names import Names
from halflabel.labels.table import Table


class World(NamedTuple):
    """Logits that a model gave, what is true, and what is known of it."""

    scores: Scores
    truth: np.ndarray
    table: Table


def make_world(
    seed: int = 0, images: int = 4000, classes: int = 6, known: float = 0.15, sharp: float = 1.6, bias: float = 1.0
) -> World:
    """Truth is drawn from σ(z); the model reports a distorted z. Positives are known `bias` times as often."""
    rng = np.random.default_rng(seed)
    z = sharp * rng.normal(0, 2.2, (images, classes)) + np.linspace(-3.5, -0.5, classes)
    truth = np.where(rng.random(z.shape) < 1 / (1 + np.exp(-z)), 1, -1).astype(np.int8)
    chance = known * np.where(truth > 0, bias, 1.0)
    labels = truth * (rng.random(z.shape) < chance)
    part = rng.integers(0, 5, images).astype(np.int8)
    return World(made_up((0.5 * z + 1).astype(np.float32), part), truth, Table.from_dense(labels))


def made_up(logits: np.ndarray, fold: np.ndarray) -> Scores:
    """Out-of-fold scores of images and classes without names."""
    images, classes = map(Names.numbered, logits.shape)
    return Scores(images, classes, logits, fold.astype(np.int8), "out-of-fold")
