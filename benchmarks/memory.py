"""What every method takes in memory with thousands of classes: one step's peak, and what it keeps per image and class.

    python benchmarks/memory.py [--classes 5000] [--size 32] [--only NAME ...]
    python benchmarks/memory.py --sweep 400000 [--classes 5000]

Each method runs in a process of its own, on features of 1,280 channels (maps of 7 × 7 where its head scores places).
The peak is that of one training step, backward pass and optimizer (AdamW) included, beyond what stood there before it:
it holds the gradient and the optimizer's averages of the head. Kept: parameters and buffers of the method and its head,
measured with two numbers of images and two of classes and split into bytes per entry (image × class), per image and per
class. A method that refuses says so. Linux only. Prints a table and writes benchmarks/out/memory.json.

With --sweep: what methods that score all images between epochs take to relabel so many of them, of random logits and
20 known labels each. Anonymous memory (RssAnon, looked at 50 times a second) is what must fit into main memory; the
pages of scratch files, whose size is given too, need not. Writes benchmarks/out/sweep.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.errors import UserError
from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, recipe, recipes, seeded
from halflabel.methods.em import APL
from halflabel.methods.parts.curriculum import Curriculum
from halflabel.methods.parts.relabel import Relabeler
from halflabel.models.heads import Model
from halflabel.system import memory
from halflabel.types import Batch, Sweep

CHANNELS, PLACES = 1280, 7
MOST = 12 << 30  # bytes of addresses that a process may take
LONGEST = 60  # seconds that it may take
SWEEPS: dict[str, Callable[[], Relabeler]] = {
    "curriculum [a]": lambda: Curriculum("a", before="2"),
    "em-apl": lambda: APL(0.02, 0.9, 1, 10),
    "em-apl, ties": lambda: APL(0.02, 0.9, 1, 10),
}


Found = dict[str, Any]


def table_of(regime: str, images: int, classes: int) -> LabelTable:
    """About twenty known labels per image, a third of them present; all or one where the regime says so."""
    rng = np.random.default_rng(0)
    if regime == "full":
        return LabelTable.from_dense(np.where(rng.random((images, classes)) < 0.01, 1, -1))
    each = 1 if regime == "single-positive" else min(20, classes)
    image, column = np.repeat(np.arange(images), each), rng.integers(0, classes, images * each)
    value = np.where(rng.random(len(image)) < 0.3, 1, -1) if regime == "partial" else np.ones(len(image), np.int64)
    return LabelTable.from_entries(Names.numbered(images), Names.numbered(classes), image, column, value)


def kept(method: Method, head: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, those that no checkpoint holds included."""
    tensors = [*method.parameters(), *method.buffers(), *head.parameters(), *head.buffers()]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def build(name: str, images: int, classes: int) -> tuple[Method, Model, LabelTable]:
    how = recipe(name)
    table = table_of("partial" if "partial" in how.serves else how.serves[-1], images, classes)
    method = how.make()
    method.plan(10)
    method.start(table)
    return method, Model(None, seeded(0, lambda: method.head(CHANNELS, classes))), table


