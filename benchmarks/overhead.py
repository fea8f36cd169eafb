"""What each step of a method costs beyond `bce`, as a share of a whole step of EfficientNet-Lite0 (224 px, batch 32).

python benchmarks/overhead.py [--classes 20] [--repeats 30]

A method's own work does not depend on the backbone, so it is timed on a linear head alone, against `bce` on the same
head, in turns; the whole step is timed once. Sweeps over the training set come on top and are not part of a step.
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


def table_of(regime: str, images: int, classes: int) -> LabelTable:
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
    asked = parser.parse_args()
    keep_freed_memory()
    size, classes, channels, places = asked.size, asked.classes, 1280, 7
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(size, channels, places, places, generator=generator)
    images = torch.randint(0, 256, (size, 3, 224, 224), dtype=torch.uint8, generator=generator)
    index = torch.arange(size)

    def head_of(method: Method) -> Head:
        return seeded(0, lambda: method.head(channels, classes))

    bce = recipes()["bce"].make()
    full = table_of("full", 1000, classes)
    bce.start(full)
    labels = torch.from_numpy(full.rows(index.numpy()))
    network = Model(build_backbone(), head_of(bce)).to(memory_format=torch.channels_last).train()
    whole = step_seconds(bce, network, Batch(index, (images,), labels), 5)
    base = step_seconds(bce, Model(None, head_of(bce)), Batch(index, (maps,), labels), asked.repeats)
    print(f"a bce step of the whole network: {whole:.3f} s; of its head alone: {1e3 * base:.2f} ms")
    result = {}
    for name, recipe in recipes().items():
        method = recipe.make()
        regime = recipe.serves[-1]
        table = table_of(regime, 1000, classes)
        method.start(table)
        batch = Batch(index, (maps,) * len(method.views), torch.from_numpy(table.rows(index.numpy())))
        seconds = step_seconds(method, Model(None, head_of(method)), batch, asked.repeats)
        result[name] = {"ms": 1e3 * seconds, "overhead_percent": 100 * (seconds - base) / whole}
        print(f"{name:12} {regime:16} {1e3 * seconds:8.2f} ms   + {result[name]['overhead_percent']:.2f} %")
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "overhead.json").write_text(json.dumps({"whole_step_s": whole, "methods": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
