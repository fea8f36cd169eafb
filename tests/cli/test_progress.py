"""Progress where the output is not a terminal."""

from __future__ import annotations

import time

import pytest

from halflabel.cli.progress import Bar


def test_lines_of_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with Bar("features") as bar:
        for done in range(0, 5001, 1000):
            bar(done, 5000)
            now[0] += 6.0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "features: 2 000 of 5 000, 167 images/s, 18 s left",
        "features: 4 000 of 5 000, 167 images/s, 6 s left",
    ]


def test_short_jobs_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("features") as bar:
        for done in range(10):
            bar(done, 9)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
