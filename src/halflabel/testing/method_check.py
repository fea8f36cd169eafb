"""`halflabel methods NAME --check`: the contract of one method, with a result for each promise.

As a program, `python -m halflabel.testing.method_check NAME FOLDER` is one of the two processes that train together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from halflabel.errors import UserError, error_summary, in_python
from halflabel.methods.base import Recipe, recipe
from halflabel.system import distributed
from halflabel.system.sockets import open_socket
from halflabel.testing.method_contract import CHECKS, ONCE, Broken, check_page, require, train_briefly

_PROCESSES = 2
_TIMEOUT = 300  # seconds for the two processes
_VIEWS = "pass batch.views to the model only; for another model use model.run(other, view), which gathers all rows"


class CheckResult(NamedTuple):
    """One promise of a method: whether it holds; if not, what is wrong and how to mend it."""

    check: str
    holds: bool | None  # None: the method declares that it does not support this
    detail: str
    fix: str
    seconds: float


def check_method(method: Recipe) -> Iterator[CheckResult]:
    """Check everything that training, resuming, several processes and export need of a method."""
    with TemporaryDirectory() as name, _two_processes(method, Path(name)) as compare:
        yield _run("page and options", method, check_page)
        for check, function in CHECKS.items():
            yield _run(check, method, function, method.serves)
        for check, function in ONCE.items():
            yield _run(check, method, function, method.serves[-1:])
        yield _run("two processes", method, compare)


def _run(name: str, method: Recipe, check: Callable[..., None], regimes: Sequence[str] | None = None) -> CheckResult:
    started = time.perf_counter()
    if name == "export to ONNX" and method.no_onnx:
        return CheckResult(name, None, f"export to ONNX is not supported: {method.no_onnx}", "", 0.0)
    problem = fix = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the check of the state reports those that matter
            for arguments in [()] if regimes is None else [(regime,) for regime in regimes]:
                check(method, *arguments)
    except Broken as error:
        problem, fix = error.problem, error.fix
    except UserError as error:
        problem, fix = in_python(error.message), in_python(error.fix)
    except Exception as error:  # any error of the method's own code
        file = method.build.__code__.co_filename
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        problem = f"{type(error).__name__}: {error_summary(error)}"
        fix = f"see {file}, line {lines[-1]}" if lines else f"see the parts of {file}"
    return CheckResult(name, not problem, problem, fix, time.perf_counter() - started)


@contextmanager
def _two_processes(method: Recipe, folder: Path) -> Iterator[Callable[[Recipe], None]]:
    """Train in two processes while other checks run; gives the check that they have trained as one does."""
    with open_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": f"{_PROCESSES}", "LOCAL_WORLD_SIZE": f"{_PROCESSES}", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": f"{port}", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "-m", __name__, method.name, str(folder)]
    jobs = []
    for rank in range(_PROCESSES):
        environment = {**os.environ, **common, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
        with open(folder / f"{rank}.txt", "wb") as errors:
            jobs.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=errors))
    try:
        yield partial(_compare, jobs, folder)
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def _compare(jobs: Sequence[subprocess.Popen[bytes]], folder: Path, method: Recipe) -> None:
    for rank, job in enumerate(jobs):
        try:
            job.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            problem = f"the processes wait for each other after {_TIMEOUT} seconds"
            raise Broken(problem, "call the model in every step, and equally often in every process") from None
        lines = (folder / f"{rank}.txt").read_text().strip().splitlines() or ["it gives no reason"]
        require(result_path(folder, rank).is_file(), f"a process fails: {lines[-1]}", _VIEWS)
    expected = train_briefly(method)
    for rank in range(_PROCESSES):
        actual = torch.load(result_path(folder, rank), weights_only=True)
        for name, value in expected.items():
            is_same = torch.allclose(actual[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)
            require(is_same, f"{name} differs from the training in one process", _VIEWS)


def result_path(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.pt"


def main(name: str, folder: Path) -> None:
    """Train as one of several processes; write the result to the folder."""
    distributed.initialize()
    torch.save(train_briefly(recipe(name)), result_path(folder, distributed.rank()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
