"""The cost of the training loop compared with a hand-written torch loop, measured alternately in one run.

python benchmarks/loop.py [--steps 12] [--features-only]

1. EfficientNet-Lite0 at 224 px, batch 32: seconds per step, `halflabel.fitting.loop.fit` against a plain loop.
2. Cached features, 5,717 × 1,280, 20 classes, 10 epochs with an evaluation each: total seconds, the same comparison.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from halflabel import metrics
from halflabel.evaluation.evaluate import ValidationMetric
from halflabel.features.backbones import build_backbone
from halflabel.features.heads import Linear, Model
from halflabel.fitting.config import Config
from halflabel.fitting.loop import fit
from halflabel.images.sources import Features, FetchedBatch, Plan
from halflabel.labels.names import Names
from halflabel.labels.table import Table
from halflabel.methods.base import recipe, seeded
from halflabel.system.memory import keep_freed_memory
from halflabel.system.rng import hash_names


class InMemoryImages:
    """Images in memory, so that the loop is timed and not the decoding."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.names = Names.numbered(len(images))
        self.hashes = hash_names(self.names.array)

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, plan: Plan, views: Sequence[str], *, seed: int = 0, epoch: int = 0) -> Iterator[FetchedBatch]:
        for index in plan:
            yield FetchedBatch(index, (self.images[torch.from_numpy(index)],))


def plain_loop(model: nn.Module, batches: list[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for images, labels in batches:
        loss = binary_cross_entropy_with_logits(model(images).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def time_network(steps: int, batch: int = 32, classes: int = 20) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    count = steps * batch
    images = torch.randint(0, 256, (count, 3, 224, 224), dtype=torch.uint8, generator=generator)
    present = torch.rand(count, classes, generator=generator) < 0.1
    table = Table.from_dense(torch.where(present, 1, -1).numpy())
    source, targets = InMemoryImages(images), present.float()

    def new_model() -> Model:
        head = seeded(0, lambda: Linear(1280, classes))
        assert isinstance(head, Linear)
        return Model(build_backbone("fast"), head).to(memory_format=torch.channels_last)

    settings = Config(epochs=1, batch_size=batch, schedule="constant", device="cpu", backbone_lr=1.0)
    fit_seconds, plain_seconds = [], []
    for _ in range(3):
        model = new_model()
        began = time.perf_counter()
        fit(model, recipe("bce").make(), source, table, settings)
        fit_seconds.append(time.perf_counter() - began)
        model = new_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
        began = time.perf_counter()
        plain_loop(model, list(zip(images.split(batch), targets.split(batch), strict=True)), optimizer)
        plain_seconds.append(time.perf_counter() - began)
    return {
        "ours_s_per_step": min(fit_seconds) / steps,
        "plain_s_per_step": min(plain_seconds) / steps,
        "ratio": min(fit_seconds) / min(plain_seconds),
    }


def time_cached_features(
    epochs: int = 10, batch: int = 32, channels: int = 1280, classes: int = 20
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    features, weight = (
        torch.randn(5717, channels, generator=generator),
        torch.randn(channels, classes, generator=generator),
    )
    present = features @ weight > 40
    held_out, truth = features[:1143], torch.where(present[:1143], 1, -1).to(torch.int8)
    table = Table.from_dense(torch.where(present, 1, -1).numpy())
    source = Features(features, Names.numbered(len(features)))
    validation = Features(held_out, Names.numbered(len(held_out)))
    targets = present.float()

    def run_plain() -> float:
        model = nn.Linear(channels, classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
        began = time.perf_counter()
        for _ in range(epochs):
            order = torch.randperm(len(features))
            for index in order.split(batch):
                loss = binary_cross_entropy_with_logits(model(features[index]), targets[index])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            with torch.inference_mode():
                metrics.mean_average_precision(model(held_out), truth)
        return time.perf_counter() - began

    def run_fit() -> float:
        model = Model(None, Linear(channels, classes))
        settings = Config(epochs=epochs, batch_size=batch, schedule="constant", device="cpu")
        began = time.perf_counter()
        fit(model, recipe("bce").make(), source, table, settings, validation=validation, judge=ValidationMetric(truth))
        return time.perf_counter() - began

    run_fit(), run_plain()  # the first run of each includes imports and allocation
    pairs = np.array([(run_fit(), run_plain()) for _ in range(3)]).min(0)
    return {"ours_s": float(pairs[0]), "plain_s": float(pairs[1]), "ratio": float(pairs[0] / pairs[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--features-only", action="store_true")
    arguments = parser.parse_args()
    keep_freed_memory()  # for both loops
    result = {"cached features": time_cached_features()}
    if not arguments.features_only:
        result["network"] = time_network(arguments.steps)
    for name, values in result.items():
        print(name, "  ".join(f"{key} {value:.4g}" for key, value in values.items()))
    out = Path(__file__).parent / "out"
    out.mkdir(exist_ok=True)
    (out / "loop.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
