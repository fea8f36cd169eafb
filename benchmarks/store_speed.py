"""The speed of reading a pack from an S3 server on this machine, beside the same pack on the disk.

    python benchmarks/store_speed.py PHOTOS [--images 2000] [--workers 8] [--size 448] [--repeats 3]

Packs the photos, uploads the pack to a moto server in another process and fetches weak views of all images: from the
disk; from the store with an empty cache (every block is requested); from the store again (all blocks are in the cache).
The ways are measured alternately, after a few batches in which the workers start. Prints images per second and the
share of the disk's speed. The server, which shares the cores, is part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from halflabel.images.decode import find_images
from halflabel.images.pack.read import PackSettings
from halflabel.images.pack.source import open_packed_images
from halflabel.images.pack.write import pack_images
from halflabel.images.views import Plain, Weak
from halflabel.labels.names import Names
from halflabel.system import remote


def run_server(folder: Path, connection: Any) -> None:
    from s3_server import S3Server

    server = S3Server()
    server.put(folder, "bucket")
    connection.send(server.port)
    connection.recv()


def measure(folder: Path, names: Names, arguments: argparse.Namespace) -> float:
    views = {"plain": Plain(arguments.size), "weak": Weak(arguments.size)}
    source = open_packed_images(names, folder, views, workers=arguments.workers, max_bad=1.0)
    plan = [np.arange(first, min(first + 16, len(names))) for first in range(0, len(names), 16)]
    warm_up = 2 * max(arguments.workers, 1)  # batches until all workers have started
    for _ in source.fetch(plan[:warm_up], ("weak",)):
        pass
    began = time.perf_counter()
    seen = sum(len(batch.images) for batch in source.fetch(plan[warm_up:], ("weak",)))
    return seen / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "photos").mkdir()
        for path in find_images(arguments.photos)[: arguments.images]:
            (place / "photos" / path.name).symlink_to(path)
        settings = PackSettings(size=arguments.size)
        about = pack_images(place / "photos", place / "up" / "pack", settings, max_bad=1.0, shard_bytes=32 << 20)
        names = Names(path.name for path in find_images(place / "up" / "pack"))
        ours, theirs = multiprocessing.Pipe()
        os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
        server = multiprocessing.get_context("spawn").Process(target=run_server, args=(place / "up", theirs))
        server.start()
        os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{ours.recv()}", "HALFLABEL_CACHE": str(place / "cache")}
        speeds: dict[str, list[float]] = {"disk": [], "store": [], "store again": []}
        for _ in range(arguments.repeats):
            speeds["disk"].append(measure(place / "up" / "pack", names, arguments))
            shutil.rmtree(place / "cache", ignore_errors=True)
            remote._copy.cache_clear()
            for name in ("store", "store again"):
                speeds[name].append(measure(Path("s3://bucket/pack"), names, arguments))
        ours.send("stop")
        server.join()
    medians = {name: float(np.median(values)) for name, values in speeds.items()}
    shares = {name: round(value / medians["disk"], 3) for name, value in medians.items()}
    facts = {"images": len(names), "bytes": about["bytes"], "load": os.getloadavg()[0]}
    print(json.dumps({**facts, "images/s": {k: round(v) for k, v in medians.items()}, "share": shares}, indent=1))


if __name__ == "__main__":
    main()
