"""Score all images of a source with a model, in one process or in several together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from halflabel.data.sources import Source, sequential_plan, share_unreadable
from halflabel.errors import NoReadableImage
from halflabel.models.heads import Model, run_head
from halflabel.system import distributed, memory
from halflabel.system.gpu_memory import MicroBatcher
from halflabel.system.reporter import SILENT, Reporter
from halflabel.system.rng import bits
from halflabel.types import Sweep

__all__ = ["PASSES", "score_source", "seed_generators"]

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
    mirror: bool = False,
    reporter: Reporter = SILENT,
    batcher: MicroBatcher | None = None,
    features: bool = True,
) -> Sweep:
    """Logits and features of the plain view of every image, in evaluation mode; NaN if an image cannot be read.

    With `mirror`, logits are the mean over the image and its mirror image (images, not cached features). `passes` is
    the number of Monte-Carlo dropout passes of the head, seeded by `seed`. Several processes score different batches,
    and each gets the scores of all. If the GPU runs out of memory, `batcher` makes batches smaller from then on.
    Without `features`, the features of the result have no columns.

    Memory: 4·C bytes per image for the logits, 4·D for the features, 4·C each for mean and spread of the passes; each
    process keeps each of these tables of 256 MB or more in a scratch file.
    """
    distributed.initialize()
    if mirror and model.backbone is None:
        raise ValueError("cached features have no mirror image")
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
                logits = output.logits
                if mirror:
                    logits = (logits + model.head(batcher.run(model.features, view.flip(-1))).logits) / 2
            store("logits", rows, logits)
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
    share_unreadable(source)
    tables = distributed.merge_rows(tables, plan)
    if not tables:
        raise NoReadableImage("not one image could be read", "check the image folder")
    return Sweep(**{"features": torch.zeros(len(source), 0), **tables})


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
