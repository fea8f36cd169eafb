"""The time of a training step of each method on a CPU, as a multiple of that of `bce`.

python benchmarks/overhead.py [--classes 80,1000] [--methods sst,plcl] [--maps] [--repeats 15] [--network]

A step is forward and backward pass of head and loss and one AdamW step, on 32 images with cached pooled features of
1,280 channels; `--maps` uses maps of 7 × 7 places instead. Half of the labels are known. Sweeps over the training set
are not part of a step. Methods with a warm-up are timed after it. Steps of `bce` and of the method alternate, and the
fastest of each counts; seconds are those of the processor, with one thread, so that other work on the machine counts
little. `--network` also prints the cost beyond `bce` in percent of a step of the whole EfficientNet-Lite0 at 224 px.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Model
from halflabel.labels.table import Table
from halflabel.methods.base import recipes, seeded
from halflabel.system.memory import keep_freed_memory
from halflabel.types import Batch

IMAGES, CHANNELS, PLACES = 32, 1280, 7
AFTER_WARM_UP = 6  # an epoch


def make_table(regime: str, images: int, classes: int) -> Table:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((images, classes)) < 0.1, 1, -1)
    labels[np.arange(images), rng.integers(0, classes, images)] = 1
    if regime == "partial":
        labels[rng.random(labels.shape) < 0.5] = 0
    elif regime != "full":
        labels[labels < 0] = 0
    return Table.from_dense(labels)


def make_step(
    name: str, classes: int, view: torch.Tensor, backbone: torch.nn.Module | None = None
) -> Callable[[], float]:
    """Return a function that trains one step and returns its seconds."""
    recipe = recipes()[name]
    method = recipe.make()
    table = make_table("partial" if "partial" in recipe.serves else recipe.serves[-1], 1000, classes)
    method.start(table)
    model = Model(backbone, seeded(0, lambda: method.head(CHANNELS, classes))).train()
    method.start(table)
    parameters = [p for part in (model, method) for p in part.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)
    index = torch.arange(IMAGES)
    batch = Batch(index, (view,) * len(method.views), torch.from_numpy(table.rows(index.numpy())))
    method.step(model, batch, 1)  # fills banks of features, from which prototypes are computed after the warm-up

    def step() -> float:
        began = time.process_time()
        method.step(model, batch, AFTER_WARM_UP).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.process_time() - began

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", default="80,1000")
    parser.add_argument("--methods", default="", help="all, if empty")
    parser.add_argument("--maps", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--network", action="store_true")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = (IMAGES, CHANNELS, PLACES, PLACES) if arguments.maps else (IMAGES, CHANNELS)
    view = torch.rand(shape, generator=generator)
    whole = None
    if arguments.network:
        images = torch.randint(0, 256, (IMAGES, 3, 224, 224), dtype=torch.uint8, generator=generator)
        step = make_step("bce", 20, images, build_backbone("fast").to(memory_format=torch.channels_last))
        whole = min(step() for _ in range(5))
        print(f"a bce step of the whole network: {whole:.3f} s")
    names = arguments.methods.split(",") if arguments.methods else [name for name in recipes() if name != "bce"]
    result = []
    for classes in map(int, arguments.classes.split(",")):
        for name in names:
            base, own = make_step("bce", classes, view), make_step(name, classes, view)
            times = [(base(), base(), base(), own()) for _ in range(arguments.repeats)]
            bce, seconds = min(min(row[:3]) for row in times), min(row[3] for row in times)
            row = {
                "classes": classes,
                "method": name,
                "ms": 1e3 * seconds,
                "bce_ms": 1e3 * bce,
                "over_bce": seconds / bce,
            }
            line = f"{classes:5} {name:12} {row['ms']:8.2f} ms, {row['over_bce']:6.1f} × bce ({row['bce_ms']:.2f} ms)"
            if whole is not None:
                row["percent_of_network"] = 100 * (seconds - bce) / whole
                line += f", + {row['percent_of_network']:.2f} %"
            result.append(row)
            print(line, flush=True)
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "overhead.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
