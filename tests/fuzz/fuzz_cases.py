"""One case: the files of a reader, one of them damaged, read in a folder of its own, and how that ended."""

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
BYTES = 600 << 20  # that one case may take beyond what was there before it


class End(NamedTuple):
    """How a case ended: one of ENDS, what was done to which file, and for a fault where it came from."""

    kind: str
    done: str
    why: str = ""

    @property
    def is_right(self) -> bool:
        return self.kind in ENDS[:2]


class _Late(BaseException):
    """The time of a case is over; no `except Exception` on the way stops it."""


def prepare(reader: Any, folder: Path, seed: int, number: int) -> tuple[str, random.Random]:
    """Write the reader's files into an empty folder, and damage one or two: what was done, and the random rest."""
    rng = random.Random(f"{seed} {reader.name} {number}")
    files = dict(reader.files)
    said = []
    odd = None
    for name in rng.sample(reader.targets, min(len(reader.targets), 1 if rng.random() < 0.85 else 2)):
        if rng.random() < 0.08:
            odd = name
            continue
        what, files[name] = damage(files[name], rng, name, reader.others)
        said.append(f"{name}: {what}")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if odd is not None:
        said.append(f"{odd}: {spoil_path(folder / odd, rng)}")
    return ", ".join(said), rng


def play(reader: Any, folder: Path, seed: int, number: int, right: tuple[type[BaseException], ...]) -> End:
    """Prepare a case, read it, and clear the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    done, rng = prepare(reader, folder, seed, number)
    before = _reset_peak()
    try:
        with limit(SECONDS):
            reader.read(folder, rng)
        end = End("read", done)
    except _Late:
        end = End("hang", done, f"over {SECONDS:g} s at {_place(sys.exc_info()[1])}")
    except right as error:
        said = str(error)
        # A refusal is for a person: it must be words, and few enough to be read.
        odd = not said.strip() or len(said) > 200_000
        end = End("fault", done, f"a refusal of {len(said)} characters") if odd else End("refused", done, said[:300])
    except Exception as error:
        end = End("fault", done, f"{type(error).__name__}: {str(error)[:200]} at {_place(error)}")
    if end.is_right and (more := _peak() - before) > BYTES:
        end = End("memory", done, f"{more >> 20} MiB more")
    shutil.rmtree(folder, ignore_errors=True)
    return end


@contextmanager
def limit(seconds: float) -> Any:
    def late(*_: Any) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(error: BaseException | None) -> str:
    """The last place in our own code, and the last of all."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    own = [f for f in frames if f"{os.sep}halflabel{os.sep}" in f.filename]
    return " … ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (*own[-2:], *frames[-1:]))


def _reset_peak() -> int:
    """Begin to count the peak of this process's memory anew; what it holds now."""
    with suppress(OSError):  # not Linux: the peak is never seen to rise
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
