"""The speed and memory of features computed on Ray (`--engine ray`), beside one process.

    python benchmarks/ray_speed.py [--images 1000000] [--files 2000] [--size 32] [--backbone tiny]
        [--kills 2]

The images are small PNG files, each named many times, so that starting, sending and storing weigh more than they do for
photos. A process computes the feature cache with each engine; another one adds up the CPU time and the memory (PSS) of
it and of all processes that it started, twice a second. Images per CPU second count from the first finished block to
the last, so that starting Ray and loading the network are left out. With `--kills` Ray computes them once more, in a
process that is killed so many times and started again. All caches must have the same bytes. Linux only.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image


def compute(arguments: argparse.Namespace) -> None:
    """Compute the cache, in a process of its own; print the number of images after each block."""
    from halflabel.features.backbones import build_backbone
    from halflabel.features.feature_cache import cache_features
    from halflabel.images.sources import Images
    from halflabel.images.views import Plain
    from halflabel.labels.names import Names
    from halflabel.system.ray_engine import use_engine
    from halflabel.system.reporter import Reporter

    files = sorted((arguments.folder / "images").iterdir())
    paths = [files[number % len(files)] for number in range(arguments.images)]
    source = Images(paths, Names.numbered(len(paths)), {"plain": Plain(arguments.size)})
    backbone = build_backbone(arguments.backbone, size=arguments.size)
    with use_engine(arguments.engine):
        shown = Reporter(lambda done, total: print(done, flush=True) if done % 1024 == 0 or done == total else None)
        cache_features(backbone, source, arguments.folder / arguments.cache, reporter=shown)


def usage(root: int, seen: dict[int, int]) -> tuple[float, float]:
    """CPU seconds and memory (GiB) of a process and of all its descendants; `seen` keeps the time of ended ones."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split() if folder.name.isdigit() else []
        except OSError:
            continue
        if fields:
            parents[int(folder.name)], ticks[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:13]))
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    memory = 0
    for pid in family:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            memory += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    seen.update({pid: ticks[pid] for pid in family if pid in ticks})
    return sum(seen.values()) / os.sysconf("SC_CLK_TCK"), memory / 2**20


def start(engine: str, arguments: argparse.Namespace, folder: Path, cache: str) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--engine", engine, "--folder", str(folder), "--images", str(arguments.images)]
    words += ["--size", str(arguments.size), "--backbone", arguments.backbone, "--cache", cache]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def kill_and_resume(arguments: argparse.Namespace, folder: Path) -> list[int]:
    """Compute the cache "killed" with Ray; return how many images each killed process had done."""
    killed = []
    for number in range(1, arguments.kills + 1):
        process = start("ray", arguments, folder, "killed")
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= number * arguments.images / (arguments.kills + 1):
                process.kill()
                killed.append(int(line))
                break
        process.wait()
    if start("ray", arguments, folder, "killed").wait():
        raise SystemExit("the process started after the last kill failed")
    return killed


def measure(engine: str, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    process = start(engine, arguments, folder, engine)
    assert process.stdout is not None
    peak, sampled, points = 0.0, 0.0, []
    seen: dict[int, int] = {}
    for line in process.stdout:
        done, now = int(line), time.perf_counter()
        if done < arguments.images and (now - sampled >= 0.5 or not points):  # the workers end after the last block
            seconds, memory = usage(process.pid, seen)
            peak, sampled = max(peak, memory), now
            points.append((done, seconds, now))
    if process.wait():
        raise SystemExit(f"the engine {engine} failed")
    (first, cpu_before, began), (last, cpu, ended) = points[0], points[-1]
    return {
        "images per CPU second": round((last - first) / (cpu - cpu_before), 1),
        "images per second": round((last - first) / (ended - began), 1),
        "peak GiB": round(peak, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        compute(arguments)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "images").mkdir()
        for number, pixels in enumerate(
            np.random.default_rng(0).integers(0, 256, (arguments.files, 40, 40, 3), dtype=np.uint8)
        ):
            Image.fromarray(pixels).save(folder / "images" / f"{number:06d}.png")
        result = {engine: measure(engine, arguments, folder) for engine in ("local", "ray")}
        print(json.dumps(result), flush=True)
        killed = kill_and_resume(arguments, folder) if arguments.kills else []
        names = [*result, *(["killed"] if killed else [])]
        caches = [next((folder / name).glob("*/values.npy")) for name in names]
        share = result["ray"]["images per CPU second"] / result["local"]["images per CPU second"]
        facts = {"images": arguments.images, "load": os.getloadavg()[0], "killed after": killed}
        facts["equal bytes"] = all(filecmp.cmp(caches[0], cache, shallow=False) for cache in caches[1:])
        print(json.dumps({**facts, **result, "share per core": round(share, 3)}, indent=1))


if __name__ == "__main__":
    main()
