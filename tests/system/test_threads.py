"""The number of threads follows the load of the machine."""

from __future__ import annotations

import os

import pytest

from halflabel.system.threads import free_cores


@pytest.mark.parametrize(
    ("machine", "allowed", "load", "expected"),
    [(2, 2, 0.0, 2), (2, 2, 1.0, 2), (2, 2, 2.6, 1), (16, 2, 14.0, 2), (16, 2, 40.0, 1), (16, 16, 10.0, 7)],
)
def test_free_cores_exclude_the_load_of_other_processes(
    machine: int, allowed: int, load: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(allowed)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load), raising=False)
    assert free_cores() == expected
