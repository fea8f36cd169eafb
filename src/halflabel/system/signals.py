"""Ctrl-C and SIGTERM: deferred while an interruption would leave something half done.

Between `defer_signals` and `release_signals` a first signal waits; a second one is obeyed at once. With several
processes signals are never deferred: the process would wait for others that have ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from halflabel.system import distributed


class Stopped(KeyboardInterrupt):
    """A signal asked the program to stop: Ctrl-C, or SIGTERM from a shutdown or a batch queue."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_owner = 0  # id of the process that handles the signals; its workers inherit the handlers
_deferred = False
_received: int | None = None  # number of the signal that has arrived


def defer_signals() -> None:
    """Defer signals until `release_signals()`."""
    global _deferred
    _deferred = True


def release_signals() -> None:
    """Stop deferring signals; raise `Stopped` if one has arrived."""
    cancel_deferral()
    if _received is not None:
        raise Stopped(_received)


def are_deferred() -> bool:
    return _deferred


def cancel_deferral() -> None:
    """Stop deferring signals without raising: the half-done work is given up."""
    global _deferred
    _deferred = False


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise `Stopped`, at once or at the next `release_signals`; main thread only."""
    global _owner, _received
    if threading.current_thread() is not threading.main_thread():  # other threads cannot handle signals
        yield
        return
    _owner, _received = os.getpid(), None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if number == signal.SIGTERM or handler is not signal.SIG_IGN:  # background jobs ignore Ctrl-C
            signal.signal(number, _handle)
    try:
        yield
    finally:
        _received = None
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _handle(number: int, frame: Any) -> None:
    global _received
    if os.getpid() != _owner:
        # Ctrl-C reaches the whole process group: workers continue until their parent ends them.
        if number == signal.SIGINT:
            return
        raise Stopped(number)
    waits = _deferred and _received is None and not distributed.is_distributed()
    _received = number
    if hasattr(signal, "SIGCHLD"):
        # torch would raise an error, anywhere, for each worker that the same signal has ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not waits:
        raise Stopped(number)
