"""Progress, messages and the deadline of long-running functions: one `Reporter` is passed down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Reporter:
    """Functions that a long-running function calls to report, and its deadline; by default nothing is reported."""

    progress: Callable[[int, int], None] = _ignore  # (images done, images in all)
    message: Callable[[str], None] = _ignore  # one line for the user
    callback: Any = None  # a halflabel.fitting.callbacks.Callback, for trainings
    deadline: float | None = None  # when to stop, on the clock of time.monotonic()
    fits: Callable[[int, int], None] = _ignore  # (heads fitted by the solver, heads in all)


SILENT = Reporter()
