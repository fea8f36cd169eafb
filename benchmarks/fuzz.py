"""Fuzz every reader: damaged label files, images, models, runs and requests must be read or refused with a message.

    python benchmarks/fuzz.py [--cases 20000] [--seconds 900] [--seed 0] [--only NAME] [--out fuzz-failures]

Cases are seeded mutations of good files (tests/fuzz), so that a case can be repeated from the seed, the name of the
reader and its number. They are read in one process for speed; if that process dies or hangs, its case is recorded and a
new process continues after it. A case fails if it raises another exception than a refusal (fault), takes over 10 s
(hang), takes 600 MiB (memory), or ends the process (crash). The files of failed cases are written to --out. The exit
code is 1 if any case failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

FUZZ_MODULES = Path(__file__).parents[1] / "tests" / "fuzz"
OUTCOMES = ("read", "refused", "fault", "hang", "memory", "crash")
STUCK_SECONDS = 60.0  # seconds without output of the reading process: it hangs where no signal is handled
LOADING_SECONDS = 600.0  # seconds for loading the libraries and making the good files
MEMORY_LIMIT = 8 << 30  # bytes that the reading process may reserve in addition to the libraries


def plan_cases(names: list[str], cases: int) -> list[tuple[str, int]]:
    """(reader, number) of every case, alternating between readers, so that a shortened run covers all of them."""
    return [(names[k % len(names)], k // len(names)) for k in range(cases)]


def run_cases(arguments: argparse.Namespace) -> None:
    """Run the cases from --start and print a line of JSON before and after each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # C libraries print to stdout
    logging.disable()
    sys.path[:0] = [str(FUZZ_MODULES), str(FUZZ_MODULES.parent / "papers" / "datasets")]
    import fuzz_cases as cases
    import fuzz_kit as kit
    import fuzz_readers as readers

    selected = {reader.name: reader for reader in readers.all_readers() if arguments.only in reader.name}
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_LIMIT, used_bytes + MEMORY_LIMIT))
    refusals = kit.refusals()

    def print_json(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    print_json(readers=list(selected))
    with tempfile.TemporaryDirectory(prefix="halflabel-fuzz-") as folder:
        for position, (name, number) in enumerate(plan_cases(list(selected), arguments.cases)):
            if position < arguments.start:
                continue
            print_json(at=position)
            place = Path(folder) / "case"
            end = cases.play(selected[name], place, arguments.seed, number, refusals)
            print_json(name=name, number=number, end=end.kind, done=end.done, why=end.why)
            if not end.is_right:
                save_failure(selected[name], arguments, number, end._asdict(), cases)
    print_json(finished=True)
    os._exit(0)  # do not wait for server threads


def save_failure(reader: Any, arguments: argparse.Namespace, number: int, why: dict[str, Any], cases: Any) -> None:
    """Write the files of a failed case into the folder of failures."""
    folder = arguments.out / f"{reader.name.replace(' ', '-')}-{arguments.seed}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    cases.prepare(reader, folder / "files", arguments.seed, number)
    (folder / "why.json").write_text(json.dumps(why, indent=1))


class ReaderProcess:
    """Runs the reading process, and starts a new one after a case that ended it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.outcomes: dict[str, Counter[str]] = {}
        self.failures: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.position = -1
        self.deadline = time.monotonic() + arguments.seconds

    def run(self) -> None:
        start = 0
        while start < self.arguments.cases and time.monotonic() < self.deadline:
            command = [sys.executable, __file__, "--work", "--start", str(start)]
            for name in ("cases", "seed", "only", "out"):
                command += [f"--{name}", str(getattr(self.arguments, name))]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                finished = self._listen(process)
                process.kill()
            if finished:
                return
            if self.position < start:
                sys.exit("the reading process ended before its first case: run it with --work to see why")
            name, number = plan_cases(self.names, self.arguments.cases)[self.position]
            self._count({"name": name, "number": number, "end": "crash", "done": "", "why": f"at case {self.position}"})
            start = self.position + 1

    def _listen(self, process: Any) -> bool:
        """Count the results that the process prints; False if it died or stopped printing during a case."""
        buffer, shown, patience = b"", time.monotonic(), LOADING_SECONDS
        while True:
            ready, _, _ = select.select([process.stdout], [], [], patience)
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                return False
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                message = json.loads(line)
                self.names, patience = message.get("readers", self.names), STUCK_SECONDS
                self.position = message.get("at", self.position)
                if "end" in message:
                    self._count(message)
                if "finished" in message or time.monotonic() > self.deadline:
                    return True
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                print(
                    f"{sum(map(Counter.total, self.outcomes.values()))} cases, {len(self.failures)} failed", flush=True
                )

    def _count(self, message: dict[str, Any]) -> None:
        self.outcomes.setdefault(message["name"], Counter())[message["end"]] += 1
        if message["end"] not in OUTCOMES[:2]:
            self.failures.append(message)
            print(
                f"{message['end']}: {message['name']} {message['number']} ({message['done']}): {message['why']}",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=900.0, help="stop after this many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only readers whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.work:
        run_cases(arguments)
    started = time.monotonic()
    process = ReaderProcess(arguments)
    process.run()
    print(f"\n{'reader':<28}" + "".join(f"{end:>9}" for end in OUTCOMES))
    total: Counter[str] = Counter()
    for name in process.names:
        ends = process.outcomes.get(name, Counter())
        total += ends
        print(f"{name:<28}" + "".join(f"{ends[end]:>9}" for end in OUTCOMES))
    print(f"{'all':<28}" + "".join(f"{total[end]:>9}" for end in OUTCOMES))
    seconds = time.monotonic() - started
    print(f"{total.total()} cases of {len(process.outcomes)} readers in {seconds:.0f} s, seed {arguments.seed}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"seed": arguments.seed, "seconds": seconds, "ends": process.outcomes, "failures": process.failures}
    (arguments.out / "fuzz.json").write_text(json.dumps(report, indent=1))
    return 1 if process.failures else 0


if __name__ == "__main__":
    sys.exit(main())
