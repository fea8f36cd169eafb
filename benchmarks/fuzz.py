"""Every reader under fire: damaged label files, images, models, runs and requests. Right ends: read, or refused.

    python benchmarks/fuzz.py [--cases 20000] [--seconds 900] [--seed 0] [--only NAME] [--out fuzz-failures]

Cases are made from good files by seeded mutations (tests/fuzz), so that a case can be made again from the seed, the
name of the reader and its number. They are read in one process for speed; where that process dies or hangs, the case
it was at is written down and another process goes on after it. A case fails that ends in another exception than a
refusal (fault), takes over 10 s (hang), takes 600 MiB (memory), or ends the process (crash). The files of failed cases
are kept in the folder --out. Exit code 1 if any case failed.
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

PARTS = Path(__file__).parents[1] / "tests" / "fuzz"
ENDS = ("read", "refused", "fault", "hang", "memory", "crash")
STUCK = 60.0  # seconds without a word from the reading process: it is stuck where no signal reaches
LOADING = 600.0  # seconds that it may take to load the libraries and make the good files
ROOM = 8 << 30  # bytes that the reading process may reserve beyond what the libraries take


def plan(names: list[str], cases: int) -> list[tuple[str, int]]:
    """(reader, number) in turn, so that a run that is cut short has seen all of them."""
    return [(names[k % len(names)], k // len(names)) for k in range(cases)]


def work(arguments: argparse.Namespace) -> None:
    """Read the cases from --start on, and say one line of JSON of each before and after."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries in C print what they like
    logging.disable()
    sys.path.insert(0, str(PARTS))
    import fuzz_cases as cases
    import fuzz_kit as kit
    import fuzz_readers as readers

    found = {reader.name: reader for reader in readers.all_readers() if arguments.only in reader.name}
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    right = kit.refusals()

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    say(readers=list(found))
    with tempfile.TemporaryDirectory(prefix="halflabel-fuzz-") as folder:
        for position, (name, number) in enumerate(plan(list(found), arguments.cases)):
            if position < arguments.start:
                continue
            say(at=position)
            place = Path(folder) / "case"
            end = cases.play(found[name], place, arguments.seed, number, right)
            say(name=name, number=number, end=end.kind, done=end.done, why=end.why)
            if not end.is_right:
                keep(found[name], arguments, number, end._asdict(), cases)
    say(finished=True)
    os._exit(0)  # threads of servers need not be waited for


def keep(reader: Any, arguments: argparse.Namespace, number: int, why: dict[str, Any], cases: Any) -> None:
    """Make a case again in the folder of failures."""
    folder = arguments.out / f"{reader.name.replace(' ', '-')}-{arguments.seed}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    cases.prepare(reader, folder / "files", arguments.seed, number)
    (folder / "why.json").write_text(json.dumps(why, indent=1))


class Watched:
    """The reading process, begun again after the case that ended it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.ends: dict[str, Counter[str]] = {}
        self.failures: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.at = -1
        self.until = time.monotonic() + arguments.seconds

    def run(self) -> None:
        start = 0
        while start < self.arguments.cases and time.monotonic() < self.until:
            words = [sys.executable, __file__, "--work", "--start", str(start)]
            for name in ("cases", "seed", "only", "out"):
                words += [f"--{name}", str(getattr(self.arguments, name))]
            with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
                finished = self._listen(process)
                process.kill()
            if finished:
                return
            if self.at < start:
                sys.exit("the reading process ended before its first case: run it with --work to see why")
            name, number = plan(self.names, self.arguments.cases)[self.at]
            self._count({"name": name, "number": number, "end": "crash", "done": "", "why": f"at case {self.at}"})
            start = self.at + 1

    def _listen(self, process: Any) -> bool:
        """Count what the process says; False where it died or went silent in the middle of a case."""
        buffer, shown, patience = b"", time.monotonic(), LOADING
        while True:
            ready, _, _ = select.select([process.stdout], [], [], patience)
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                return False
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                said = json.loads(line)
                self.names, patience = said.get("readers", self.names), STUCK
                self.at = said.get("at", self.at)
                if "end" in said:
                    self._count(said)
                if "finished" in said or time.monotonic() > self.until:
                    return True
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                print(f"{sum(map(Counter.total, self.ends.values()))} cases, {len(self.failures)} failed", flush=True)

    def _count(self, said: dict[str, Any]) -> None:
        self.ends.setdefault(said["name"], Counter())[said["end"]] += 1
        if said["end"] not in ENDS[:2]:
            self.failures.append(said)
            print(f"{said['end']}: {said['name']} {said['number']} ({said['done']}): {said['why']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=900.0, help="stop after so long, whatever is left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.work:
        work(arguments)
    begun = time.monotonic()
    watched = Watched(arguments)
    watched.run()
    print(f"\n{'reader':<28}" + "".join(f"{end:>9}" for end in ENDS))
    total: Counter[str] = Counter()
    for name in watched.names:
        ends = watched.ends.get(name, Counter())
        total += ends
        print(f"{name:<28}" + "".join(f"{ends[end]:>9}" for end in ENDS))
    print(f"{'all':<28}" + "".join(f"{total[end]:>9}" for end in ENDS))
    seconds = time.monotonic() - begun
    print(f"{total.total()} cases of {len(watched.ends)} readers in {seconds:.0f} s, seed {arguments.seed}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"seed": arguments.seed, "seconds": seconds, "ends": watched.ends, "failures": watched.failures}
    (arguments.out / "fuzz.json").write_text(json.dumps(report, indent=1))
    return 1 if watched.failures else 0


if __name__ == "__main__":
    sys.exit(main())
