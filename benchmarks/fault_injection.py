"""Run halflabel commands in child processes and inject faults into them, for soak.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TIME_LIMIT = 120.0  # seconds for one attempt

Action = Callable[[], Any]


class Attempt(NamedTuple):
    """The end of one attempt to train: exit code (negative: the signal that ended it) and output."""

    code: int
    text: str


def attempt(words: list[str], fault: Action | None = None, on_start: Callable[[int], None] | None = None) -> Attempt:
    """Run the command line in a child process, with a fault injected; `on_start` is called with its process id."""
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.setsid()  # its own process group, as a terminal makes one; Ctrl-C goes to the group
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have disabled it
                if fault is not None:
                    fault()
                from halflabel.cli import app

                app(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                _end_workers()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        killer = threading.Timer(TIME_LIMIT, os.kill, (child, signal.SIGKILL))
        killer.start()
        if on_start is not None:
            on_start(child)
        _, status = os.waitpid(child, 0)
        killer.cancel()
        printed.seek(0)
        return Attempt(os.waitstatus_to_exitcode(status), printed.read())


def _end_workers() -> None:
    """End worker processes as the interpreter does at exit, and os._exit does not."""
    import gc
    from multiprocessing.util import _exit_function  # type: ignore[attr-defined]

    gc.collect()
    _exit_function()


def at_call(place: Any, name: str, number: int, action: Action, after: bool = False) -> Action:
    """A fault: the number-th call of `place.name` in the child runs the action before, or after, its work."""

    def install() -> None:
        original, calls = getattr(place, name), Counter[str]()

        def counted(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            if calls[name] == number and not after:
                action()
            returned = original(*args, **options)
            if calls[name] == number and after:
                action()
            return returned

        setattr(place, name, counted)

    return install


def send_signal(number: int) -> Action:
    return lambda: os.kill(os.getpid(), number)


def fault_places() -> dict[str, tuple[Any, str, int, bool]]:
    """By name: object and attribute to patch, the highest call number to use, and whether to act after the call."""
    import torch

    from halflabel.features.backbones import Backbone
    from halflabel.features.vector_store import VectorStore
    from halflabel.fitting import checkpoint, loop
    from halflabel.fitting.step import OptimizerStep
    from halflabel.methods.parts.curriculum import Curriculum
    from halflabel.runs.folder import RunFolder

    return {
        "cache: an image block": (Backbone, "forward", 8, False),
        "cache: a line about a block": (VectorStore, "_note", 4, True),
        "step": (OptimizerStep, "backward", 40, True),
        "optimizer": (OptimizerStep, "update", 40, False),
        "sweep or validation": (loop, "score_source", 4, False),
        "relabelled": (Curriculum, "absorb", 2, True),
        "checkpoint: tensors written": (torch, "save", 20, True),
        "checkpoint: begun": (checkpoint, "save", 20, False),
        "file: before its sync": (os, "fsync", 60, False),
        "file: before its name": (os, "replace", 40, False),
        "file: after its name": (os, "replace", 40, True),
        "results": (RunFolder, "write_text", 2, False),
    }


def raise_disk_full() -> None:
    raise OSError(28, "No space left on device")


def mount_tmpfs(disk: Path, options: str) -> bool:
    size = options if "=" in options else f"size={options}"
    completed = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], capture_output=True, check=False
    )
    return completed.returncode == 0


def signal_after(kind: int, seconds: float) -> Callable[[int], None]:
    def send(child: int) -> None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, kind)

    return send


def count_alive(group: int) -> int:
    """1 if a process of a group is still alive after two seconds, else 0."""
    for _ in range(40):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return 0
        time.sleep(0.05)
    return 1


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_byte(path: Path, where: float = 0.9) -> None:
    """Change one byte of a file, at this share of its length."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * where)] ^= 0x10
    path.write_bytes(bytes(content))
