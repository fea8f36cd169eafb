"""Images per second when a whole network is tuned on one GPU, compared with the same network on one random batch.

python benchmarks/gpu_speed.py [--images voc.safetensors] [--backbones efficientnet-lite0,resnet50] [--batches 32,128]
    [--compile no,inductor] [--size 224] [--precision no]

The loop is `halflabel.fitting.loop.fit` on images in GPU memory, with crops and mirror images made there (view
"weak"), and with two views if a method uses two. The ceiling is forward pass, backward pass and optimizer step,
repeated on the same random batch and compiled in the same way. The loop's rate is the median of the epochs after the
first. `voc_tuned.py prepare` writes `voc.safetensors`; without it the images are noise.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.fitting.step import CompiledModel
from halflabel.images.device_views import DeviceViews
from halflabel.images.sources import Arrays
from halflabel.images.views import Plain, Strong, Weak
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded

CLASSES = 20


def make_model(name: str, method: Any) -> Model:
    backbone = build_backbone(name, pretrained=False)
    head = seeded(0, lambda: method.head(backbone.channels, CLASSES))
    return Model(backbone, head)


def ceiling(name: str, size: int, batch: int, mode: Any, precision: str, steps: int = 60) -> float:
    """Images per second on one random batch."""
    device = torch.device("cuda")
    model = make_model(name, recipe("bce").make()).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 2, (batch, CLASSES), device=device).float()
    compiled = (CompiledModel(model, batch) if mode == "inductor" else model).train()
    amp = torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16")

    def step() -> None:
        with amp:
            loss = binary_cross_entropy_with_logits(compiled(images).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(12):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return batch * steps / (time.perf_counter() - began)


def loop(name: str, images: torch.Tensor, batch: int, mode: Any, precision: Any, method: str, ema: float) -> float:
    """Images per second of the training loop."""
    size = images.shape[-1]
    names = Names.numbered(len(images))
    rng = np.random.default_rng(0)
    table = Table.from_dense(rng.choice(np.array([-1, 0, 1], np.int8), (len(images), CLASSES)))
    views = {"plain": Plain(size), "weak": Weak(size), "strong": Strong(size)}
    source = DeviceViews(Arrays(images, names, views), images.device, held=images)
    training_method = recipe(method).make()
    settings = Config(epochs=4, batch_size=batch, compile=mode, precision=precision, ema=ema, lr=1e-4, device="cuda")
    log = fit(make_model(name, training_method), training_method, source, table, settings).log
    return float(np.median([line["images_per_s"] for line in log[1:]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--backbones", default="efficientnet-lite0")
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--compile", default="no,inductor")
    parser.add_argument("--methods", default="bce")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--count", type=int, default=4096)
    parser.add_argument("--precision", default="no")
    parser.add_argument("--ema", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "gpu_speed.json")
    arguments = parser.parse_args()
    if arguments.images is None:
        images = torch.randint(
            0, 256, (arguments.count, 3, arguments.size, arguments.size), dtype=torch.uint8, device="cuda"
        )
    else:
        from safetensors import safe_open

        with safe_open(arguments.images, "pt", device="cuda") as file:
            images = file.get_slice("train")[: arguments.count]
    if images.shape[-1] != arguments.size:
        images = torch.nn.functional.interpolate(images.float(), (arguments.size, arguments.size), mode="bilinear")
        images = images.to(torch.uint8)
    rows = []
    for name in arguments.backbones.split(","):
        for batch in map(int, arguments.batches.split(",")):
            for mode in arguments.compile.split(","):
                limit = ceiling(name, arguments.size, batch, mode, arguments.precision)
                for method in arguments.methods.split(","):
                    rate = loop(name, images, batch, mode, arguments.precision, method, arguments.ema)
                    row = {"backbone": name, "batch": batch, "compile": mode, "precision": arguments.precision}
                    rows.append({**row, "method": method, "loop": rate, "ceiling": limit, "share": rate / limit})
                    setting = f"{name} {arguments.size} px batch {batch:3} compile {mode:8} {method:6}"
                    speed = f"{rate:6.0f} images/s, ceiling {limit:6.0f}, {rate / limit:.0%}"
                    print(f"{setting} {arguments.precision}: {speed}", flush=True)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
