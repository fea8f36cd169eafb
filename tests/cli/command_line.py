"""Run commands in this process; shared by the tests of all commands."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path

from typer.testing import CliRunner, Result

from halflabel.cli import app, main

TINY = ["--backbone", "tiny", "--set", "size=32", "--set", "workers=0", "--set", "device=cpu"]
BATCHES = ["--fit", "batches", "--epochs"]


MAIN = [sys.executable, "-c", "from halflabel.cli import main; main()"]


def run(*words: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def flat(text: str) -> str:
    """Without line breaks, which depend on the width of the screen."""
    return " ".join(text.split())


def done(*words: str | Path, stdin: str | None = None) -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(*words: str | Path, stdin: str | None = None) -> str:
    """Run what must fail: exit code 2, one message with a fix on the error stream, no traceback."""
    result = run(*words, stdin=stdin)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.output
    return flat(result.stderr)


# Processes are forked from one that has imported torch and halflabel, so that each starts at once.
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["halflabel.cli", "halflabel.runs.train", "halflabel.review.server"])


class CommandProcess:
    """A command that runs in a process of its own; its output is written to a file, line by line."""

    def __init__(self, *words: str | Path, output: Path) -> None:
        output.touch()
        self.output = output
        self.process = _FORK.Process(target=_run_main, args=([str(word) for word in words], str(output)))
        self.process.start()

    def wait_for(self, pattern: str, seconds: float = 240) -> re.Match[str]:
        """Wait until the output matches the pattern."""
        limit = time.monotonic() + seconds
        while self.process.is_alive() and time.monotonic() < limit:
            if match := re.search(pattern, self.output.read_text()):
                return match
            time.sleep(0.01)
        self.stop(signal.SIGKILL)
        raise AssertionError(self.output.read_text())

    def stop(self, how: int = signal.SIGTERM) -> int | None:
        """Send a signal, unless the process has ended, and return the exit code, as `subprocess` gives it."""
        if self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, how)
        self.process.join(20)
        return self.process.exitcode


def _run_main(words: list[str], output: str) -> None:
    stream = os.open(output, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(stream, number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = ["halflabel", *words]
    main()
