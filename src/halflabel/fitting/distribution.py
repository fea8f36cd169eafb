"""How a training is spread over processes; the loop asks a `Distribution` for everything that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.fitting.compiled_model import CompiledModel
from halflabel.fitting.config import Settings
from halflabel.fitting.data_parallel import WholeBatchParallel
from halflabel.images.sources import FetchedBatch, Plan, Source
from halflabel.system import distributed


def place_model(model: Model, settings: Settings, device: torch.device) -> Model:
    """Move a model to the device, in the memory layout of the settings."""
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model.to(device)


def distribute(plain: Model, settings: Settings) -> Distribution:
    """The distribution for the settings and the number of processes. `plain` comes from `place_model`."""
    if distributed.is_distributed():
        if settings.compile != "no":
            raise UserError(f"--compile {settings.compile} works in one process only", "leave --compile out")
        return DataParallel(plain)
    return Distribution(plain, settings)


class Distribution:
    """Training in one process. `plain` is trained, scored and saved; `model` is what the method calls."""

    def __init__(self, plain: Model, settings: Settings) -> None:
        self.plain = plain
        is_compiled = settings.compile == "inductor"
        self.model: nn.Module = CompiledModel(plain, settings.batch_size) if is_compiled else plain
        self.can_split_batches = not is_compiled  # a compiled model takes one batch size

    def fetch(
        self, source: Source, plan: Plan, views: Sequence[str], *, seed: int, epoch: int
    ) -> Iterator[FetchedBatch]:
        """For each batch, the numbers of all its images and the views of those of this process."""
        return iter(source.fetch(plan, views, seed=seed, epoch=epoch))

    def average_gradients(self) -> None:
        """Replace the gradients of this process by their mean over all processes."""


class DataParallel(Distribution):
    """Several processes; every process runs the model on its slice of a batch."""

    def __init__(self, plain: Model) -> None:
        self.plain = plain
        self.model = self.parallel = WholeBatchParallel(plain)
        self.can_split_batches = False

    def fetch(
        self, source: Source, plan: Plan, views: Sequence[str], *, seed: int, epoch: int
    ) -> Iterator[FetchedBatch]:
        return self.parallel.fetch(source, plan, views, seed=seed, epoch=epoch)

    def average_gradients(self) -> None:
        self.parallel.average_gradients()
