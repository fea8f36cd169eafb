"""Cross-fitted scores: by folds, also with unreadable images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.errors import NoReadableImage
from halflabel.evaluation.scores import Scores
from halflabel.features.heads import Linear, Model
from halflabel.features.scoring import score_source
from halflabel.fitting import fit as fitting
from halflabel.fitting.config import Config
from halflabel.fitting.fit import Inputs
from halflabel.images.sources import Features
from halflabel.labels.labels import Labels
from halflabel.labels.table import Table
from halflabel.runs.crossfit import fit_again
from halflabel.runs.folder import RunFolder
from halflabel.runs.train import train
from halflabel.system.reporter import Reporter


def cross_fit(features: Features, table: Table, folds: int) -> Scores:
    inputs = Inputs(lambda: features, channels=features.values.shape[1])
    scores = fitting.fit(Labels.of(table), inputs, CONFIG, folds=folds).scores
    assert scores is not None
    return scores


CONFIG = Config(method="bn-bce", epochs=1, batch_size=16, lr=0.05, device="cpu")


def features_and_labels(images: int = 40) -> tuple[np.ndarray[Any, Any], Table]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(images, 5)).astype(np.float32)
    return values, Table.from_dense(np.where(values[:, :3] > 0, 1, -1))


@pytest.mark.parametrize("large", [1 << 28, 1], ids=["in memory", "in a scratch file"])
def test_unreadable_images_are_nan_also_where_they_are_a_whole_fold(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr("halflabel.system.memory._SCRATCH_BYTES", large)
    values, table = features_and_labels()
    part = np.repeat(np.arange(4, dtype=np.int8), 10)
    monkeypatch.setattr(fitting, "assign_parts", lambda *_, **__: part)
    bad = [3, *range(20, 30)]
    scored = cross_fit(Features(values, table.images, bad), table, folds=4)
    assert np.flatnonzero(np.isnan(scored.logits).all(1)).tolist() == bad
    assert np.isnan(scored.logits).sum() == 3 * len(bad)
    assert scored.fold is part


def test_source_without_readable_image_raises_no_readable_image() -> None:
    values, table = features_and_labels(4)
    model = Model(None, Linear(5, 3))
    with pytest.raises(NoReadableImage, match="not one image could be read"):
        score_source(model, Features(values, table.images, range(4)))


def test_a_solver_run_is_fitted_again_by_the_solver(
    pictures: Path, digits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, images = RunFolder(tmp_path / "run"), pictures / "images"
    settings = Config(device="cpu")
    train(digits, images, dataclasses.replace(settings, method="bn-bce", backbone="tiny", size=32, fit="auto"), run)
    stored = run.scores(digits.images, images)
    monkeypatch.setattr(fitting, "fit_epochs", None)  # epochs of batches would call it
    again = fit_again(run, images, Labels.of(digits))
    np.testing.assert_allclose(again.logits, stored.logits, atol=1e-4)
    assert np.array_equal(again.fold, stored.fold)
    assert set(fit_again(run, images, Labels.of(digits), folds=3).fold) == {0, 1, 2}


def test_training_images_of_a_tuned_run_are_scored_in_one_go(tuned: RunFolder, pictures: Path, digits: Table) -> None:
    reports: list[tuple[int, int]] = []
    scored = tuned.scores(digits.images, pictures / "images", Reporter(lambda *at: reports.append(at)))
    assert reports == [(32, 36), (36, 36)]  # the others are stored
    assert not np.isnan(scored.logits).any()
