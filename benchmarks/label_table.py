"""Benchmark a label table of Open Images' size: time and peak memory of each operation.

    python benchmarks/label_table.py [--images 9000000] [--classes 5000] [--known 60000000] [--only NAME ...]

Makes a random table, writes it in the binary format, and runs each operation in its own process that opens the file, so
that peak memory is measured per operation. `import` first writes the Open Images CSV and reads it. Files are in a
temporary folder (--folder keeps them). Prints a table and writes benchmarks/out/label_table.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from halflabel.labels import formats
from halflabel.labels.names import Names
from halflabel.labels.table import Table

HERE = Path(__file__).resolve()


def make_table(images: int, classes: int, known: int, seed: int = 0) -> Table:
    """A random table with image ids of 16 hexadecimal digits, as in Open Images; a few random entries coincide."""
    rng = np.random.default_rng(seed)
    # Class frequencies are skewed: the density falls with the square root.
    key = np.sort(rng.integers(0, images, known) * classes + (classes * rng.random(known) ** 2).astype(np.int64))
    key = key[np.append(True, key[1:] != key[:-1])]
    start = np.searchsorted(key, np.arange(images + 1) * classes)
    column = (key % classes).astype(np.int32)
    value = np.where(rng.random(len(key), dtype=np.float32) < 0.3, 1, -1).astype(np.int8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    number = np.arange(images, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # an odd factor, so that all ids differ
    text = digits[(number[:, None] >> np.arange(0, 64, 4, dtype=np.uint64)) & np.uint64(15)]
    offset = np.arange(0, 16 * images + 1, 16, dtype=np.int32)
    text = np.ascontiguousarray(text)
    names = Names(pa.StringArray.from_buffers(images, pa.py_buffer(offset), pa.py_buffer(text)))
    return Table.from_parts(names, Names(f"/m/{c:05d}" for c in range(classes)), start, column, value)


def rows_of_256(table: Table) -> str:
    rng = np.random.default_rng(1)
    seconds = []
    for _ in range(200):
        index = rng.integers(0, len(table), 256)
        began = time.perf_counter()
        table.rows(index)
        seconds.append(time.perf_counter() - began)
    return f"median {1e3 * np.median(seconds):.3f} ms, 90th {1e3 * np.quantile(seconds, 0.9):.3f} ms"


def drop_operation(protocol: str, **options: Any) -> Callable[[Table], str]:
    def run(table: Table) -> str:
        from halflabel.labels.drop import apply

        return f"{apply(protocol, table, **options).known:,} known"

    return run


def stats(table: Table) -> str:
    counts = table.stats
    return f"{counts.regime}, {counts.positives.sum():,} positives"


def graph(table: Table) -> str:
    from halflabel.methods.parts.label_graph import from_cooccurrence

    return f"{len(from_cooccurrence(table, 50).rows):,} edges"


def subset(table: Table) -> str:
    return f"{table.subset(np.arange(0, len(table), 2)).known:,} known"


def split(table: Table) -> str:
    return " + ".join(f"{len(part):,}" for part in table.split((0.9, 0.1)))


def inspect(path: Path) -> str:
    out = subprocess.run(
        [sys.executable, "-c", "from halflabel.cli import main; main()", "inspect", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout.splitlines()[0]


OPERATIONS: dict[str, Callable[[Table], str]] = {
    "open": repr,
    "rows (256)": rows_of_256,
    "stats": stats,
    "graph, top 50": graph,
    "drop partial 0.1": drop_operation("partial", share=0.1),
    "drop single-positive": drop_operation("single-positive"),
    "drop dense 0.1": drop_operation("dense", share=0.1),
    "drop per-class 20 + 20": drop_operation("per-class", positives=20, negatives=20),
    "drop corrupt 0.1": drop_operation("corrupt", share=0.1),
    "subset": subset,
    "split 0.9 + 0.1": split,
    "digest": lambda table: table.digest()[:8],
}


def run_operation(name: str, file: Path) -> dict[str, Any]:
    """Run one operation in this process: seconds without opening the file, and the peak memory with it."""
    began = time.perf_counter()
    if name == "import":
        source = file.with_name("train-annotations-human-labels.csv")
        rows = formats.read(source).rows
        result = f"{len(rows):,} rows, {len(rows) / (time.perf_counter() - began) / 1e6:.2f} M rows/s"
    elif name == "convert":
        formats.write(
            formats.read(file.with_name("train-annotations-human-labels.csv")).rows, file.with_name("b.labels")
        )
        result = f"{file.with_name('b.labels').stat().st_size / 1e6:,.0f} MB"
    elif name == "inspect":
        result = inspect(file)
    else:
        table = formats.read(file).table()
        if name != "open":
            began = time.perf_counter()
        result = OPERATIONS[name](table)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN if name == "inspect" else resource.RUSAGE_SELF)
    return {
        "name": name,
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_gib": peak_gib(children=name == "inspect"),
        "result": result,
    }


def peak_gib(*, children: bool = False) -> float:
    status = Path("/proc/self/status")
    if status.exists() and not children:  # getrusage also counts the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / (1 << 20)
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss / (1 << 30 if sys.platform == "darwin" else 1 << 20)


def write_csv(table: Table, path: Path) -> None:
    """Write the table as Open Images publishes labels."""
    import pyarrow.csv as pa_csv

    image, column, value = table.entries()
    kinds = pa.array(["verification", "crowdsource-verification"])
    with open(path, "wb") as file:
        file.write(b"ImageID,Source,LabelName,Confidence\n")
        for first in range(0, len(value), 1 << 20):
            part = slice(first, first + (1 << 20))
            block = pa.table(
                {
                    "ImageID": table.images.array.take(pa.array(image[part])),
                    "Source": kinds.take(pa.array(np.arange(len(value[part])) % 2)),
                    "LabelName": table.classes.array.take(pa.array(column[part])),
                    "Confidence": pa.array((value[part] > 0).astype(np.int8)),
                }
            )
            pa_csv.write_csv(block, file, pa_csv.WriteOptions(include_header=False, quoting_style="none"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=9_000_000)
    parser.add_argument("--classes", type=int, default=5_000)
    parser.add_argument("--known", type=int, default=60_000_000)
    parser.add_argument("--only", nargs="*", help="operations to run; default: all but import, convert and inspect")
    parser.add_argument("--folder", type=Path, help="keep the files here and reuse existing ones")
    parser.add_argument("--do", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        print(json.dumps(run_operation(arguments.do, arguments.folder / "a.labels")))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "a.labels"
        if not file.exists():
            formats.write(make_table(arguments.images, arguments.classes, arguments.known), file)
        names = arguments.only or list(OPERATIONS)
        source = file.with_name("train-annotations-human-labels.csv")
        if {"import", "convert"} & set(names) and not source.exists():
            write_csv(formats.read(file).table(), source)
        result: dict[str, Any] = {
            "table": repr(formats.read(file).table()),
            "file_mb": file.stat().st_size / 1e6,
            "done": [],
        }
        print(f"{result['table']}, {result['file_mb']:,.0f} MB, {os.cpu_count()} cores")
        for name in names:
            command = [sys.executable, str(HERE), "--folder", str(folder), "--do", name]
            line = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            result["done"].append(line)
            print(
                f"{name:24}{line['seconds']:9.2f} s ({line['cpu_seconds']:.1f} s of processor time)"
                f"{line['peak_gib']:8.2f} GiB   {line['result']}",
                flush=True,
            )
    out = HERE.parent / "out"
    out.mkdir(exist_ok=True)
    (out / "label_table.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
