"""How a training is spread over processes: one process, or data parallel.

The loop asks a `Distribution` for everything that differs between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from halflabel.data.sources import FetchedBatch, Plan, Source
from halflabel.models.heads import Model
from halflabel.system import distributed
from halflabel.training.compiled_model import CompiledModel
from halflabel.training.config import Settings
from halflabel.training.data_parallel import WholeBatchParallel

__all__ = ["Distribution", "distribute"]


def distribute(plain: Model, settings: Settings) -> Distribution:
    """The distribution for the settings and the number of processes."""
    if distributed.is_distributed():
        return DataParallel(plain)
    return Distribution(plain, settings)


class Distribution:
    """Training in one process; the base class of `DataParallel`.

    plain      the model whose weights are trained, scored and saved
    model      what the method calls
    """

    def __init__(self, plain: Model, settings: Settings) -> None:
        self.plain: Model = plain
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
    """Several processes with all weights each; every process runs the model on its slice of a batch."""

    def __init__(self, plain: Model) -> None:
        self.plain = plain
        self.parallel = WholeBatchParallel(plain)
        self.model = self.parallel
        self.can_split_batches = False

    def fetch(
        self, source: Source, plan: Plan, views: Sequence[str], *, seed: int, epoch: int
    ) -> Iterator[FetchedBatch]:
        return self.parallel.fetch(source, plan, views, seed=seed, epoch=epoch)

    def average_gradients(self) -> None:
        self.parallel.average_gradients()
