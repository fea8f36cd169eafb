"""How a label table of Open Images' size behaves: memory, and the time to fetch a batch of rows.

python benchmarks/label_table.py [--images 9000000] [--classes 5000] [--known 60000000]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from halflabel.labels.names import Names
from halflabel.labels.table import LabelTable


def make(images: int, classes: int, known: int, seed: int = 0) -> LabelTable:
    """A random table with image ids of 16 hexadecimal digits, as Open Images has them."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(known, np.full(images, 1 / images))
    start = np.zeros(images + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    image = np.repeat(np.arange(images, dtype=np.int32), counts)
    column = rng.integers(0, classes, known, dtype=np.int16)
    column = column[np.lexsort((column, image))]
    value = np.where(rng.random(known, dtype=np.float32) < 0.3, 1, -1).astype(np.int8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.empty((images, 16), np.uint8)
    for place in range(16):
        text[:, place] = digits[(np.arange(images) * 0x9E3779B1 >> (2 * place)) & 15]
    text[:, :8] = digits[(np.arange(images)[:, None] >> (4 * np.arange(8))) & 15]  # makes them distinct
    offsets = pa.py_buffer(np.arange(0, 16 * images + 1, 16, dtype=np.int32))
    names = pa.Array.from_buffers(pa.string(), images, [None, offsets, pa.py_buffer(text)])
    return LabelTable(Names(names), Names(f"/m/{c:05d}" for c in range(classes)), start, column, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=9_000_000)
    parser.add_argument("--classes", type=int, default=5_000)
    parser.add_argument("--known", type=int, default=60_000_000)
    asked = parser.parse_args()
    table = make(asked.images, asked.classes, asked.known)
    rng = np.random.default_rng(1)
    seconds = []
    for _ in range(200):
        index = rng.integers(0, asked.images, 256)
        began = time.perf_counter()
        table.rows(index)
        seconds.append(time.perf_counter() - began)
    result = {
        "table": repr(table),
        "megabytes": table.nbytes / 1e6,
        "rows_256_ms_median": 1e3 * float(np.median(seconds)),
        "rows_256_ms_90th": 1e3 * float(np.quantile(seconds, 0.9)),
    }
    for name, value in result.items():
        print(f"{name:20} {value if isinstance(value, str) else round(value, 3)}")
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "label_table.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
