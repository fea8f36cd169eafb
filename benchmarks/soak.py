"""Training under fire: killed, stopped, out of disk, its files damaged. Right ends: the same result, or one error.

    python benchmarks/soak.py [--kills 50] [--signals 10] [--seed 0] [--only NAME] [--folder DIR] [--out FILE.json]

A small run (digit scenes as PNG files, `curriculum`, the head first and then all, checkpoints every few steps) is
trained once unbroken. Then it is broken at seeded places, in the making of the cache, in steps, sweeps and the writing
of files, or at random times, and resumed after each break until it ends: weights, labels, the method's state, the
log and the scores must be those of the unbroken run, bit for bit. Other faults must end so too, or in a message with
exit code 2 where that is impossible. Every attempt is a child of one process that has imported all there is, so an
attempt takes as long as it trains. Prints a table, and writes it as JSON. Exit code 1 if anything ended otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
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

IMAGES = 96
WORDS = [
    "--method", "curriculum", "--backbone", "tiny", "--size", "32", "--device", "cpu", "--tune", "all",
    "--linear-init", "2", "--epochs", "4", "--batch-size", "8", "--save-every", "2", "--ema", "0.9",
    "--max-bad", "0.05", "--lr", "0.01", "--theta", "0.2",
]  # fmt: skip
TIMES = ("seconds", "images_per_s")
PATIENCE = 120.0  # seconds for one attempt

Break = Callable[[], Any]


class Attempt(NamedTuple):
    """How one attempt to train ended: the exit code (negative: the signal that ended it) and what it printed."""

    code: int
    text: str


class Row(NamedTuple):
    """One line of the table."""

    fault: str
    times: int
    end: str
    right: bool


def attempt(words: list[str], fault: Break | None = None, watch: Callable[[int], None] | None = None) -> Attempt:
    """Run the command line in a child process, with a fault put into it; `watch` is given its number."""
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.setsid()  # a group of its own: what Ctrl-C reaches, and what may be left behind
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have had it ignore
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
        late = threading.Timer(PATIENCE, os.kill, (child, signal.SIGKILL))
        late.start()
        if watch is not None:
            watch(child)
        _, status = os.waitpid(child, 0)
        late.cancel()
        printed.seek(0)
        return Attempt(os.waitstatus_to_exitcode(status), printed.read())


def _end_workers() -> None:
    """What the interpreter does as it ends, and os._exit does not."""
    import gc
    from multiprocessing.util import _exit_function  # type: ignore[attr-defined]

    gc.collect()
    _exit_function()


def at_call(place: Any, name: str, number: int, do: Break, after: bool = False) -> Break:
    """Let the number-th call of `place.name` in the child do something first, or last."""

    def install() -> None:
        original, calls = getattr(place, name), Counter[str]()

        def counted(*args: Any, **more: Any) -> Any:
            calls[name] += 1
            if calls[name] == number and not after:
                do()
            found = original(*args, **more)
            if calls[name] == number and after:
                do()
            return found

        setattr(place, name, counted)

    return install


def send(number: int) -> Break:
    return lambda: os.kill(os.getpid(), number)


def places() -> dict[str, tuple[Any, str, int, bool]]:
    """Where to break: what is called there, up to which number of calls, and whether it breaks when that is done."""
    import numpy as np
    import safetensors.torch

    from halflabel.methods.parts.curriculum import Curriculum
    from halflabel.models.backbones import Backbone
    from halflabel.runs.folder import RunFolder
    from halflabel.training import checkpoint
    from halflabel.training import loop as train
    from halflabel.training.step import OptimizerStep

    return {
        "cache: an image block": (Backbone, "forward", 8, False),
        "cache: flushed": (np.memmap, "flush", 4, True),
        "step": (OptimizerStep, "backward", 40, True),
        "optimizer": (OptimizerStep, "update", 40, False),
        "sweep or validation": (train, "score_source", 4, False),
        "relabelled": (Curriculum, "absorb", 2, True),
        "checkpoint: tensors written": (safetensors.torch, "save_file", 20, True),
        "checkpoint: begun": (checkpoint, "save", 20, False),
        "file: before its sync": (os, "fsync", 60, False),
        "file: before its name": (os, "replace", 40, False),
        "file: after its name": (os, "replace", 40, True),
        "results": (RunFolder, "write_json", 4, False),
    }


class Soak:
    """The data, the unbroken run, and the runs that are broken."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.rows: list[Row] = []
        self.number = 0
        self.seconds = 0.0

    def prepare(self) -> None:
        from halflabel.data.datasets.digits import write_folder
        from halflabel.labels import formats
        from halflabel.labels.drop import partial

        whole = write_folder(self.folder / "data", IMAGES, size=32)
        self.images = self.folder / "data" / "images"
        self.labels = self.folder / "labels.csv"
        formats.write(partial(formats.read(whole).table(), 0.5), self.labels)
        started = time.monotonic()
        self.unbroken = self.folder / "unbroken" / "run"
        found = attempt(self.train(self.unbroken))
        if found.code:
            raise SystemExit(f"the unbroken run failed:\n{found.text}")
        self.seconds = time.monotonic() - started
        self.expected = result(self.unbroken)
        if not any(line.get("weak_negatives") for line in self.expected["log"]):
            raise SystemExit("the unbroken run adds no label: what is remembered of them would not be tried")

    def train(self, run: Path, *more: str, images: Path | None = None) -> list[str]:
        return [
            "train",
            str(self.labels),
            str(images or self.images),
            "--out",
            str(run),
            *WORDS,
            "--workers",
            "0",
            *more,
        ]

    def new(self) -> Path:
        self.number += 1
        return self.folder / f"{self.number:03d}" / "run"

    def again(self, run: Path, *more: str) -> list[str]:
        """Resume it, or start it where it was broken before it began."""
        begun = (run / "config.yaml").exists()
        return ["train", "--resume", str(run)] if begun else self.train(run, "--force", *more)

    def verdict(self, run: Path, last: Attempt) -> str:
        """How a run ended that should be as the unbroken one."""
        if last.code:
            return f"exit code {last.code}"
        found = result(run)
        differ = [name for name, value in self.expected.items() if found[name] != value]
        if left := [path.name for path in run.parent.rglob("*.tmp")]:
            differ.append(f"left behind: {left[0]}")
        return f"other {', '.join(differ)}" if differ else "same"

    def tell(self, fault: str, times: int, end: str, right: bool, last: Attempt | None = None) -> None:
        self.rows.append(Row(fault, times, end, right))
        if not right and last is not None:
            print(f"WRONG {fault}: {end}", flush=True)
            print(last.text[-2000:], flush=True)

    def broken(self, count: int, kinds: tuple[int, ...]) -> None:
        """Break runs `count` times in all, each again and again until it ends."""
        codes = {kind: -kind if kind == signal.SIGKILL else 128 + kind for kind in kinds}
        known = places()
        by_place: Counter[str] = Counter()
        breaks = 0
        run, of_run = self.new(), 0
        while breaks < count or of_run:
            kind = self.random.choice(kinds)
            name = self.random.choice([*known, *["a random time"] * 4])
            fault, watch, wait = None, None, self.random.uniform(0, self.seconds)
            if breaks >= count:
                name = ""  # enough: let it end
            elif name in known:
                place, called, most, after = known[name]
                fault = at_call(place, called, self.random.randint(1, most), send(kind), after)
            else:
                watch = _later(kind, wait)
            found = attempt(self.again(run), fault, watch)
            trains = "Training all of" in found.text and not (run / "model_card.md").exists()
            if kind != signal.SIGKILL and found.code and not trains:
                continue  # it came before training began or after all was written, and ended it as any command
            if found.code == codes[kind]:
                breaks, of_run = breaks + 1, of_run + 1
                by_place[f"{signal.Signals(kind).name}, {name}"] += 1
                told = "Stopped; " in found.text
                if kind != signal.SIGKILL and (not told or "Traceback" in found.text):
                    self.tell(f"{signal.Signals(kind).name}, {name}", 1, "no word, or a traceback", False, found)
                continue
            if found.code == 0 and not of_run:  # it ended before it was broken
                shutil.rmtree(run.parent)
                run = self.new()
                continue
            end = self.verdict(run, found)
            self.tell(f"a run broken {of_run} times", of_run, end, end == "same", found)
            run, of_run = self.new(), 0
            if found.code:
                break
        for name, times in sorted(by_place.items()):
            self.rows.append(Row(name, times, "resumed", True))

    def halfway(self, phase: str = "step", call: int = 45) -> Path:
        """A run that was killed: by default among the steps of the whole model, after labels were added."""
        place, called, _, after = places()[phase]
        run = self.new()
        found = attempt(self.train(run), at_call(place, called, call, send(signal.SIGKILL), after))
        assert found.code == -signal.SIGKILL, found
        return run

    def ends_the_same(self, fault: str, run: Path) -> None:
        last = attempt(self.again(run))
        end = self.verdict(run, last)
        self.tell(fault, 1, end, end == "same", last)

    def is_refused(self, fault: str, words: list[str], *says: str) -> None:
        last = attempt(words)
        right = last.code == 2 and "Traceback" not in last.text and all(each in last.text for each in says)
        error = " ".join(last.text.split("error: ")[-1].replace(f"{self.folder}/", "").split())
        line = error if right else f"exit code {last.code}"
        self.tell(fault, 1, f"refused: {line}" if right else line, right, last)

    def damaged_checkpoint(self) -> None:
        run = self.halfway()
        truncate(max((run / "last" / "all").glob("*.safetensors")))
        self.ends_the_same("newest checkpoint cut in half", run)

    def damaged_checkpoints(self) -> None:
        run = self.halfway()
        for path in (run / "last" / "all").glob("*.safetensors"):
            truncate(path)
        self.is_refused("all checkpoints cut in half", self.again(run), "no checkpoint", "start again")

    def flipped_cache(self) -> None:
        run = self.halfway(call=8)  # the head is trained on it
        flip(next(run.parent.glob("cache/*/values.npy")))
        self.ends_the_same("a byte of the cache flipped", run)

    def flipped_partial_cache(self) -> None:
        run = self.halfway("cache: an image block", 5)
        flip(next(run.parent.glob("cache/*/values.partial.npy")), 0.2)
        self.ends_the_same("a byte of the half-built cache flipped", run)

    def removed_cache(self) -> None:
        run = self.halfway(call=8)
        shutil.rmtree(run.parent / "cache")
        self.ends_the_same("the cache removed", run)

    def damaged_log(self) -> None:
        run = self.halfway(call=46)
        (run / "log.jsonl").write_text('{"epoch": 1, "loss"')
        self.ends_the_same("the log cut short", run)

    def damaged_config(self) -> None:
        run = self.halfway()
        (run / "config.yaml").write_text("method: [")
        self.is_refused("the settings damaged", self.again(run), "config.yaml", "train again")

    def damaged_labels(self) -> None:
        run = self.halfway()
        truncate(run / "labels.parquet")
        self.is_refused("the labels cut in half", self.again(run), "labels.parquet", "start a new run")

    def removed_images(self) -> None:
        place, called, *_ = places()["step"]
        for count in (2, 20):
            run = self.new()
            images = run.parent / "images"
            shutil.copytree(self.images, images)
            gone = sorted(images.iterdir())[:count]
            fault = at_call(place, called, 30, lambda gone=gone: [path.unlink() for path in gone])  # type: ignore[misc]
            last = attempt(self.train(run, images=images), fault)
            if count == 2:
                end = "trained on, and said"
                right = last.code == 0 and "images could not be read" in last.text and (run / "metrics.json").exists()
            else:
                end = "refused: over --max-bad"
                right = last.code == 2 and "--max-bad" in last.text and "Traceback" not in last.text
            self.tell(
                f"{count} of {IMAGES} images removed under way", 1, end if right else f"exit {last.code}", right, last
            )

    def full_disk(self) -> None:
        """A small disk of its own where one may be mounted, else errors as it would give them."""
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = _mount(disk, "600k")
        try:
            for room in ("30k", "120k", "220k", "300k"):
                run = disk / room / "run"
                if mounted:
                    _mount(disk, f"remount,size={room}")
                    found = attempt(self.train(run))
                else:
                    at = {"30k": 1, "120k": 12, "220k": 25, "300k": 40}[room]
                    found = attempt(self.train(run), at_call(os, "fsync", at, _no_space))
                right = found.code == 2 and "No space left" in found.text and "Traceback" not in found.text
                self.tell(f"disk full after {room}", 1, "refused: No space left on device", right, found)
                if mounted:
                    _mount(disk, "remount,size=64m")
                self.ends_the_same(f"disk full after {room}, then room made", run)
                shutil.rmtree(run.parent)
        finally:
            if mounted:
                subprocess.run(["umount", str(disk)], check=True)

    def workers(self) -> None:
        for count in ("1", "2", "4"):
            run = self.new()
            last = attempt(self.train(run, "--workers", count))
            end = self.verdict(run, last)
            self.tell(f"{count} workers instead of none", 1, end, end == "same", last)

    def stopped_workers(self) -> None:
        """Stop a run with workers, as a terminal or a queue does it: the whole group at once."""
        where = {"step": 30, "sweep or validation": 4, "cache: an image block": 4}
        for kind in (signal.SIGINT, signal.SIGTERM):
            for name, call in where.items():
                run, group = self.new(), list[int]()
                place, called, _, after = places()[name]
                fault = at_call(place, called, call, lambda kind=kind: os.killpg(0, kind), after)  # type: ignore[misc]
                last = attempt(self.train(run, "--workers", "2"), fault, group.append)
                left = _alive(group[0])
                told = "Stopped; go on" in last.text and "Traceback" not in last.text
                right = last.code == 128 + kind and told and not left
                end = "stopped, no process left" if right else f"exit code {last.code}, {left} processes left"
                fault_name = f"{signal.Signals(kind).name} to all of 2 workers, {name}"
                self.tell(fault_name, 1, end, right, last)
                self.ends_the_same(f"{fault_name}, resumed", run)

    def killed_worker(self) -> None:
        import multiprocessing

        run = self.new()
        place, called, _, after = places()["step"]
        fault = at_call(place, called, 30, lambda: multiprocessing.active_children()[0].kill(), after)
        last = attempt(self.train(run, "--workers", "2"), fault)
        right = last.code == 2 and "--resume" in last.text and "Traceback" not in last.text
        self.tell("a worker killed", 1, "refused: how to go on" if right else f"exit code {last.code}", right, last)
        self.ends_the_same("a worker killed, resumed", run)

    FAULTS = (
        "damaged_checkpoint", "damaged_checkpoints", "flipped_cache", "flipped_partial_cache", "removed_cache",
        "damaged_log", "damaged_config", "damaged_labels", "removed_images", "full_disk",
        "workers", "stopped_workers", "killed_worker",
    )  # fmt: skip


