"""The jobs of test_feature_blocks.py: python ray_job.py FOLDER local|ray|kill-worker|kill-driver.

Computes features and scores of the images of FOLDER/images into FOLDER/JOB. `kill-worker` kills one of two workers of
its cluster after the first block, `kill-driver` itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from halflabel.features import feature_cache
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Linear, Model
from halflabel.features.scoring import ImageScorer
from halflabel.images.sources import Images
from halflabel.images.views import Plain
from halflabel.labels.names import Names
from halflabel.system.ray_engine import use_engine
from halflabel.system.reporter import Reporter


def worker_processes() -> list[int]:
    """The processes of Ray workers that this process has started."""
    processes = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"ray::_Worker" in (folder / "cmdline").read_bytes():
                ancestor = int(folder.name)
                while ancestor > 1 and ancestor != os.getpid():
                    ancestor = int((Path("/proc") / str(ancestor) / "stat").read_text().rpartition(")")[2].split()[1])
                processes += [int(folder.name)] if ancestor == os.getpid() else []
        except OSError:
            continue
    return sorted(processes)


def main(folder: Path, job: str) -> None:
    out = folder / ("ray" if job.startswith("kill-driver") else job)
    files = sorted((folder / "images").iterdir())
    source = Images(files, Names.numbered(len(files)), {"plain": Plain(32)}, max_bad=1.0)
    backbone = build_backbone("tiny", size=32)
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        print(done, flush=True)
        if done < total and not seen:
            if job == "kill-worker":
                processes = worker_processes()
                assert len(processes) == 2
                os.kill(processes[0], signal.SIGKILL)
            elif job == "kill-driver":
                os.kill(os.getpid(), signal.SIGKILL)
        seen.append(done)

    torch.manual_seed(0)
    scorer = ImageScorer(Model(backbone, Linear(backbone.channels, 5)).eval(), 5, "cpu", 16)
    with use_engine("local" if job == "local" else "ray"):
        feature_cache.cache_features(backbone, source, out, batch_size=16, reporter=Reporter(progress))
        np.save(out / "logits.npy", torch.cat(list(scorer.stream(source))).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
