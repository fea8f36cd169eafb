"""The bookkeeping of blocks, without Ray; tests/features/test_feature_blocks.py runs a cluster."""

from __future__ import annotations

import random
import sys

import pytest

from halflabel.errors import UserError
from halflabel.system import ray_engine
from halflabel.system.ray_engine import BlockQueue


def test_results_come_in_order_whatever_the_order_of_the_work() -> None:
    generator = random.Random(0)
    queue, running, results = BlockQueue(40, window=6), [], []
    while not queue.is_done:
        while (number := queue.take()) is not None:
            running.append(number)
        assert max(running) < queue.popped + 6
        number = running.pop(generator.randrange(len(running)))
        if generator.random() < 0.2:
            queue.put_back(number, "killed")
        else:
            queue.put(number, f"result {number}")
        results += queue.pop()
    assert results == [f"result {number}" for number in range(40)]
    assert queue.take() is None


def test_a_block_of_a_dead_worker_comes_first_and_not_for_ever() -> None:
    queue = BlockQueue(10, window=10)
    assert [queue.take() for _ in range(4)] == [0, 1, 2, 3]
    queue.put_back(2, "killed")
    queue.put_back(1, "killed")
    assert [queue.take() for _ in range(3)] == [1, 2, 4]
    for _ in range(2):
        queue.put_back(1, "killed")
    with pytest.raises(UserError, match=r"4 Ray workers died over block 1 .*killed"):
        queue.put_back(1, "killed")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'halflabel\[ray\]'"), ray_engine.use_engine("ray"):
        pass
    with pytest.raises(UserError, match="local or ray"), ray_engine.use_engine("spark"):
        pass
    with ray_engine.use_engine("local"):
        assert not ray_engine.is_active()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="torchrun"), ray_engine.use_engine("ray"):
        pass