def _no_space() -> None:
    raise OSError(28, "No space left on device")


def _mount(disk: Path, options: str) -> bool:
    size = options if "=" in options else f"size={options}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(disk)], capture_output=True, check=False)
    return done.returncode == 0


def _later(kind: int, seconds: float) -> Callable[[int], None]:
    def watch(child: int) -> None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, kind)

    return watch


def _alive(group: int) -> int:
    """Processes of a group that live, after they had a moment to end."""
    for _ in range(40):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return 0
        time.sleep(0.05)
    return 1


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, where: float = 0.9) -> None:
    """Change one byte of a file, so far into it."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * where)] ^= 0x10
    path.write_bytes(bytes(content))


def result(run: Path) -> dict[str, Any]:
    """What must not differ between runs: all but times and paths."""
    from safetensors.torch import load_file

    newest = max((run / "last" / "all").glob("*.json"))
    meta = json.loads(newest.read_text())
    state = {name: value.numpy().tobytes() for name, value in load_file(newest.with_suffix(".safetensors")).items()}
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {"state": state, "counters": {k: v for k, v in meta.items() if k not in ("sha256", "log")}}
    found["log"] = [{key: value for key, value in line.items() if key not in TIMES} for line in log]
    for name in ("best.safetensors", "labels.parquet", "split.parquet", "predictions.parquet", "metrics.json"):
        found[name] = (run / name).read_bytes()
    return found


def warm() -> None:
    """Import what training imports, once, before any child is made; no thread may have started by then."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import accelerate
    import pyarrow.parquet
    import sklearn.datasets
    import torch

    import halflabel.cli.progress
    import halflabel.runs.model_card
    import halflabel.runs.train
    import halflabel.training.callbacks
    from halflabel.methods.base import recipes
    from halflabel.models import feature_cache as cache

    recipes()
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # what is written outlives the process: only a power cut would need the disk's word
    cache._NOTE_IMAGES = 16  # the data are few: note more often how far the cache is built
    del accelerate, pyarrow, sklearn, halflabel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--signals", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="faults whose name holds this word; none: kills and signals alone", default="")
    parser.add_argument("--folder", type=Path, help="keep all files here")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    warm()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(arguments.folder or Path(temporary), arguments.seed)
        soak.prepare()
        print(f"unbroken: {soak.seconds:.1f} s", flush=True)
        soak.broken(arguments.kills, (signal.SIGKILL,))
        soak.broken(arguments.signals, (signal.SIGTERM, signal.SIGINT))
        for name in Soak.FAULTS:
            if any(word in name for word in arguments.only.split(",")):
                getattr(soak, name)()
    print(f"\n{'fault':58} {'times':>5}  end")
    for row in soak.rows:
        print(f"{row.fault:58} {row.times:5}  {'' if row.right else 'WRONG: '}{row.end}")
    wrong = sum(not row.right for row in soak.rows)
    print(f"{wrong} wrong ends; {time.monotonic() - started:.0f} s")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([row._asdict() for row in soak.rows], indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
