"""Run the tasks of a grid one after the other, skipping finished ones, until a deadline."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from halflabel.comparison.bench import DataError, StopAtDeadline, Trained
from halflabel.comparison.grid import Grid, Outcome, Results, Task
from halflabel.comparison.sources import OutOfTime
from halflabel.comparison.store import Store, method_digest
from halflabel.errors import UserError
from halflabel.fitting.callbacks import Callback, CallbackList
from halflabel.system.format import counted
from halflabel.system.reporter import Reporter


def _expected_seconds(task: Task, outcomes: Results) -> float | None:
    """Return the mean seconds of finished tasks of the same pair, else of the same candidate, else of all; or None."""
    finished = [(other, outcome.wall) for other, outcome in outcomes.items() if not outcome.error]
    of_pair = [wall for other, wall in finished if other.pair == task.pair]
    of_candidate = [wall for other, wall in finished if other.candidate == task.candidate]
    seconds = of_pair or of_candidate or [wall for _, wall in finished]
    return sum(seconds) / len(seconds) if seconds else None


def _remaining_seconds(grid: Grid, outcomes: Results) -> float | None:
    """Return the expected seconds of the tasks that are not finished."""
    finished = Counter(task.pair for task in outcomes)
    total = 0.0
    for candidate, label_mask in grid.pairs:
        expected = _expected_seconds(Task(candidate, label_mask, 0, candidate.lr, candidate.options), outcomes)
        if expected is None:
            return None
        total += expected * max(grid.runs(candidate) - finished[candidate, label_mask], 0)
    return total


def run_grid(grid: Grid, bench: Any, store: Store, reporter: Reporter) -> tuple[dict[Task, Outcome], list[Task]]:
    """Run the tasks in order; return the outcomes, and the tasks that were not run because of the deadline.

    Stored runs are reused; a message says how many, and why others were not. A running task stops at the end of the
    epoch in which the deadline passes. The next call resumes it if the whole network is tuned, and restarts it
    otherwise.
    """
    for candidate, _ in grid.pairs:  # before a method can be edited while another one is trained
        method_digest(candidate.method)
    callback: Callback = reporter.callback or Callback()
    deadline = reporter.deadline
    outcomes: dict[Task, Outcome] = {}
    not_run: list[Task] = []
    shape = bench.test.shape
    stopped = False
    not_reused: Counter[str] = Counter()
    reused = 0
    for number, task in enumerate(grid.tasks(outcomes), 1):
        stored = store.read(task, shape)
        if stored.outcome is not None:
            outcomes[task] = stored.outcome
            reused += 1
            continue
        # After the first task that does not fit, no other is started, so that methods stay comparable.
        if deadline is not None and time.monotonic() + (_expected_seconds(task, outcomes) or 0.0) > deadline:
            stopped = True
        if stopped:
            not_run.append(task)
            continue
        if stored.reason:
            not_reused[stored.reason] += 1
            if not_reused[stored.reason] == 1:
                reporter.message(f"{task.describe()}: trained again, because {stored.reason}")
        callback.on_task_start(task, number, grid.total, _remaining_seconds(grid, outcomes))
        try:
            outcome, logits = _attempt(task, bench, store, callback, deadline)
        except OutOfTime:
            stopped = True
            not_run.append(task)
            continue
        store.write(task, outcome, logits)
        outcomes[task] = outcome
        callback.on_task_end(task, outcome, number, grid.total)
    if reused or not_reused:
        reasons = "; ".join(f"{number} because {reason}" for reason, number in not_reused.items())
        reporter.message(
            f"{counted(reused, 'finished run')} reused" + (f"; trained again: {reasons}" if reasons else "")
        )
    return outcomes, not_run


def _attempt(task: Task, bench: Any, store: Store, callback: Callback, deadline: float | None) -> tuple[Outcome, Any]:
    """Run a task; an error of this task becomes its outcome, so that the other tasks are run."""
    # A head on cached features is retrained in seconds; training of a whole network is resumed.
    folder = store.unfinished(task) if bench.config.tune == "all" else None
    started = time.perf_counter()
    try:
        trained: Trained = bench.train(task, callback=CallbackList(callback, StopAtDeadline(deadline)), folder=folder)
    except (OutOfTime, DataError):
        raise
    except UserError as error:
        reason = str(error)
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = f"out of memory ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    except OSError:
        raise  # a full disk or a missing folder concerns all tasks
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
    else:
        return trained
    return Outcome(error=reason, wall=time.perf_counter() - started), None
