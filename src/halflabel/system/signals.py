"""Ctrl-C and SIGTERM, which may come at any moment: held back where half of something would be left.

Between `hold` and `release` a first signal waits; a second one is obeyed at once. Of several processes none waits: it
would wait for others that have ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from halflabel.system import distributed as processes

__all__ = ["Stopped", "forget", "heeded", "hold", "is_held", "release"]


class Stopped(KeyboardInterrupt):
    """A signal asked to stop: Ctrl-C, or SIGTERM as a machine that shuts down or a queue whose time is up sends it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _State:
    owner = 0  # the process that the signals are for; its workers inherit the handlers
    held = False
    asked: int | None = None  # the signal that has come


_state = _State()


def hold() -> None:
    """From here on something is half done."""
    _state.held = True


def release() -> None:
    """It is whole again: stop here if a signal came meanwhile."""
    _state.held = False
    if _state.asked is not None:
        raise Stopped(_state.asked)


def is_held() -> bool:
    """Whether something is half done."""
    return _state.held


def forget() -> None:
    """What was half done is given up: nothing is held back any more."""
    _state.held = False


@contextmanager
def heeded() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise `Stopped`, at once or at the next `release`. In the main thread; else do nothing."""
    if threading.current_thread() is not threading.main_thread():  # only there signals can be handled
        yield
        return
    _state.owner, _state.asked = os.getpid(), None
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # a job in the background has no Ctrl-C
            signal.signal(number, _obey)
    try:
        yield
    finally:
        _state.asked = None
        for number, handler in before.items():
            signal.signal(number, handler)


def _obey(number: int, frame: Any) -> None:
    if os.getpid() != _state.owner:
        # Ctrl-C reaches a whole group of processes: workers go on until the one they work for ends them.
        if number == signal.SIGINT:
            return
        raise Stopped(number)
    waits = _state.held and _state.asked is None and not processes.several()
    _state.asked = number
    if hasattr(signal, "SIGCHLD"):
        # Workers that the same signal has ended are no news: torch would raise an error for each, wherever this is.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not waits:
        raise Stopped(number)
