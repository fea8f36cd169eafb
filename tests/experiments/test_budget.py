"""The time budget: which tasks are started or left out, and the estimated time left."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.errors import UserError
from halflabel.experiments.bench import Trained
from halflabel.experiments.compare import _left_out
from halflabel.experiments.grid import Candidate, Grid, LabelMask, Outcome, Task
from halflabel.experiments.run_grid import run_grid
from halflabel.experiments.store import Store
from halflabel.labels.table import LabelTable
from halflabel.system.reporter import Reporter
from halflabel.training.callbacks import Callback, EpochLog
from halflabel.training.config import Config


class FakeBench:
    """Takes a fixed time per method on a clock of its own, and learns nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.now = seconds, 0.0
        self.config = Config(backbone="tiny")
        self.test = LabelTable.from_dense(np.ones((3, 10)))
        self.order: list[tuple[str, int]] = []

    def train(self, task: Task, **_: Any) -> Trained:
        took = self.seconds[task.candidate.name]
        self.now += took
        self.order.append((task.candidate.name, task.seed))
        return Trained(Outcome(select=0.5, wall=took), np.zeros((3, 10), np.float32))


def test_the_budget_starts_no_run_that_would_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench({"bce": 10.0, "em": 50.0, "asl": 10.0})
    monkeypatch.setattr(time, "monotonic", lambda: bench.now)
    grid = Grid(tuple(map(Candidate.parse, bench.seconds)), (LabelMask(),), 3, "none")
    store = Store(tmp_path)
    _, left = run_grid(grid, bench, store, Reporter(deadline=100.0))
    # 70 s for the first round, 80 s with bce's second seed; em's would end at 130 s.
    assert bench.order == [("bce", 0), ("em", 0), ("asl", 0), ("bce", 1)]
    assert [(task.candidate.name, task.seed) for task in left] == [
        ("em", 1), ("asl", 1), ("bce", 2), ("em", 2), ("asl", 2),
    ]  # fmt: skip
    assert [tuple(part) for part in _left_out(left)] == [
        ("all", "em", 2, (1, 2)), ("all", "asl", 2, (1, 2)), ("all", "bce", 1, (2,)),
    ]  # fmt: skip
    # The next call knows from the start what a run takes.
    _, left = run_grid(grid, bench, store, Reporter(deadline=bench.now + 45.0))
    assert len(left) == 5
    _, left = run_grid(grid, bench, store, Reporter())
    assert not left
    assert len(bench.order) == 9


def test_a_budget_that_is_spent_starts_nothing(go: Any, trained: list[Task]) -> None:
    fitted = go(budget=1e-9)
    assert not trained
    assert not fitted.rows
    assert sum(left.runs for left in fitted.left_out) == 4


def test_features_stop_when_the_budget_is_spent_and_go_on_next_time(
    go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[Task]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reports: list[int] = []

    def progress(done: int, total: int) -> None:
        reports.append(done)
        now[0] += 10.0

    fitted = go(budget=25.0, reporter=Reporter(progress), cache=tmp_path / "cache")
    assert reports == [16, 32, 48], "three batches of the images take the 25 s"
    assert not fitted.rows
    assert not fitted.failures
    assert sum(left.runs for left in fitted.left_out) == 4
    assert len(trained) == 1, "it was begun, and no other after it"
    assert fitted.waiting == (48, 60)
    reports.clear()
    fitted = go(budget=1e6, reporter=Reporter(progress), cache=tmp_path / "cache")
    assert reports[0] > 48, "what was computed before is kept"
    assert len(fitted.rows) == 2
    assert fitted.waiting is None


def test_a_run_under_way_is_given_up_at_the_end_of_an_epoch(
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
    again = go(out="other", budget=1e6, reporter=Reporter(callback=Recorder()))
    assert [row.seeds for row in again.rows] == [2, 2]
    assert not again.left_out
    assert not again.failures


def test_a_rate_by_which_nothing_is_learned_is_refused(go: Any, tmp_path: Path) -> None:
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="cannot be used"):
            go(lr=rate)
    assert not (tmp_path / "out").exists()


def test_time_left_is_told(tmp_path: Path) -> None:
    bench = FakeBench({"bce": 10.0, "em": 50.0})
    reports: list[Any] = []

    class Recorder(Callback):
        def on_task_start(self, task: Task, number: int, total: int, left: float | None) -> None:
            reports.append((number, total, left))

    grid = Grid(tuple(map(Candidate.parse, bench.seconds)), (LabelMask(),), 2, "none")
    run_grid(grid, bench, Store(tmp_path), Reporter(callback=Recorder()))
    assert reports == [(1, 4, None), (2, 4, 30.0), (3, 4, 60.0), (4, 4, 50.0)]
