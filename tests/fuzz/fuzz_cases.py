"""One fuzz case: the files of a reader with one of them damaged, read in an empty folder, and the outcome."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fuzz_mutate import damage, spoil_path

__all__ = ["ENDS", "End", "limit", "play", "prepare"]

ENDS = ("read", "refused", "fault", "hang", "memory")
SECONDS = 10.0
BYTES = 600 << 20  # additional memory that one case may take


class End(NamedTuple):
    """The outcome of a case: one of ENDS, the damage that was done, and for a failure the reason."""

    kind: str
    done: str
    why: str = ""

    @property
    def is_right(self) -> bool:
        return self.kind in ENDS[:2]


class _TimeLimit(BaseException):
    """The time limit of a case; a BaseException, so that no `except Exception` catches it."""


def prepare(reader: Any, folder: Path, seed: int, number: int) -> tuple[str, random.Random]:
    """Write the files of a reader into an empty folder and damage one or two; returns the damage and the rng."""
    rng = random.Random(f"{seed} {reader.name} {number}")
    files = dict(reader.files)
    damages = []
    spoiled = None
    for name in rng.sample(reader.targets, min(len(reader.targets), 1 if rng.random() < 0.85 else 2)):
        if rng.random() < 0.08:
            spoiled = name
            continue
        damage_done, files[name] = damage(files[name], rng, name, reader.others)
        damages.append(f"{name}: {damage_done}")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if spoiled is not None:
        damages.append(f"{spoiled}: {spoil_path(folder / spoiled, rng)}")
    return ", ".join(damages), rng


def play(reader: Any, folder: Path, seed: int, number: int, refusals: tuple[type[BaseException], ...]) -> End:
    """Prepare a case, read it, and remove its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    done, rng = prepare(reader, folder, seed, number)
    before = _reset_peak()
    try:
        with limit(SECONDS):
            reader.read(folder, rng)
        end = End("read", done)
    except _TimeLimit:
        end = End("hang", done, f"over {SECONDS:g} s at {_place(sys.exc_info()[1])}")
    except refusals as error:
        text = str(error)
        # A refusal is for a person: it must have text, and not too much of it.
        is_unreadable = not text.strip() or len(text) > 200_000
        end = (
            End("fault", done, f"a refusal of {len(text)} characters")
            if is_unreadable
            else End("refused", done, text[:300])
        )
    except Exception as error:
        end = End("fault", done, f"{type(error).__name__}: {str(error)[:200]} at {_place(error)}")
    if end.is_right and (extra := _peak() - before) > BYTES:
        end = End("memory", done, f"{extra >> 20} MiB more")
    shutil.rmtree(folder, ignore_errors=True)
    return end


@contextmanager
def limit(seconds: float) -> Any:
    """Raise _TimeLimit after some seconds."""

    def late(*_: Any) -> None:
        raise _TimeLimit

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(error: BaseException | None) -> str:
    """The last lines of our code in the traceback, and the last line of all."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    ours = [f for f in frames if f"{os.sep}halflabel{os.sep}" in f.filename]
    return " … ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (*ours[-2:], *frames[-1:]))


def _reset_peak() -> int:
    """Reset the peak memory of this process; returns the current memory."""
    with suppress(OSError):  # not Linux: the peak is not measured
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
