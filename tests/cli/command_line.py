"""Run commands in this process; shared by the tests of all commands."""

from __future__ import annotations

import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from halflabel.cli import app

TINY = ["--backbone", "tiny", "--size", "32", "--workers", "0", "--device", "cpu"]


MAIN = [sys.executable, "-c", "from halflabel.cli import main; main()"]


def run(*words: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def flat(text: str) -> str:
    """Without line breaks, which depend on the width of the screen."""
    return " ".join(text.split())


def done(*words: str | Path, stdin: str | None = None) -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str | Path, stdin: str | None = None) -> str:
    """Run what must fail: exit code 2, one message with a fix on the error stream, no traceback."""
    result = run(*words, stdin=stdin)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.output
    return flat(result.stderr)
