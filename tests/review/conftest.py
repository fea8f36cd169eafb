"""A run of generated digit scenes with made-up scores: what the review page needs, without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from halflabel.data.datasets.digits import CLASSES, scenes
from halflabel.labels import drop
from halflabel.labels.table import LabelTable
from halflabel.review import scores as kept
from halflabel.review.answers import AnswerStore
from halflabel.review.questions import choose_questions
from halflabel.review.scores import ScoredImages, cached_scores
from halflabel.review.session import ReviewSession
from halflabel.runs.folder import RunFolder
from halflabel.training.config import Config

N = 80


class Project(NamedTuple):
    run: RunFolder
    images: Path
    truth: np.ndarray

    def scored(self) -> ScoredImages:
        return cached_scores(self.run, self.images)

    def session(self, count: int = 40, **more) -> ReviewSession:
        scored = self.scored()
        asked = choose_questions(scored.scores, scored.table, scored.thresholds, count, control=0.5)
        return ReviewSession(scored, asked, AnswerStore(self.run / "answers.sqlite"), who="me", run="first", **more)


def build(folder: Path) -> Project:
    from PIL import Image

    samples = scenes(N)
    images = folder / "images"
    images.mkdir()
    names = [f"{name}.png" for name in samples.names]
    for name, picture in zip(names, samples.images, strict=True):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(images / name)
    table = drop.apply("single-positive", LabelTable.from_dense(samples.labels, names, CLASSES), seed=0)
    run = RunFolder(folder / "runs" / "first")
    run.start(table, Config(images=str(images)).as_dict())
    run.weights.write_bytes(b"no weights are needed where scores are kept")
    run.write_split(table.images.array, (np.arange(N) % 5 == 0).astype(np.int8))
    draw = np.random.default_rng(0)
    scores = 1 / (1 + np.exp(-(1.2 * samples.labels + draw.normal(size=samples.labels.shape))))
    features = draw.normal(size=(N, 64)).astype(np.float16)
    kept._write_cache(run, table, images, list(names), scores.astype(np.float32), features)
    return Project(run, images, samples.labels)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return build(tmp_path)
