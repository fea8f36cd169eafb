"""How a training is spread over processes: one process, data parallel, or sharded weights (FSDP).

The loop asks a `Distribution` for everything that differs between the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from halflabel.features.heads import Model
from halflabel.fitting.compiled_model import CompiledModel
from halflabel.fitting.config import Settings
from halflabel.fitting.data_parallel import WholeBatchParallel
from halflabel.images.sources import FetchedBatch, Plan, Source
from halflabel.system import distributed

if TYPE_CHECKING:
    from halflabel.fitting.fsdp import ShardedModel


def is_sharded(settings: Settings) -> bool:
    """Whether each process holds only a part of the weights."""
    return settings.shard and distributed.is_distributed()


def place_model(model: Model, settings: Settings, device: torch.device) -> Model:
    """Move a model to the device, in the memory layout of the settings; weights to be sharded stay on the CPU."""
    if is_sharded(settings):
        return model
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model.to(device)


def distribute(plain: Model, settings: Settings, device: torch.device) -> Distribution:
    """The distribution for the settings and the number of processes. `plain` comes from `place_model`."""
    if is_sharded(settings):
        return Sharded(plain, device)
    if distributed.is_distributed():
        return DataParallel(plain)
    return Distribution(plain, settings)


class Distribution:
    """Training in one process; the base class of the others.

    plain      the whole model, which is scored and saved
    trained    the module whose parameters the optimizer updates
    model      what the method calls
    """

    is_sharded = False

    def __init__(self, plain: Model, settings: Settings) -> None:
        self.plain: Model = plain
        self.trained: Model = plain
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

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> None:
        """Scale all gradients so that their norm is at most `max_norm`."""
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def whole_model(self) -> Model:
        """The plain model with the current weights."""
        return self.plain

    @contextmanager
    def on_device_for_scoring(self, model: Model) -> Iterator[None]:
        """The model is on the device within this context."""
        yield

    def finish(self) -> None:
        """Called once after training."""

    def gather_optimizer(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The optimizer's tensors for a checkpoint, whole."""
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> Mapping[str, Tensor]:
        """Called after the plain model is loaded: the checkpoint's tensors as this process's optimizer needs them."""
        return tensors


class DataParallel(Distribution):
    """Several processes with all weights each; every process runs the model on its slice of a batch."""

    def __init__(self, plain: Model, trained: Model | None = None) -> None:
        self.plain, self.trained = plain, plain if trained is None else trained
        self.parallel = WholeBatchParallel(self.trained)
        self.model = self.parallel
        self.can_split_batches = False

    def fetch(
        self, source: Source, plan: Plan, views: Sequence[str], *, seed: int, epoch: int
    ) -> Iterator[FetchedBatch]:
        return self.parallel.fetch(source, plan, views, seed=seed, epoch=epoch)

    def average_gradients(self) -> None:
        self.parallel.average_gradients()


class Sharded(DataParallel):
    """Several processes with a part of the weights each (FSDP)."""

    is_sharded = True

    def __init__(self, plain: Model, device: torch.device) -> None:
        from halflabel.fitting.fsdp import ShardedModel  # slow to import

        self.device = device
        self.sharded: ShardedModel = ShardedModel(plain, device)
        super().__init__(plain, self.sharded.model)

    def average_gradients(self) -> None:
        pass  # FSDP takes the mean itself

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> None:
        self.sharded.clip_gradients(parameters, max_norm)

    def whole_model(self) -> Model:
        return self.sharded.gather_into(self.plain)

    @contextmanager
    def on_device_for_scoring(self, model: Model) -> Iterator[None]:
        model.to(self.device)
        yield
        model.cpu()

    def finish(self) -> None:
        self.plain.to(self.device)

    def gather_optimizer(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.sharded.gather(tensors)

    def restore(self, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> Mapping[str, Tensor]:
        self.sharded.load_from(self.plain)
        return self.sharded.shard_optimizer_state(tensors, optimizer)
