"""The process that fits the model of a live review, and its counterpart in the server.

`LiveLoop` sends answers to the process and applies what comes back to the session. The process has a low priority: the
page goes first. It ends when the server does, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from halflabel.errors import UserError
from halflabel.review.session import ReviewSession
from halflabel.runs.folder import RunFolder

EVERY = 20  # answers after which the model is fitted again
_NICENESS = 5
_ENDED = "the process that fits the model has ended"


@dataclass(frozen=True)
class LiveSetup:
    """What the process is started with."""

    run: Path
    images: Path
    precision: float = 0.95
    write_report: Callable[..., Any] | None = None  # of a finished run, with its photos


def live_hindrance(run: RunFolder) -> str | None:
    """Return why the model of a run cannot be fitted again during a review, or None if it can."""
    if run.score_kind == "out-of-fold" or not run.weights.exists():
        return None
    return "its model was not fitted by L-BFGS on frozen features"


class LiveLoop:
    """Fits the model in another process after every 20 answers and applies the result to a session; thread-safe."""

    def __init__(self, session: ReviewSession, setup: LiveSetup) -> None:
        self.session, self.setup = session, setup
        self.version = 0  # counts the fits
        self.error = ""
        self.history: list[dict[str, Any]] = []  # the quality after each fit
        self.latest: dict[str, Any] | None = None
        self.fitting = True  # the process fits once when it starts
        self.finish: dict[str, Any] | None = None  # the state of Finish, once it was asked for
        self._waiting = 0  # answers since the last fit began
        self._asked_again = False
        self._lock = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, setup), daemon=True)
        self._process.start()
        other.close()
        self._send("fit", session.entry_answers())
        threading.Thread(target=self._listen, daemon=True).start()

    def answers_changed(self, count: int) -> None:
        """Count stored answers; from the 20th on the model is fitted again."""
        with self._lock:
            self._waiting += count
        if self._waiting >= EVERY:
            self.fit_now()

    def fit_now(self) -> None:
        """Fit the model to all answers, or do so once the fit under way has ended."""
        with self._lock:
            if self.error:
                return
            if self.fitting:
                self._asked_again = True
                return
            self.fitting, self._asked_again, self._waiting = True, False, 0
        self._send("fit", self.session.entry_answers())

    def finish_now(self) -> None:
        """Train a new run on all answers, fill the unknown labels and write the report."""
        with self._lock:
            if self.error or (self.finish is not None and "result" not in self.finish):
                return
            self.finish = {"step": "waiting for the model"}
        self._send("finish", self.session.answers.place)

    def state(self, *, everything: bool = False) -> dict[str, Any]:
        """Return what the page shows; with `everything` also the history and the classes."""
        with self._lock:
            left = max(0, EVERY - self._waiting)
            about = {"version": self.version, "fitting": self.fitting, "left": left, "error": self.error}
            about |= {"finish": self.finish, "precision": self.setup.precision}
            if not everything:
                return about
            summary, per_class = dict(self.latest or {}), []
            if summary:
                per_class = summary.pop("per_class")
            names = zip(self.session.classes, per_class, strict=False)
            classes = [{"name": name, **values} for name, values in names]
            return about | {"quality": summary or None, "history": self.history, "classes": classes}

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._connection.close()
        self._process.terminate()
        self._process.join(5)

    def _send(self, kind: str, content: Any) -> None:
        try:
            self._connection.send((kind, content))
        except OSError:
            self._fail(_ENDED)

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.error, self.fitting = self.error or reason, False

    def _listen(self) -> None:
        while True:
            try:
                kind, content = self._connection.recv()
            except (EOFError, OSError):
                return self._fail(_ENDED)
            if kind == "update":
                self._apply(*content)
            elif kind == "error":
                self._fail(content)
            else:
                self.finish = content

    def _apply(self, scores: Any, queue: Any, quality: dict[str, Any]) -> None:
        self.session.apply_update(scores, quality["threshold"], queue)
        point = {name: value for name, value in quality.items() if name != "per_class"}
        with self._lock:
            self.latest, self.fitting = quality, False
            self.version += 1
            if not self.history or self.history[-1]["answers"] != point["answers"]:
                self.history.append(point)
            again = self._asked_again or self._waiting >= EVERY
        if again:
            self.fit_now()


def _work(connection: Connection, setup: LiveSetup) -> None:
    """In the process: fit the model whenever the server asks for it, until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the server, which ends this process
    with suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    try:
        from halflabel.review.live_questions import EntryAnswer
        from halflabel.review.live_run import finish_review, open_live_review

        def show(text: str) -> None:
            connection.send(("finish", {"step": text}))

        run = RunFolder(setup.run)
        review = open_live_review(run, setup.images, setup.precision)
        while True:
            kind, content = connection.recv()
            if kind == "fit":
                update = review.update([EntryAnswer(*item) for item in content])
                quality = update.quality._asdict() | {"seconds": update.seconds}
                connection.send(("update", (update.probabilities, update.queue, quality)))
                continue
            about: dict[str, Any] = {"precision": setup.precision, "write_report": setup.write_report, "step": show}
            try:
                result = finish_review(run, setup.images, content, **about)
            except UserError as error:
                result = {"error": f"{error}."}
            connection.send(("finish", {"step": "", "result": result}))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        with suppress(OSError):
            connection.send(("error", str(error) or type(error).__name__))
