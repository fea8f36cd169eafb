"""Comparisons and studies fit each method as `train` would on the same labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halflabel import metrics
from halflabel.comparison.bench import Bench
from halflabel.comparison.grid import Candidate, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.result import TaskScorer, Trials
from halflabel.comparison.sources import split_data
from halflabel.comparison.store import Store
from halflabel.errors import UserError
from halflabel.features.scoring import score_source
from halflabel.fitting import fit as fitting
from halflabel.fitting.config import Config
from halflabel.images.sources import Arrays
from halflabel.labels.table import UNCERTAIN, Table
from halflabel.runs.folder import RunFolder
from halflabel.runs.model import Model
from halflabel.runs.train import train

HALF = LabelMask.share(0.5)


@pytest.fixture(scope="session")
def auto(config: Config) -> Config:
    return dataclasses.replace(config, fit="auto")


@pytest.fixture(scope="session")
def quick(auto: Config) -> Config:
    """A solver that chooses nothing."""
    return dataclasses.replace(auto, l2_strength=1e-3, similar=False)


@pytest.mark.parametrize("method", ["bn-bce", "wan"])
def test_a_task_has_the_scores_of_a_run_of_train(
    digits: Any, auto: Config, cache: Path, tmp_path: Path, method: str
) -> None:
    bench = Bench(split_data(digits.table, digits.images), auto, cache, with_f1=True)
    candidate = bench.choose_fit(Candidate.parse(method))
    assert (candidate.fit, candidate.lr) == ("linear", 0.0)
    task = Task(candidate, HALF, 1, candidate.lr, candidate.options)
    outcome, logits = bench.train(task)

    data, run = bench.data, RunFolder(tmp_path / "run")
    config = Config(method=method, backbone="tiny", size=32, fit="auto", seed=1, device="cpu")
    train(HALF.apply(data.rest, 1), digits.images[torch.from_numpy(data.inside)], config, run)
    predictor = Model.open(run)
    test = Arrays(digits.images[torch.from_numpy(data.outside)], data.test.images, predictor.views)
    np.testing.assert_allclose(logits, score_source(predictor.network, test).logits.numpy(), rtol=1e-2, atol=2e-2)
    decided = metrics.precision_recall_f1(predictor.scores(test), data.test.dense(), predictor.thresholds)
    store = Store(tmp_path / "store")
    store.write(task, outcome, logits)
    measured = TaskScorer(bench, store)(task, outcome).metrics
    assert pytest.approx((decided.CF1, decided.OF1), abs=0.03) == (measured["CF1"], measured["OF1"])


def test_methods_that_need_batches_are_fitted_in_batches(digits: Any, auto: Config, cache: Path) -> None:
    bench = Bench(split_data(digits.table, digits.images), auto, cache)
    assert bench.choose_fit(Candidate.parse("wsabie")).fit == "batches"
    in_batches = dataclasses.replace(auto, fit="batches")
    assert Bench(bench.data, in_batches, cache).choose_fit(Candidate.parse("em")).fit == "batches"
    with pytest.raises(UserError, match="wsabie needs batches"):
        Bench(bench.data, dataclasses.replace(auto, fit="linear"), cache).choose_fit(Candidate.parse("wsabie"))


def test_no_image_is_held_out_and_no_rate_is_searched(
    go: Any, quick: Config, trained: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "fit_epochs", None)  # epochs of batches would call it
    fitted = go(names=["em"], config=quick, search="small", shares=[0.5], seeds=1)
    (row,) = fitted.rows
    assert (row.fit, row.lr, row.tried) == ("linear", 0.0, 4)
    assert {task.lr for task in trained} == {0.0}
    assert len({task.options for task in trained}) == 4
    assert row.known == pytest.approx(0.5, abs=0.01)
    assert 0 < row.OF1 <= 1
    assert fitted.table["strength"][0].as_py() > 0
    assert any(
        line.startswith("Trained: em: ") and line.endswith("by L-BFGS on vectors, backbone frozen.")
        for line in fitted.protocol
    )
    assert any("out-of-fold scores, on the labels known there" in line for line in fitted.protocol)
    assert not any("validation images (" in line for line in fitted.protocol)


def test_a_method_that_the_solver_cannot_fit_is_listed(go: Any, quick: Config) -> None:
    fitted = go(names=["bn-bce", "wsabie"], config=dataclasses.replace(quick, fit="linear"), shares=[0.5], seeds=1)
    assert [row.method for row in fitted.rows] == ["bn-bce"]
    ((labels, method, scope, reason),) = fitted.failures
    assert (labels, method, scope) == ("50 %", "wsabie", "all")
    assert "needs batches" in reason


def test_readings_of_uncertain_labels_are_compared(digits: Any, go: Callable[..., Trials], auto: Config) -> None:
    image, column, value = digits.table.entries()
    value = np.where((value > 0) & (np.arange(len(value)) % 3 == 0), UNCERTAIN, value)
    table = Table.from_entries(digits.table.images, digits.table.classes, image, column, value)
    readings = ("ignore", "present", "absent", "soft")
    result = go(names=[f"bce:uncertain={reading}" for reading in readings], table=table, config=auto, seeds=1)
    assert not result.failures
    assert {row.options["uncertain"] for row in result.rows} == set(readings)
    assert len({row.mAP for row in result.rows}) == 4
