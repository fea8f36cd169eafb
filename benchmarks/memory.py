"""The memory of every method with thousands of classes: peak of one step, and stored bytes per image and class.

    python benchmarks/memory.py [--classes 5000] [--size 32] [--only NAME ...]
    python benchmarks/memory.py --sweep 400000 [--classes 5000]

Each method runs in its own process, on features of 1,280 channels (maps of 7 × 7 if its head needs maps). The peak is
that of one training step with backward pass and optimizer (AdamW), beyond the memory before the step: it includes the
gradient and the optimizer state of the head. Stored are the parameters and buffers of the method and its head, measured
with two numbers of images and two of classes and split into bytes per entry (image × class), per image and per class.
For a method that refuses, the reason is shown. Linux only. Prints a table and writes benchmarks/out/memory.json.

With --sweep: the memory that relabelling so many images takes, for methods that score all images between epochs, from
random logits and 20 known labels per image. Anonymous memory (RssAnon, sampled 50 times a second) must fit into main
memory; the pages of scratch files, whose size is shown too, need not. Writes benchmarks/out/sweep.json.
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
from halflabel.features.heads import Model
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import Method, recipe, recipes, seeded
from halflabel.methods.em import APL
from halflabel.methods.parts.curriculum import Curriculum
from halflabel.methods.parts.relabel import Relabeler
from halflabel.system import memory
from halflabel.types import Batch, Sweep

CHANNELS, PLACES = 1280, 7
MAX_BYTES = 12 << 30  # address space of a process
MAX_SECONDS = 60  # CPU time of a process
SWEEPS: dict[str, Callable[[], Relabeler]] = {
    "curriculum [a]": lambda: Curriculum("a", before="2"),
    "em-apl": lambda: APL(0.02, 0.9, 1, 10),
    "em-apl, ties": lambda: APL(0.02, 0.9, 1, 10),
}

Measurement = dict[str, Any]


def make_table(regime: str, images: int, classes: int) -> Table:
    """About twenty known labels per image, a third of them present; all labels or one if the regime says so."""
    rng = np.random.default_rng(0)
    if regime == "full":
        return Table.from_dense(np.where(rng.random((images, classes)) < 0.01, 1, -1))
    per_image = 1 if regime == "single-positive" else min(20, classes)
    image, column = np.repeat(np.arange(images), per_image), rng.integers(0, classes, images * per_image)
    value = np.where(rng.random(len(image)) < 0.3, 1, -1) if regime == "partial" else np.ones(len(image), np.int64)
    return Table.from_entries(Names.numbered(images), Names.numbered(classes), image, column, value)


def stored_bytes(method: Method, head: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, also of those that are not in checkpoints."""
    tensors = [*method.parameters(), *method.buffers(), *head.parameters(), *head.buffers()]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def build(name: str, images: int, classes: int) -> tuple[Method, Model, Table]:
    method_recipe = recipe(name)
    table = make_table("partial" if "partial" in method_recipe.serves else method_recipe.serves[-1], images, classes)
    method = method_recipe.make()
    method.plan(10)
    method.start(table)
    return method, Model(None, seeded(0, lambda: method.head(CHANNELS, classes))), table


def measure(name: str, classes: int, size: int) -> dict[str, Any]:
    images = 4 * size
    method, model, table = build(name, images, classes)
    sizes = [stored_bytes(*_parts(name, n, c)) for n in (images, 2 * images) for c in (classes // 2, classes)]
    entry = (sizes[3] - sizes[2] - sizes[1] + sizes[0]) / (images * (classes - classes // 2))
    per_image = (sizes[3] - sizes[1]) / images - entry * classes
    per_class = (sizes[1] - sizes[0]) / (classes - classes // 2) - entry * images
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
    table = make_table("partial", images, classes)
    relabel.start(table)
    logits = memory.scratch_zeros((images, classes))
    generator = torch.Generator().manual_seed(0)
    for part in torch.split(logits, 200):
        torch.randn(part.shape, generator=generator, out=part).mul_(2).sub_(4)
        if "ties" in name:  # equal logits, as half precision gives them
            part.copy_(part.half())
    before, peak, done = status("RssAnon"), 0, threading.Event()

    def sample_memory() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, status("RssAnon"))

    sampler = threading.Thread(target=sample_memory)
    sampler.start()
    began = time.perf_counter()
    numbers = relabel.absorb(Sweep(logits, torch.zeros(images, 0)), 1)
    seconds = time.perf_counter() - began
    done.set()
    sampler.join()
    sizes = [value.nbytes for value in (logits, *relabel.buffers())]
    return {
        "seconds": seconds,
        "anonymous_mb": peak / 1e6,
        "added_mb": (peak - before) / 1e6,
        "scratch_gb": sum(size for size in sizes if memory.is_large(size)) / 1e9,
        **numbers,
    }


def _parts(name: str, images: int, classes: int) -> tuple[Method, torch.nn.Module]:
    method, model, _ = build(name, images, classes)
    return method, model.head


def status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def in_process(work: Callable[[], Measurement], *, limited: bool = True) -> Measurement:
    """Run a function in its own process, so that a failure does not end this one."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        try:
            result = work()
        except UserError as error:
            result = {"refuses": str(error)}
        except (RuntimeError, MemoryError) as error:
            result = {"fails": str(error).splitlines()[0]}
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        output = file.read()
    os.waitpid(child, 0)
    return dict(json.loads(output)) if output else {"fails": f"took more than {MAX_SECONDS} s"}


def measure_all(
    names: Iterable[str], work: Callable[[str], Measurement], line: str, limited: bool = True
) -> dict[str, Measurement]:
    """Measure each method in its own process, and print its line or the reason why there is none."""
    results = {}
    for name in names:
        measured = results[name] = in_process(partial(work, name), limited=limited)
        reason = next(iter(measured.items()))
        text = line.format(**measured) if "seconds" in measured else f"{reason[0]}: {reason[1]}"
        print(f"{name:16}{text}", flush=True)
    return results


def write(file: str, content: dict[str, Any]) -> None:
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / file).write_text(json.dumps(content, indent=1) + "\n")


def sweeps(images: int, classes: int) -> None:
    print(f"{images:,} images × {classes:,} classes")
    print(f"{'':16}{'absorb':>10}{'anonymous memory':>20}{'of it added':>14}{'scratch files':>16}")
    line = "{seconds:8.1f} s{anonymous_mb:17.0f} MB{added_mb:11.0f} MB{scratch_gb:13.2f} GB"
    result = measure_all(SWEEPS, partial(sweep, images=images, classes=classes), line, limited=False)
    write("sweep.json", {"images": images, "classes": classes, "methods": result})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=32, help="images per batch")
    parser.add_argument("--only", nargs="*", help="the methods to measure")
    parser.add_argument(
        "--sweep", type=int, metavar="IMAGES", help="measure relabelling of this number of images instead"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads cannot be forked
    if arguments.sweep:
        sweeps(arguments.sweep, arguments.classes)
        return
    print(f"{arguments.classes:,} classes, batches of {arguments.size}")
    print(f"{'':16}{'one step':>10}{'':10}{'stored per entry':>18}{'per image':>12}{'per class':>12}")
    line = "{step_mb:7.0f} MB{seconds:8.2f} s{per_entry:14.2f} B{per_image:10.0f} B{per_class:10.0f} B"
    result = measure_all(
        arguments.only or recipes(), partial(measure, classes=arguments.classes, size=arguments.size), line
    )
    write("memory.json", {"classes": arguments.classes, "methods": result})


if __name__ == "__main__":
    main()
