"""Train while the process is killed or stopped, the disk is full or files are damaged; check every result.

    python benchmarks/soak.py [--kills 50] [--signals 10] [--seed 0] [--only NAME] [--folder DIR] [--out FILE.json]

A small run (digit scenes as PNG files, method `curriculum`, first the head and then the whole network, a checkpoint
every few steps) is trained once without interruption. Other runs are then interrupted at seeded places (while the cache
is built, in steps and sweeps, while files are written) or at random times, and resumed after each interruption until
they end: weights, labels, the method's state, the log and the scores must be those of the uninterrupted run, bit for
bit. Other faults must end in the same way or, where that is impossible, in an error message with exit code 2. Every
attempt is a fork of one process that has imported everything, so it takes only the time of the training. Prints a table
and writes it as JSON. The exit code is 1 if anything ended in another way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from fault_injection import (
    Attempt,
    at_call,
    attempt,
    count_alive,
    fault_places,
    flip_byte,
    mount_tmpfs,
    raise_disk_full,
    send_signal,
    signal_after,
    truncate,
)

IMAGES = 96
WORDS = [
    "--method", "curriculum", "--backbone", "tiny", "--size", "32", "--set", "device=cpu", "--tune", "all",
    "--epochs", "6", "--batch-size", "8", "--save-every", "2", "--set", "ema=0.9",
    "--max-bad", "0.05", "--lr", "0.01", "--set", "theta=0.2",
]  # fmt: skip
TIMES = ("seconds", "images_per_s")


class Row(NamedTuple):
    """One line of the table: the fault, how often it was injected, and the result."""

    fault: str
    times: int
    end: str
    is_right: bool


class Soak:
    """The data, the uninterrupted run, and the runs with faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.rows: list[Row] = []
        self.number = 0
        self.seconds = 0.0

    def prepare(self) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "papers" / "datasets"))
        from digit_scenes import write_folder

        from halflabel.labels import formats
        from halflabel.labels.drop import partial

        whole = write_folder(self.folder / "data", IMAGES, size=32)
        self.images = self.folder / "data" / "images"
        self.labels = self.folder / "labels.csv"
        formats.write(partial(formats.read(whole).table(), 0.5), self.labels)
        started = time.monotonic()
        self.reference = self.folder / "reference" / "run"
        ended = attempt(self.train(self.reference))
        if ended.code:
            raise SystemExit(f"the uninterrupted run failed:\n{ended.text}")
        self.seconds = time.monotonic() - started
        self.expected = result(self.reference)
        if not any(line.get("weak_negatives") for line in self.expected["log"]):
            raise SystemExit("the uninterrupted run adds no label, so the method's state would not be tested")

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
        """The command to resume a run, or to start it if it was interrupted before it began."""
        begun = (run / "config.yaml").exists()
        return ["train", "--resume", str(run)] if begun else self.train(run, "--force", *more)

    def verdict(self, run: Path, last: Attempt) -> str:
        """How a run differs from the uninterrupted one, or "same"."""
        if last.code:
            return f"exit code {last.code}"
        values = result(run)
        differ = [name for name, value in self.expected.items() if values[name] != value]
        if leftover := [path.name for path in run.parent.rglob("*.tmp")]:
            differ.append(f"left behind: {leftover[0]}")
        return f"different {', '.join(differ)}" if differ else "same"

    def record(self, fault: str, times: int, end: str, is_right: bool, last: Attempt | None = None) -> None:
        self.rows.append(Row(fault, times, end, is_right))
        if not is_right and last is not None:
            print(f"WRONG {fault}: {end}", flush=True)
            print(last.text[-2000:], flush=True)

    def interrupt(self, count: int, kinds: tuple[int, ...]) -> None:
        """Interrupt runs `count` times in all, each one repeatedly until it ends."""
        codes = {kind: -kind if kind == signal.SIGKILL else 128 + kind for kind in kinds}
        places = fault_places()
        by_place: Counter[str] = Counter()
        interruptions = 0
        run, of_run = self.new(), 0
        while interruptions < count or of_run:
            kind = self.random.choice(kinds)
            name = self.random.choice([*places, *["a random time"] * 4])
            fault, on_start, wait = None, None, self.random.uniform(0, self.seconds)
            if interruptions >= count:
                name = ""  # let it end
            elif name in places:
                place, called, most, after = places[name]
                fault = at_call(place, called, self.random.randint(1, most), send_signal(kind), after)
            else:
                on_start = signal_after(kind, wait)
            ended = attempt(self.again(run), fault, on_start)
            is_training = "Training all of" in ended.text and not (run / "model_card.md").exists()
            if kind != signal.SIGKILL and ended.code and not is_training:
                continue  # the signal came before training began or after everything was written
            if ended.code == codes[kind]:
                interruptions, of_run = interruptions + 1, of_run + 1
                by_place[f"{signal.Signals(kind).name}, {name}"] += 1
                has_message = "Stopped; " in ended.text
                if kind != signal.SIGKILL and (not has_message or "Traceback" in ended.text):
                    self.record(f"{signal.Signals(kind).name}, {name}", 1, "no message, or a traceback", False, ended)
                continue
            if ended.code == 0 and not of_run:  # it ended before the interruption
                shutil.rmtree(run.parent)
                run = self.new()
                continue
            end = self.verdict(run, ended)
            self.record(f"a run interrupted {of_run} times", of_run, end, end == "same", ended)
            run, of_run = self.new(), 0
            if ended.code:
                break
        for name, times in sorted(by_place.items()):
            self.rows.append(Row(name, times, "resumed", True))

    def killed_run(self, phase: str = "step", call: int = 25) -> Path:
        """A run that was killed: by default in the steps of the whole network, after labels were added."""
        place, called, _, after = fault_places()[phase]
        run = self.new()
        ended = attempt(self.train(run), at_call(place, called, call, send_signal(signal.SIGKILL), after))
        assert ended.code == -signal.SIGKILL, ended
        return run

    def expect_same_result(self, fault: str, run: Path) -> None:
        last = attempt(self.again(run))
        end = self.verdict(run, last)
        self.record(fault, 1, end, end == "same", last)

    def expect_error(self, fault: str, words: list[str], *texts: str) -> None:
        last = attempt(words)
        right = last.code == 2 and "Traceback" not in last.text and all(text in last.text for text in texts)
        error = " ".join(last.text.split("error: ")[-1].replace(f"{self.folder}/", "").split())
        line = error if right else f"exit code {last.code}"
        self.record(fault, 1, f"refused: {line}" if right else line, right, last)

    def damaged_checkpoint(self) -> None:
        run = self.killed_run()
        truncate(max((run / "last" / "all").glob("*.pt")))
        self.expect_same_result("newest checkpoint cut in half", run)

    def damaged_checkpoints(self) -> None:
        run = self.killed_run()
        for path in (run / "last" / "all").glob("*.pt"):
            truncate(path)
        self.expect_error("all checkpoints cut in half", self.again(run), "all checkpoints", "start again")

    def flipped_cache(self) -> None:
        run = self.killed_run(call=8)  # the head is trained on it
        flip_byte(next(run.parent.glob("cache/*/values.npy")))
        self.expect_same_result("a byte of the cache flipped", run)

    def flipped_partial_cache(self) -> None:
        run = self.killed_run("cache: an image block", 2)
        flip_byte(next(run.parent.glob("cache/*/values.npy")), 0.2)
        self.expect_same_result("a byte of the half-built cache flipped", run)

    def removed_cache(self) -> None:
        run = self.killed_run(call=8)
        shutil.rmtree(run.parent / "cache")
        self.expect_same_result("the cache removed", run)

    def damaged_log(self) -> None:
        run = self.killed_run(call=30)
        (run / "log.jsonl").write_text('{"epoch": 1, "loss"')
        self.expect_same_result("the log cut short", run)

    def damaged_config(self) -> None:
        run = self.killed_run()
        (run / "config.yaml").write_text("method: [")
        self.expect_error("the settings damaged", self.again(run), "config.yaml", "train again")

    def damaged_labels(self) -> None:
        run = self.killed_run()
        truncate(run / "labels.parquet")
        self.expect_error("the labels cut in half", self.again(run), "labels.parquet", "start a new run")

    def removed_images(self) -> None:
        place, called, *_ = fault_places()["step"]
        for count in (2, 20):
            run = self.new()
            images = run.parent / "images"
            shutil.copytree(self.images, images)
            gone = sorted(images.iterdir())[:count]
            fault = at_call(place, called, 30, lambda gone=gone: [path.unlink() for path in gone])  # type: ignore[misc]
            last = attempt(self.train(run, images=images), fault)
            if count == 2:
                end = "trained, with a message"
                right = last.code == 0 and "images could not be read" in last.text and (run / "metrics.json").exists()
            else:
                end = "refused: over --max-bad"
                right = last.code == 2 and "--max-bad" in last.text and "Traceback" not in last.text
            self.record(
                f"{count} of {IMAGES} images removed during training",
                1,
                end if right else f"exit {last.code}",
                right,
                last,
            )

    def full_disk(self) -> None:
        """On a small tmpfs if it can be mounted, else with the errors of a full disk."""
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = mount_tmpfs(disk, "600k")
        try:
            for size in ("30k", "120k", "220k", "300k"):
                run = disk / size / "run"
                if mounted:
                    mount_tmpfs(disk, f"remount,size={size}")
                    ended = attempt(self.train(run))
                else:
                    call = {"30k": 1, "120k": 12, "220k": 25, "300k": 40}[size]
                    ended = attempt(self.train(run), at_call(os, "fsync", call, raise_disk_full))
                right = ended.code == 2 and "No space left" in ended.text and "Traceback" not in ended.text
                self.record(f"disk full after {size}", 1, "refused: No space left on device", right, ended)
                if mounted:
                    mount_tmpfs(disk, "remount,size=64m")
                self.expect_same_result(f"disk full after {size}, then space made", run)
                shutil.rmtree(run.parent)
        finally:
            if mounted:
                subprocess.run(["umount", str(disk)], check=True)

    def workers(self) -> None:
        for count in ("1", "2", "4"):
            run = self.new()
            last = attempt(self.train(run, "--workers", count))
            end = self.verdict(run, last)
            self.record(f"{count} workers instead of none", 1, end, end == "same", last)

    def stopped_workers(self) -> None:
        """Stop a run with workers as a terminal or a job queue does: the whole process group at once."""
        where = {"step": 30, "sweep or validation": 4, "cache: an image block": 4}
        for kind in (signal.SIGINT, signal.SIGTERM):
            for name, call in where.items():
                run, group = self.new(), list[int]()
                place, called, _, after = fault_places()[name]
                fault = at_call(place, called, call, lambda kind=kind: os.killpg(0, kind), after)  # type: ignore[misc]
                last = attempt(self.train(run, "--workers", "2"), fault, group.append)
                alive = count_alive(group[0])
                has_message = "Stopped; go on" in last.text and "Traceback" not in last.text
                right = last.code == 128 + kind and has_message and not alive
                end = "stopped, no process left" if right else f"exit code {last.code}, {alive} processes left"
                fault_name = f"{signal.Signals(kind).name} to the group of 2 workers, {name}"
                self.record(fault_name, 1, end, right, last)
                self.expect_same_result(f"{fault_name}, resumed", run)

    def killed_worker(self) -> None:
        import multiprocessing

        run = self.new()
        place, called, _, after = fault_places()["step"]
        fault = at_call(place, called, 30, lambda: multiprocessing.active_children()[0].kill(), after)
        last = attempt(self.train(run, "--workers", "2"), fault)
        right = last.code == 2 and "--resume" in last.text and "Traceback" not in last.text
        self.record(
            "a worker killed", 1, "refused, with how to resume" if right else f"exit code {last.code}", right, last
        )
        self.expect_same_result("a worker killed, resumed", run)

    FAULTS = (
        "damaged_checkpoint", "damaged_checkpoints", "flipped_cache", "flipped_partial_cache", "removed_cache",
        "damaged_log", "damaged_config", "damaged_labels", "removed_images", "full_disk",
        "workers", "stopped_workers", "killed_worker",
    )  # fmt: skip


