"""The process that fits the model of a live review, and its counterpart in the server.

`LiveLoop` sends answers to the process and applies what comes back to the session. The process has a low priority: the
page goes first. It ends when the server does, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from halflabel.errors import UserError
from halflabel.review.session import ReviewSession
from halflabel.runs.folder import RunFolder

EVERY = 20  # answers after which the model is fitted again
_NICENESS = 5


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

    def __init__(self, session: ReviewSession, setup: LiveSetup, every: int = EVERY) -> None:
        self.session, self.setup, self.every = session, setup, every
        self.version = 0  # counts the fits
        self.error = ""
        self.history = _read_history(self._history_file)
        self.latest: dict[str, Any] | None = None
        self.fitting = True  # the process fits once when it starts
        self.finish: dict[str, Any] | None = None  # the state of Finish, once it was asked for
        self._waiting = 0  # answers since the last fit began
        self._asked_again = False
        self._lock = threading.Lock()
        self._scratch = Path(tempfile.mkdtemp(prefix="halflabel-live-"))
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, setup, self._scratch), daemon=True)
        self._process.start()
        other.close()
        self._send("fit", session.entry_answers())
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def _history_file(self) -> Path:
        return RunFolder(self.setup.run).review_history

    def answers_changed(self, count: int) -> None:
        """Count stored answers; from the 20th on the model is fitted again."""
        with self._lock:
            self._waiting += count
        if self._waiting >= self.every:
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
            latest, left = self.latest, max(0, self.every - self._waiting)
            about = {"version": self.version, "fitting": self.fitting, "left": left, "error": self.error}
            about |= {"finish": self.finish, "precision": self.setup.precision}
            if not everything:
                return about
            per_class = latest["per_class"] if latest is not None else []
            names = zip(self.session.classes, per_class, strict=False)
            classes = [{"name": name, **values} for name, values in names]
            summary = {name: value for name, value in (latest or {}).items() if name != "per_class"}
            return about | {"quality": summary or None, "history": self.history, "classes": classes}

    def close(self) -> None:
        """End the process and remove its files."""
        with contextlib.suppress(OSError):
            self._connection.close()
        self._process.terminate()
        self._process.join(5)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _send(self, kind: str, content: Any) -> None:
        try:
            self._connection.send((kind, content))
        except OSError:
            self._fail("the process that fits the model has ended")

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.error, self.fitting = self.error or reason, False

    def _listen(self) -> None:
        while True:
            try:
                kind, content = self._connection.recv()
            except (EOFError, OSError):
                return self._fail("the process that fits the model has ended")
            if kind == "update":
                self._apply(*content)
            elif kind == "error":
                self._fail(content)
            elif kind == "step":
                self.finish = {"step": content}
            else:
                self.finish = {"step": "", "result": content}

    def _apply(self, path: str, queue: Any, quality: dict[str, Any]) -> None:
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
        os.unlink(path)  # the mapping stays valid
        self.session.apply_update(scores, quality["threshold"], queue)
        point = {name: value for name, value in quality.items() if name != "per_class"}
        with self._lock:
            self.latest, self.fitting = quality, False
            self.version += 1
            is_new = not self.history or self.history[-1]["answers"] != point["answers"]
            if is_new:
                self.history.append(point)
            again = self._asked_again or self._waiting >= self.every
        if is_new:
            with contextlib.suppress(OSError), self._history_file.open("a") as file:
                file.write(json.dumps(point) + "\n")
        if again:
            self.fit_now()


def _read_history(path: Path) -> list[dict[str, Any]]:
    """Return the points of earlier sessions; a last line that was cut off is left out."""
    points = []
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                points.append(json.loads(line))
    return points


# ---- in the process


def _work(connection: Connection, setup: LiveSetup, scratch: Path) -> None:
    """Fit the model whenever the server asks for it, until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the server, which ends this process
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    try:
        from halflabel.review.live_questions import EntryAnswer
        from halflabel.review.live_run import open_live_review

        review = open_live_review(RunFolder(setup.run), setup.images, setup.precision)
        number = 0
        while True:
            kind, content = connection.recv()
            while connection.poll():  # only the newest answers count
                later = connection.recv()
                if kind == "finish" or later[0] == "finish":
                    kind, content = "finish", content if kind == "finish" else later[1]
                else:
                    kind, content = later
            if kind == "finish":
                finished = _finish(connection, setup, content)
                connection.send(("finished", finished))
                continue
            update = review.update([EntryAnswer(*item) for item in content])
            number += 1
            path = scratch / f"{number}.npy"
            np.save(path, update.probabilities)
            quality = update.quality.as_dict() | {"seconds": update.seconds}
            connection.send(("update", (str(path), update.queue, quality)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(("error", str(error) or type(error).__name__))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _finish(connection: Connection, setup: LiveSetup, answers: str | Path) -> dict[str, Any]:
    from halflabel.review.live_run import finish_review

    def step(text: str) -> None:
        connection.send(("step", text))

    try:
        about: dict[str, Any] = {"precision": setup.precision, "write_report": setup.write_report}
        return finish_review(RunFolder(setup.run), setup.images, answers, **about, step=step)._asdict()
    except UserError as error:
        return {"error": f"{error}."}
