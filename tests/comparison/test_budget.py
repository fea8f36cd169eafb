"""The time budget: which tasks are started or left out, and the estimated time left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.comparison.bench import Trained, run_grid
from halflabel.comparison.grid import Candidate, Grid, Outcome, Task
from halflabel.comparison.label_mask import LabelMask
from halflabel.comparison.store import Store
from halflabel.fitting.callbacks import Callback, EpochLog
from halflabel.fitting.config import Config
from halflabel.labels.table import Table
from halflabel.system.reporter import Reporter


class FakeBench:
    """Takes a fixed time per method on a clock of its own, and learns nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.now = seconds, 0.0
        self.config = Config(backbone="tiny")
        self.test = Table.from_dense(np.ones((3, 10)))
        self.order: list[tuple[str, int]] = []

    def train(self, task: Task, **_: Any) -> Trained:
        duration = self.seconds[task.candidate.name]
        self.now += duration
        self.order.append((task.candidate.name, task.seed))
        return Trained(Outcome(select=0.5, wall=duration), np.zeros((3, 10), np.float32))


def test_no_run_starts_that_would_exceed_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench({"bce": 10.0, "em": 50.0, "asl": 10.0})
    monkeypatch.setattr(time, "monotonic", lambda: bench.now)
    grid = Grid(tuple(map(Candidate.parse, bench.seconds)), (LabelMask(),), 3, "none")
    store = Store(tmp_path)
    _, left_out = run_grid(grid, bench, store, Reporter(deadline=100.0))
    # 70 s for the first round, 80 s with bce's second seed; em's would end at 130 s.
    assert bench.order == [("bce", 0), ("em", 0), ("asl", 0), ("bce", 1)]
    assert [(task.candidate.name, task.seed) for task in left_out] == [
        ("em", 1), ("asl", 1), ("bce", 2), ("em", 2), ("asl", 2),
    ]  # fmt: skip
    # The next call knows from the start what a run takes.
    _, left_out = run_grid(grid, bench, store, Reporter(deadline=bench.now + 45.0))
    assert len(left_out) == 5
    _, left_out = run_grid(grid, bench, store, Reporter())
    assert not left_out
    assert len(bench.order) == 9


def test_a_spent_budget_starts_no_run(go: Any, trained: list[Task]) -> None:
    fitted = go(budget=1e-9)
    assert not trained
    assert not fitted.rows
    assert fitted.left_out == 4


def test_features_stop_with_the_budget_and_continue_next_time(
    go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[Task]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reports: list[int] = []

    def progress(done: int, total: int) -> None:
        reports.append(done)
        now[0] += 10.0

    messages: list[str] = []
    fitted = go(budget=25.0, reporter=Reporter(progress, messages.append), cache=tmp_path / "cache")
    assert reports == [16, 32, 48], "three batches of the images take the 25 s"
    assert not fitted.rows
    assert not fitted.failures
    assert fitted.left_out == 4
    assert len(trained) == 1, "it was started, and no other after it"
    assert any("48 of 60 images are done" in line for line in messages)
    reports.clear()
    fitted = go(budget=1e6, reporter=Reporter(progress), cache=tmp_path / "cache")
    assert reports[0] > 48, "features computed before are kept"
    assert len(fitted.rows) == 2


def test_a_run_stops_at_the_end_of_an_epoch_when_the_budget_is_spent(
    go: Any, monkeypatch: pytest.MonkeyPatch, trained: list[Task]
) -> None:
    now, reported = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Recorder(Callback):
        def on_task_start(self, task: Task, number: int, total: int, left: float | None) -> None:
            reported.append(number)

        def on_epoch_end(self, log: EpochLog) -> None:
            now[0] += 100.0

    fitted = go(
        budget=150.0, reporter=Reporter(callback=Recorder())
    )  # two epochs of 100 s each: the last is not cut off
    assert [row.seeds for row in fitted.rows] == [1]
    assert reported == [1]
    now[0] = 0.0
    go(out="other", budget=50.0, reporter=Reporter(callback=Recorder()))
    assert now[0] == 100.0, "one epoch, and no more"
    resumed = go(out="other", budget=1e6, reporter=Reporter(callback=Recorder()))
    assert [row.seeds for row in resumed.rows] == [2, 2]
    assert not resumed.left_out
    assert not resumed.failures


def test_time_left_is_reported(tmp_path: Path) -> None:
    bench = FakeBench({"bce": 10.0, "em": 50.0})
    reports: list[Any] = []

    class Recorder(Callback):
        def on_task_start(self, task: Task, number: int, total: int, left: float | None) -> None:
            reports.append((number, total, left))

    grid = Grid(tuple(map(Candidate.parse, bench.seconds)), (LabelMask(),), 2, "none")
    run_grid(grid, bench, Store(tmp_path), Reporter(callback=Recorder()))
    assert reports == [(1, 4, None), (2, 4, 30.0), (3, 4, 60.0), (4, 4, pytest.approx(70 / 3))]