def without_tensors(value: Any) -> Any:
    """Tensors as bytes, which can be compared, in dictionaries and lists of any depth."""
    if isinstance(value, dict):
        return {key: without_tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_tensors(item) for item in value]
    return value.numpy().tobytes() if hasattr(value, "numpy") else value


def result(run: Path) -> dict[str, Any]:
    """Everything that must be equal in all runs: all but times and paths."""
    from halflabel.fitting import checkpoint

    state = checkpoint.load(max((run / "last" / "all").glob("*.pt")))
    del state["state"]["log"]
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    values: dict[str, Any] = {"state": without_tensors(state)}
    values["log"] = [{key: value for key, value in line.items() if key not in TIMES} for line in log]
    for name in ("best.safetensors", "labels.parquet", "scores.parquet", "metrics.json"):
        values[name] = (run / name).read_bytes()
    return values


def import_everything() -> None:
    """Import what training imports before the first fork; it must not start threads."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import pyarrow.parquet
    import sklearn.datasets
    import torch

    import halflabel.cli.progress
    import halflabel.fitting.callbacks
    import halflabel.runs.model_card
    import halflabel.runs.train
    from halflabel.methods.base import recipes

    recipes()
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # written data survive a killed process; only a power cut would need fsync
    del pyarrow, sklearn, halflabel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--signals", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", help="only faults whose name contains one of these words, separated by commas", default=""
    )
    parser.add_argument("--folder", type=Path, help="keep all files here")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    import_everything()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(arguments.folder or Path(temporary), arguments.seed)
        soak.prepare()
        print(f"uninterrupted: {soak.seconds:.1f} s", flush=True)
        soak.interrupt(arguments.kills, (signal.SIGKILL,))
        soak.interrupt(arguments.signals, (signal.SIGTERM, signal.SIGINT))
        for name in Soak.FAULTS:
            if any(word in name for word in arguments.only.split(",")):
                getattr(soak, name)()
    print(f"\n{'fault':58} {'times':>5}  end")
    for row in soak.rows:
        print(f"{row.fault:58} {row.times:5}  {'' if row.is_right else 'WRONG: '}{row.end}")
    wrong = sum(not row.is_right for row in soak.rows)
    print(f"{wrong} wrong results; {time.monotonic() - started:.0f} s")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([row._asdict() for row in soak.rows], indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
