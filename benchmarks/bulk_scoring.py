"""`halflabel predict RUN FEATURES --all --out` beside numpy and pyarrow, which do as little as any program must.

    python benchmarks/bulk_scoring.py [--images 50000] [--classes 1000] [--channels 512]

Features go through a linear head and a logistic curve, and all probabilities to Parquet. Each way is a process of its
own, with one thread; the ratio of their CPU seconds, both taken in this run, is what the time of another day is not
in. Start-up is counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TRAINED_ON = 1000  # images


class Use(NamedTuple):
    seconds: float  # of the CPU
    peak: float  # GB


def measure(*words: str | Path) -> Use:
    """The CPU time and memory of one command."""
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{words} failed")
    return Use(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20))


def write_features(folder: Path, images: int, channels: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(
        folder / "features.parquet", pa.schema([("image", pa.string()), ("features", pa.list_(pa.float16(), channels))])
    ) as file:
        for first in range(0, images, 8192):
            values = rng.normal(size=(min(8192, images - first), channels)).astype(np.float16)
            names = [f"photos/{number:08d}.jpg" for number in range(first, first + len(values))]
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), channels)
            file.write_table(pa.table({"image": names, "features": lists}))


def prepare(folder: Path, images: int, classes: int, channels: int) -> None:
    """Write features, and train a head on the first of them."""
    import halflabel

    write_features(folder / "features", images, channels)
    weight = np.random.default_rng(1).normal(size=(channels, classes)).astype(np.float32)
    np.save(folder / "head.npy", weight / channels**0.5)
    first = next(pq.ParquetFile(folder / "features/features.parquet").iter_batches(TRAINED_ON))
    x = first.column("features").flatten().to_numpy().reshape(len(first), -1).astype(np.float32)
    labels = halflabel.Table.from_dense(np.where(x @ weight > 0, 1, -1), first.column("image").to_pylist())
    halflabel.train(labels, folder / "features", folder / "run")


def floor(features: Path, head: Path, out: Path) -> None:
    """Score all features with numpy and write the probabilities with pyarrow, block by block."""
    weight = np.load(head)
    writer = None
    for batch in pq.ParquetFile(features / "features.parquet").iter_batches(8192):
        x = batch.column("features").flatten().to_numpy().reshape(len(batch), -1).astype(np.float32)
        scores = 1 / (1 + np.exp(-(x @ weight)))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(scores.reshape(-1)), scores.shape[1])
        table = pa.table({"image": batch.column("image"), "probabilities": lists})
        writer = writer or pq.ParquetWriter(out, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--floor", type=Path, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.floor:
        floor(*arguments.floor)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as in any installation
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        # A process of its own: a child begins with the largest memory of its parent.
        size = arguments.images, arguments.classes, arguments.channels
        preparation = multiprocessing.get_context("spawn").Process(target=prepare, args=(folder, *size))
        preparation.start()
        preparation.join()
        least = measure(__file__, "--floor", folder / "features", folder / "head.npy", folder / "floor.parquet")
        command = ("-m", "halflabel", "predict", folder / "run", folder / "features", "--all", "--out", folder / "out")
        measure(*command)
        ours = measure(*command, "--force")
    size = f"{arguments.images:,} images × {arguments.classes:,} classes of {arguments.channels} features"
    print(f"{size}\nnumpy and pyarrow  {least.seconds:6.1f} CPU seconds  {least.peak:.2f} GB")
    print(
        f"halflabel predict  {ours.seconds:6.1f} CPU seconds  {ours.peak:.2f} GB  {ours.seconds / least.seconds:.1f}×"
    )


if __name__ == "__main__":
    main()