def measure(name: str, classes: int, size: int) -> dict[str, Any]:
    images = 4 * size
    method, model, table = build(name, images, classes)
    many = [kept(*_parts(name, n, c)) for n in (images, 2 * images) for c in (classes // 2, classes)]
    entry = (many[3] - many[2] - many[1] + many[0]) / (images * (classes - classes // 2))
    per_image = (many[3] - many[1]) / images - entry * classes
    per_class = (many[1] - many[0]) / (classes - classes // 2) - entry * images
    values = torch.rand(size, CHANNELS, PLACES, PLACES) if model.head.needs_maps else torch.rand(size, CHANNELS)
    index = torch.arange(size)
    batch = Batch(index, (values,) * len(method.views), torch.from_numpy(table.rows(index.numpy())))
    learned = [p for p in (*model.parameters(), *method.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, began = status("VmRSS"), time.perf_counter()
    method.step(model, batch, 5).backward()
    optimizer.step()
    return {
        "step_mb": (status("VmHWM") - before) / 1e6,
        "seconds": time.perf_counter() - began,
        "per_entry": entry,
        "per_image": per_image,
        "per_class": per_class,
    }


def sweep(name: str, images: int, classes: int) -> dict[str, Any]:
    """Seconds, anonymous memory and scratch files of one `absorb`."""
    relabel = SWEEPS[name]()
    table = table_of("partial", images, classes)
    relabel.start(table)
    logits = memory.scratch_zeros((images, classes))
    generator = torch.Generator().manual_seed(0)
    for part in torch.split(logits, 200):
        torch.randn(part.shape, generator=generator, out=part).mul_(2).sub_(4)
        if "ties" in name:  # as half precision leaves them
            part.copy_(part.half())
    before, peak, done = status("RssAnon"), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    told = relabel.absorb(Sweep(logits, torch.zeros(images, 0)), 1)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    sizes = [value.nbytes for value in (logits, *relabel.buffers())]
    return {
        "seconds": seconds,
        "anonymous_mb": peak / 1e6,
        "added_mb": (peak - before) / 1e6,
        "scratch_gb": sum(size for size in sizes if memory.is_large(size)) / 1e9,
        **told,
    }


def _parts(name: str, images: int, classes: int) -> tuple[Method, torch.nn.Module]:
    method, model, _ = build(name, images, classes)
    return method, model.head


def status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def apart(work: Callable[[], Found], *, limited: bool = True) -> Found:
    """Work in a process of its own, which may fail as it likes."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
            resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
        try:
            found = work()
        except UserError as error:
            found = {"refuses": str(error)}
        except (RuntimeError, MemoryError) as error:
            found = {"fails": str(error).splitlines()[0]}
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return dict(json.loads(said)) if said else {"fails": f"took more than {LONGEST} s"}


def each(names: Iterable[str], work: Callable[[str], Found], line: str, limited: bool = True) -> dict[str, Found]:
    """What each method needs, in a process of its own; shown as it comes, in a line or with why there is none."""
    result = {}
    for name in names:
        found = result[name] = apart(partial(work, name), limited=limited)
        why = next(iter(found.items()))
        print(f"{name:16}" + (line.format(**found) if "seconds" in found else f"{why[0]}: {why[1]}"), flush=True)
    return result


def write(file: str, content: dict[str, Any]) -> None:
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / file).write_text(json.dumps(content, indent=1) + "\n")


def sweeps(images: int, classes: int) -> None:
    print(f"{images:,} images × {classes:,} classes")
    print(f"{'':16}{'absorb':>10}{'anonymous memory':>20}{'of it added':>14}{'scratch files':>16}")
    line = "{seconds:8.1f} s{anonymous_mb:17.0f} MB{added_mb:11.0f} MB{scratch_gb:13.2f} GB"
    result = each(SWEEPS, partial(sweep, images=images, classes=classes), line, limited=False)
    write("sweep.json", {"images": images, "classes": classes, "methods": result})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=32, help="images per batch")
    parser.add_argument("--only", nargs="*", help="the methods to measure")
    parser.add_argument("--sweep", type=int, metavar="IMAGES", help="measure relabelling of so many images instead")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads cannot be split in two
    if asked.sweep:
        sweeps(asked.sweep, asked.classes)
        return
    print(f"{asked.classes:,} classes, batches of {asked.size}")
    print(f"{'':16}{'one step':>10}{'':10}{'kept per entry':>16}{'per image':>12}{'per class':>12}")
    line = "{step_mb:7.0f} MB{seconds:8.2f} s{per_entry:14.2f} B{per_image:10.0f} B{per_class:10.0f} B"
    result = each(asked.only or recipes(), partial(measure, classes=asked.classes, size=asked.size), line)
    write("memory.json", {"classes": asked.classes, "methods": result})


if __name__ == "__main__":
    main()
