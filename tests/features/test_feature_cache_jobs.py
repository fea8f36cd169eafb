"""Several jobs that need the same feature cache at once, on disks with, without and with faulty locks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_cache_examples import by_hand, pictures
from PIL import Image

from halflabel.features import vector_store
from halflabel.features.backbones import Backbone, build_backbone
from halflabel.features.feature_cache import cache_features
from halflabel.images.sources import Arrays, Features
from halflabel.images.views import Plain
from halflabel.labels.names import Names
from halflabel.system.files import JobLock
from halflabel.system.reporter import Reporter

JOB = Path(__file__).with_name("cache_job.py")
WAITING = "another job is computing these features: waiting"
N = 12

pytest.importorskip("fcntl")


def assert_right(values: Any) -> None:
    np.testing.assert_allclose(np.asarray(values), by_hand(n=N), rtol=2e-3, atol=2e-3)
    assert np.asarray(values).any(1).all()


def get(folder: Path, backbone: Backbone | None = None, **more: Any) -> Features:
    source = Arrays(pictures(n=N), Names.numbered(N), {"plain": Plain(32)})
    return cache_features(backbone or build_backbone("tiny", size=32), source, folder, batch_size=2, **more)


def count_computed(folder: Path) -> int:
    """The number of images that must be computed to get the cached features."""
    backbone, batch_sizes = build_backbone("tiny", size=32), list[int]()
    backbone.register_forward_pre_hook(lambda module, args: batch_sizes.append(len(args[0])))
    assert_right(get(folder, backbone).values)
    return sum(batch_sizes)


def files(folder: Path) -> list[str]:
    (place,) = folder.iterdir()
    return sorted(path.name for path in place.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the jobs are forked")
def test_jobs_wait_for_the_one_that_computes_and_survive_its_death(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number, picture in enumerate(pictures(n=N)):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(tmp_path / "images" / f"{number:02}.png")

    def read(name: str) -> str:
        path = tmp_path / name
        return path.read_text() if path.exists() else ""

    def until(true: Callable[[], object]) -> None:
        end = time.monotonic() + 300  # a busy machine takes its time to start three
        while not true():
            errors = [path.read_text() for path in tmp_path.glob("*.error")]
            assert not errors, errors[0]
            assert time.monotonic() < end
            time.sleep(0.02)

    jobs = subprocess.Popen(
        [sys.executable, str(JOB), str(tmp_path), "killed=4", "first=1000", "second=1000"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    names = ("killed", "first", "second")
    try:
        until(lambda: all(read(f"{name}.pid") for name in names))
        (tmp_path / "killed.go").touch()
        until(lambda: read("killed.at") == "4")
        for name in ("first", "second"):
            (tmp_path / f"{name}.go").touch()
        until(lambda: all(read(f"{name}.at") == "4" for name in names))  # they report the progress of the first one
        os.kill(int(read("killed.pid")), signal.SIGKILL)
        until(lambda: all("computed" in read(f"{name}.log") for name in ("first", "second")))
        jobs.wait(60)
    finally:
        if jobs.poll() is None:
            os.killpg(jobs.pid, signal.SIGKILL)
        jobs.wait()
    first, second = (np.load(tmp_path / f"{name}.npy") for name in ("first", "second"))
    assert_right(first)
    assert np.array_equal(first, second)
    messages = sorted(read(f"{name}.log").splitlines() for name in ("first", "second"))
    assert messages == [[WAITING, "computed 0 images"], [WAITING, f"computed {N - 4} images"]]
    assert read("killed.log") == ""
    assert files(tmp_path / "cache") == ["about.json", "blocks.jsonl", "values.npy"]


def test_ctrl_c_ends_a_waiting_job_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_store, "_POLL_SECONDS", 60.0)
    get(tmp_path)
    (place,) = tmp_path.iterdir()
    (place / "about.json").unlink()
    lock = JobLock(place / "building.lock")
    assert lock.try_acquire()
    messages: list[str] = []
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, reporter=Reporter(message=messages.append))
    timer.join()
    assert time.monotonic() - started < 30
    assert messages == [WAITING]
    assert not JobLock(lock.path).try_acquire(), "the other job still holds the lock"
    lock.release()
    assert files(tmp_path) == ["blocks.jsonl", "values.npy"]


def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def false_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


@pytest.mark.parametrize("disk", [no_flock, false_flock])
@pytest.mark.parametrize("ends", [True, False], ids=["whole", "broken off"])
def test_concurrent_jobs_without_working_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Callable[[Any], None], ends: bool
) -> None:
    disk(monkeypatch)
    messages: list[str] = []

    def run_second_job(done: int, total: int) -> None:
        """Run another job, which begins when the first has computed a third of the images."""
        if done == 4 and ends:
            assert_right(get(tmp_path).values)
        elif done == 4:
            with pytest.raises(RuntimeError, match="broken off"):
                get(tmp_path, reporter=Reporter(break_off))

    def break_off(done: int, total: int) -> None:
        if done >= 2:
            raise RuntimeError("broken off")

    assert_right(get(tmp_path, reporter=Reporter(run_second_job, messages.append)).values)
    assert messages == []
    assert count_computed(tmp_path) == 0
    assert set(files(tmp_path)) <= {"about.json", "blocks.jsonl", "values.npy"}


@pytest.mark.parametrize("has_locks", [True, False])
def test_only_the_holder_of_the_lock_removes_unfinished_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    get(tmp_path)
    (place,) = tmp_path.iterdir()
    (place / "about.json").unlink()
    (place / ".values.npy.tmp").write_bytes(b"half")
    if not has_locks:
        no_flock(monkeypatch)
    get(tmp_path)
    assert (place / ".values.npy.tmp").exists() is not has_locks
