"""JobLock: one holder at a time, released when its process dies, and harmless where there are no locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halflabel.system.files import JobLock

fcntl = pytest.importorskip("fcntl")


def test_one_holder_at_a_time_and_the_file_is_removed(tmp_path: Path) -> None:
    first, second = (JobLock(tmp_path / "new" / "lock") for _ in range(2))
    assert first.try_acquire()
    assert first.is_held
    assert not second.try_acquire()
    assert not second.is_held
    second.release()
    assert first.path.exists()
    first.release()
    assert not first.path.exists()
    assert second.try_acquire()
    assert second.is_held
    second.release()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_lock_on_a_file_that_was_just_removed_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (JobLock(tmp_path / "lock") for _ in range(3))
    assert first.try_acquire()
    flock, calls = fcntl.flock, list[int]()

    def late(file: Any, operation: int) -> None:
        if not calls:
            calls.append(operation)
            first.release()  # after the file was opened, before it is locked
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert not second.try_acquire()  # the caller waits and tries again
    assert not second.is_held
    assert second.try_acquire()
    assert second.is_held
    assert not third.try_acquire()
    second.release()
    assert not second.path.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is inherited")
def test_forked_workers_do_not_keep_the_lock_of_a_killed_job(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from halflabel.system.files import JobLock; "
        "held = JobLock(Path(sys.argv[1])); assert held.try_acquire() and held.is_held; "
        "worker = os.fork(); os.write(1, f'{worker or \"worker\"}\\n'.encode()); time.sleep(60)"  # both print at once
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        lines = [job.stdout.readline().strip() for _ in range(2)]
        worker = int(next(line for line in lines if line != "worker"))
        try:
            lock = JobLock(tmp_path / "lock")
            assert not lock.try_acquire()
            job.kill()
            job.wait()
            assert lock.try_acquire()
            assert lock.is_held
            lock.release()
        finally:
            job.kill()
            os.kill(worker, signal.SIGKILL)


def test_without_locks_acquiring_succeeds_and_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lock = JobLock(tmp_path / "file" / "lock")
    assert lock.try_acquire()
    assert not lock.is_held
    lock.release()
