"""The budget: what is started, what is left out, and what is said about the time left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halflabel.compare import loop
from halflabel.compare.bench import Trained
from halflabel.compare.grid import Contender, Grid, Hiding, Outcome, Task
from halflabel.compare.store import Store
from halflabel.experiment import Config
from halflabel.labels.table import LabelTable


class FakeBench:
    """Takes a fixed time per method on a clock of its own, and learns nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.now = seconds, 0.0
        self.config = Config(backbone="tiny")
        self.test = LabelTable.from_dense(np.ones((3, 10)))
        self.order: list[tuple[str, int]] = []

    def train(self, task: Task, **_: Any) -> Trained:
        took = self.seconds[task.contender.name]
        self.now += took
        self.order.append((task.contender.name, task.seed))
        return Trained(Outcome(select=0.5, wall=took), np.zeros((3, 10), np.float32))


def test_the_budget_starts_no_run_that_would_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench({"bce": 10.0, "em": 50.0, "asl": 10.0})
    monkeypatch.setattr(loop.time, "monotonic", lambda: bench.now)
    grid = Grid(tuple(map(Contender.parse, bench.seconds)), (Hiding(),), 3, "none")
    store = Store(tmp_path)
    _, left = loop.run_grid(grid, bench, store, None, deadline=100.0)
    # 70 s for the first round, 80 s with bce's second seed; em's would end at 130 s.
    assert bench.order == [("bce", 0), ("em", 0), ("asl", 0), ("bce", 1)]
    assert [(task.contender.name, task.seed) for task in left] == [
        ("em", 1), ("asl", 1), ("bce", 2), ("em", 2), ("asl", 2),
    ]  # fmt: skip
    assert [tuple(part) for part in loop._left_out(left)] == [
        ("all", "em", 2, (1, 2)), ("all", "asl", 2, (1, 2)), ("all", "bce", 1, (2,)),
    ]  # fmt: skip
    # The next call knows from the start what a run takes.
    _, left = loop.run_grid(grid, bench, store, None, deadline=bench.now + 45.0)
    assert len(left) == 5
    _, left = loop.run_grid(grid, bench, store, None, deadline=None)
    assert not left
    assert len(bench.order) == 9


def test_a_budget_that_is_spent_starts_nothing(go: Any, trained: list[Task]) -> None:
    found = go(budget=1e-9)
    assert not trained
    assert not found.rows
    assert sum(left.runs for left in found.left_out) == 4


def test_features_stop_when_the_budget_is_spent_and_go_on_next_time(
    go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[Task]
) -> None:
    from halflabel.compare import bench

    now = [0.0]
    monkeypatch.setattr(bench.time, "monotonic", lambda: now[0])
    told: list[int] = []

    def progress(done: int, total: int) -> None:
        told.append(done)
        now[0] += 10.0

    found = go(budget=25.0, progress=progress, cache=tmp_path / "cache")
    assert told == [16, 32, 48], "three batches of the images take the 25 s"
    assert not found.rows
    assert not found.failures
    assert sum(left.runs for left in found.left_out) == 4
    assert len(trained) == 1, "it was begun, and no other after it"
    found = go(budget=1e6, progress=progress, cache=tmp_path / "cache")
    assert len(found.rows) == 2


def test_time_left_is_told(tmp_path: Path) -> None:
    bench = FakeBench({"bce": 10.0, "em": 50.0})
    told: list[Any] = []

    class Watch:
        def task_starts(self, task: Task, number: int, total: int, left: float | None) -> None:
            told.append((number, total, left))

        def epoch_ends(self, epoch: int, epochs: int) -> None:
            pass

        def task_ends(self, task: Task, outcome: Outcome, number: int, total: int) -> None:
            pass

    grid = Grid(tuple(map(Contender.parse, bench.seconds)), (Hiding(),), 2, "none")
    loop.run_grid(grid, bench, Store(tmp_path), Watch(), None)
    assert told == [(1, 4, None), (2, 4, 30.0), (3, 4, 60.0), (4, 4, 50.0)]
