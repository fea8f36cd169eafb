"""Score all images of a source with a model, in one process or in several together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.errors import NoReadableImage
from halflabel.features.feature_blocks import goes_to_ray, map_images
from halflabel.features.heads import Model, run_head
from halflabel.features.vector_store import Block
from halflabel.images.sources import Images, Source, sequential_plan, share_what_was_read
from halflabel.system import distributed, memory
from halflabel.system.gpu_memory import MicroBatcher
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits
from halflabel.types import Sweep

PASSES = 3  # a tag that separates the random numbers of dropout passes from others


def score_source(
    model: Model,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    passes: int = 0,
    seed: int = 0,
    reporter: Reporter = SILENT,
    batcher: MicroBatcher | None = None,
    features: bool = True,
) -> Sweep:
    """Logits and features of the plain view of every image, in evaluation mode; NaN if an image cannot be read.

    `passes` is the number of Monte-Carlo dropout passes of the head, seeded by `seed`. Several processes score
    different batches, and each gets the scores of all. If the GPU runs out of memory, `batcher` makes batches smaller.
    Without `features`, those of the result have no columns. Tables of 256 MB or more are in scratch files.
    """
    distributed.initialize()
    batcher = MicroBatcher() if batcher is None else batcher
    was_training = model.training
    model.eval()
    tables: dict[str, Tensor] = {}
    unreadable = [np.arange(0)]

    def store(name: str, rows: Tensor, values: Tensor) -> None:
        if name not in tables:
            shape = len(source), values.shape[1]
            tables[name] = memory.scratch_zeros(shape, what=f"the {name} of {len(source)} images take")
        tables[name][rows] = values.float().cpu()

    with torch.no_grad():  # not inference mode: a relabeler may keep the result, and train against it
        plan = sequential_plan(len(source), batch_size)
        numbers = range(len(plan))[distributed.rank() :: distributed.world_size()]
        fetched = source.fetch([plan[number] for number in numbers], ("plain",))
        for number, (images, views) in zip(numbers, fetched, strict=True):
            reporter.progress(min((number + distributed.world_size()) * batch_size, len(source)), len(source))
            unreadable.append(np.setdiff1d(plan[number], images, assume_unique=True))
            if not len(images):
                continue
            rows = torch.from_numpy(images)
            view = views[0].to(device, non_blocking=True)
            with autocast():
                head_input = batcher.run(model.features, view)
                output = run_head(model.head, head_input)
            store("logits", rows, output.logits)
            if features:
                store("features", rows, output.features)
            if passes:
                seed_generators(int(bits(seed, PASSES, number)[0] >> np.uint64(1)), torch.device(device))
                with autocast(), _dropout_on(model.head):
                    drawn = torch.stack([model.head(head_input).logits.float() for _ in range(passes)])
                store("mean", rows, drawn.mean(0))
                store("spread", rows, drawn.std(0, correction=0))
    model.train(was_training)
    for values in tables.values():  # at the end: filling all rows with NaN first would write the whole scratch file
        values[torch.from_numpy(np.concatenate(unreadable))] = math.nan
    share_what_was_read(source)
    tables = distributed.merge_rows(tables, plan)
    if not tables:
        raise NoReadableImage("not one image could be read", "check the image folder")
    return Sweep(**{"features": torch.zeros(len(source), 0), **tables})


@dataclass
class ImageScorer:
    """Logits of images, batch by batch, in memory that does not grow with the images; Ray's workers hold a copy."""

    model: Model
    classes: int
    device: torch.device | str
    batch_size: int

    def stream(self, source: Source, reporter: Reporter = SILENT) -> Iterator[Tensor]:
        """Yield the logits (B, C) of all images, in order; NaN for unreadable images."""
        if isinstance(source, Images) and goes_to_ray(source):
            for block in map_images(self, source, self.batch_size, np.arange(len(source))):
                reporter.progress(int(block.images[-1]) + 1, len(source))
                yield torch.tensor(block.values)
            return
        model, batcher = self.model.to(self.device).eval(), MicroBatcher()
        plan = sequential_plan(len(source), self.batch_size)
        for planned, (images, views) in zip(plan, source.fetch(plan, ("plain",)), strict=True):
            logits = torch.full((len(planned), self.classes), math.nan)
            if len(images):
                with torch.no_grad():
                    output = run_head(model.head, batcher.run(model.features, views[0].to(self.device)))
                logits[torch.from_numpy(images - planned[0])] = output.logits.float().cpu()
            reporter.progress(int(planned[-1]) + 1, len(source))
            yield logits

    def __call__(self, part: Images) -> Block:
        """Return the logits of all images of a part, NaN for unreadable ones."""
        return Block(np.arange(len(part)), torch.cat(list(self.stream(part))).numpy(), {**part.bad}, part.digests)


@contextmanager
def _dropout_on(head: nn.Module) -> Iterator[None]:
    """Dropout layers in training mode, all others in evaluation mode."""
    layers = [layer for layer in head.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.train()
    yield
    for layer in layers:
        layer.eval()


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the CPU and this device; faster than torch.manual_seed, which tries all kinds of devices."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
