"""The cost of a step of each method beyond `bce`, in percent of a step of EfficientNet-Lite0 (224 px, batch 32).

python benchmarks/overhead.py [--classes 20] [--repeats 30]

The work of a method does not depend on the backbone, so it is timed on the head alone and compared with `bce`; the step
of the whole network is timed once. Sweeps over the training set are not part of a step.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from halflabel.labels.table import LabelTable
from halflabel.methods.base import Method, recipes, seeded
from halflabel.models.backbones import build_backbone
from halflabel.models.heads import Head, Model
from halflabel.system.memory import keep_freed_memory
from halflabel.types import Batch


def make_table(regime: str, images: int, classes: int) -> LabelTable:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((images, classes)) < 0.1, 1, -1)
    labels[np.arange(images), rng.integers(0, classes, images)] = 1
    if regime == "partial":
        labels[rng.random(labels.shape) < 0.5] = 0
    elif regime != "full":
        labels[labels < 0] = 0
    return LabelTable.from_dense(labels)


def step_seconds(method: Method, model: Model, batch: Batch, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        method.step(model, batch, 5).backward()
        seconds.append(time.perf_counter() - began)
        model.zero_grad(set_to_none=True)
    return float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--size", type=int, default=32, help="images per batch")
    arguments = parser.parse_args()
    keep_freed_memory()
    size, classes, channels, places = arguments.size, arguments.classes, 1280, 7
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(size, channels, places, places, generator=generator)
    images = torch.randint(0, 256, (size, 3, 224, 224), dtype=torch.uint8, generator=generator)
    index = torch.arange(size)

    def make_head(method: Method) -> Head:
        return seeded(0, lambda: method.head(channels, classes))

    bce = recipes()["bce"].make()
    full = make_table("full", 1000, classes)
    bce.start(full)
    labels = torch.from_numpy(full.rows(index.numpy()))
    network = Model(build_backbone("fast"), make_head(bce)).to(memory_format=torch.channels_last).train()
    network_step = step_seconds(bce, network, Batch(index, (images,), labels), 5)
    base = step_seconds(bce, Model(None, make_head(bce)), Batch(index, (maps,), labels), arguments.repeats)
    print(f"a bce step of the whole network: {network_step:.3f} s; of its head alone: {1e3 * base:.2f} ms")
    result = {}
    for name, recipe in recipes().items():
        method = recipe.make()
        regime = recipe.serves[-1]
        table = make_table(regime, 1000, classes)
        method.start(table)
        batch = Batch(index, (maps,) * len(method.views), torch.from_numpy(table.rows(index.numpy())))
        seconds = step_seconds(method, Model(None, make_head(method)), batch, arguments.repeats)
        result[name] = {"ms": 1e3 * seconds, "overhead_percent": 100 * (seconds - base) / network_step}
        print(f"{name:12} {regime:16} {1e3 * seconds:8.2f} ms   + {result[name]['overhead_percent']:.2f} %")
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "overhead.json").write_text(json.dumps({"whole_step_s": network_step, "methods": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
