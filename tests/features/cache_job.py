"""The jobs of test_feature_cache_jobs.py: python cache_job.py FOLDER NAME=IMAGES ... Each hangs after that many images.

They are forked, so that they need not import torch each, and wait for a file NAME.go to begin.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halflabel.features import feature_cache as cache
from halflabel.features import vector_store
from halflabel.features.backbones import build_backbone
from halflabel.images.sources import Images
from halflabel.images.views import Plain
from halflabel.labels.names import Names
from halflabel.system.reporter import Reporter


def work(folder: Path, name: str, limit: int) -> None:
    vector_store._POLL_SECONDS = 0.05
    torch.set_num_threads(1)
    backbone = build_backbone("tiny", size=32)
    computed = 0

    def count(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal computed
        computed += len(args[0])

    def progress(finished: int, total: int) -> None:
        (folder / f"{name}.at").write_text(str(finished))
        while computed >= limit:
            time.sleep(60)

    def report(line: str) -> None:
        with open(folder / f"{name}.log", "a") as file:
            print(line, file=file, flush=True)

    backbone.register_forward_pre_hook(count)
    files = sorted((folder / "images").iterdir())
    source = Images(files, Names.numbered(len(files)), {"plain": Plain(32)}, workers=1)
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    while not (folder / f"{name}.go").exists():
        time.sleep(0.02)
    features = cache.cache_features(
        backbone, source, folder / "cache", batch_size=2, reporter=Reporter(progress, report)
    )
    np.save(folder / f"{name}.npy", np.array(features.values))
    report(f"computed {computed} images")


def main(folder: Path, *jobs: str) -> None:
    for job in jobs:
        name, _, limit = job.partition("=")
        if not os.fork():
            try:
                work(folder, name, int(limit))
            except BaseException:
                (folder / f"{name}.error").write_text(traceback.format_exc())
            os._exit(0)
    for _ in jobs:
        os.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
