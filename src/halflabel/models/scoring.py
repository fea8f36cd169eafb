"""Scoring: what a model says of every image of a source, by one process or by several together."""

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
from halflabel.types import DropoutPasses, Sweep

__all__ = ["PASSES", "score_source", "seed_generators"]

PASSES = 3  # a tag that keeps the random numbers of dropout passes apart from others


def score_source(
    model: Model,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    passes: DropoutPasses | None = None,
    seed: int = 0,
    mirror: bool = False,
    reporter: Reporter = SILENT,
    batcher: MicroBatcher | None = None,
    features: bool = True,
) -> Sweep:
    """Logits and features of every image in evaluation mode, plain view; NaN where an image cannot be read.

    With `mirror`, logits are the mean over the image and its mirror image (images, not cached features). With `passes`,
    the head goes over the same features so many times more with its dropout on, drawn from `seed`.
    `progress` is told (images done, of how many). Several processes score different batches, and each gets all.
    Where memory runs out `batcher` gives the backbone fewer images at once from then on. Without `features` those of
    the result have no columns.

    Memory: 4·C bytes per image for the logits, 4·D for the features, 4·C each for mean and spread of the passes; each
    of these tables lies in a scratch file from 256 MB on, one of each process.
    """
    distributed.initialize()
    if mirror and model.backbone is None:
        raise ValueError("cached features have no mirror image")
    batcher = MicroBatcher() if batcher is None else batcher
    was_training = model.training
    model.eval()
    found: dict[str, Tensor] = {}
    unread = [np.arange(0)]

    def keep(name: str, at: Tensor, values: Tensor) -> None:
        if name not in found:
            shape = len(source), values.shape[1]
            found[name] = memory.scratch_zeros(shape, what=f"the {name} of {len(source)} images take")
        found[name][at] = values.float().cpu()

    with torch.no_grad():  # not inference mode: a relabeler may keep what comes out, and train against it
        plan = sequential_plan(len(source), batch_size)
        numbers = range(len(plan))[distributed.rank() :: distributed.world_size()]
        fetched = source.fetch([plan[number] for number in numbers], ("plain",))
        for number, (images, views) in zip(numbers, fetched, strict=True):
            reporter.progress(min((number + distributed.world_size()) * batch_size, len(source)), len(source))
            unread.append(np.setdiff1d(plan[number], images, assume_unique=True))
            if not len(images):
                continue
            at = torch.from_numpy(images)
            view = views[0].to(device, non_blocking=True)
            with autocast():
                body = batcher.run(model.features, view)
                output = run_head(model.head, body)
                logits = output.logits
                if mirror:
                    logits = (logits + model.head(batcher.run(model.features, view.flip(-1))).logits) / 2
            keep("logits", at, logits)
            if features:
                keep("features", at, output.features)
            if passes is not None:
                seed_generators(int(bits(seed, PASSES, number)[0] >> np.uint64(1)), torch.device(device))
                with autocast(), _dropping(model.head):
                    drawn = torch.stack([model.head(body).logits.float() for _ in range(passes.count)])
                drawn = torch.sigmoid(drawn) if passes.of == "score" else drawn
                keep("mean", at, drawn.mean(0))
                keep("spread", at, drawn.std(0, correction=0))
    model.train(was_training)
    for values in found.values():  # not all rows at first: that would write the whole of a scratch file
        values[torch.from_numpy(np.concatenate(unread))] = math.nan
    share_unreadable(source)
    found = distributed.merge_rows(found, plan)
    if not found:
        raise NoReadableImage("not one image could be read", "check the image folder")
    return Sweep(**{"features": torch.zeros(len(source), 0), **found})


@contextmanager
def _dropping(head: nn.Module) -> Iterator[None]:
    """Dropout as in training, all else as in evaluation."""
    layers = [layer for layer in head.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.train()
    yield
    for layer in layers:
        layer.eval()


def seed_generators(seed: int, device: torch.device) -> None:
    """torch.manual_seed of this device alone: the function of that name spends longer on those that are not there."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
