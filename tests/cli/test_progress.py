"""Progress where the output is not a terminal."""

from __future__ import annotations

import time

import pytest

from halflabel.cli.progress import Bar, TrainingBar


def test_lines_of_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with Bar("features") as bar:
        for done in range(0, 5001, 1000):
            bar(done, 5000)
            now[0] += 6.0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "features: 2,000 of 5,000, 167 images/s, 18 s left",
        "features: 4,000 of 5,000, 167 images/s, 6 s left",
    ]


def test_short_jobs_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("features") as bar:
        for done in range(10):
            bar(done, 9)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_the_line_of_an_epoch_has_plain_numbers_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    log = {"loss": 0.5, "images_per_s": 120.0, "pseudo_labels": 10370.0, "precision": 0.91234}
    with TrainingBar() as bar:
        for epoch in (1, 2, 3):
            bar.on_epoch_start(epoch, 3, 100)
            now[0] += 100.0
            bar.on_epoch_end({"epoch": epoch, **log})  # type: ignore[typeddict-item]
    first, second, third = " ".join(capsys.readouterr().out.split()).split("epoch ")[1:]
    assert "pseudo_labels 10,370 precision 0.9123 120 images/s about 3 min left" in first
    assert "about 100 s left" in second
    assert "left" not in third
