"""What is refused before Ray is started; tests/features/test_feature_blocks.py runs a cluster."""

from __future__ import annotations

import socket
import sys

import pytest

from halflabel.errors import UserError
from halflabel.system import ray_engine


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


class WaitingPool:
    """A pool whose result comes after some timeouts."""

    def __init__(self, timeouts: int) -> None:
        self.timeouts = timeouts

    def get_next(self, timeout: float) -> str:
        self.timeouts -= 1
        if self.timeouts < 0:
            return "result"
        raise TimeoutError


def test_a_cluster_whose_head_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_POLL_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = head.getsockname()
        assert ray_engine._next_result(WaitingPool(20), address) == "result"
    assert ray_engine._next_result(WaitingPool(2), address) == "result"
    with pytest.raises(UserError, match="the head of the Ray cluster does not answer"):
        ray_engine._next_result(WaitingPool(20), address)
