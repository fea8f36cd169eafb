"""One optimizer step: forward and backward passes of its batches, then the update of weights and average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from halflabel.features.ema import ModelEma
from halflabel.features.heads import Model
from halflabel.fitting.config import Config
from halflabel.fitting.data_parallel import WholeBatchParallel
from halflabel.fitting.device import mixed_precision
from halflabel.fitting.optimizer import make_optimizer, parameter_groups
from halflabel.labels.table import Table
from halflabel.methods.base import Method
from halflabel.methods.checks import check_loss
from halflabel.system import distributed
from halflabel.system.gpu_memory import MicroBatcher, Snapshot, out_of_gpu_memory
from halflabel.types import Batch, Output


class CompiledModel(nn.Module):
    """Compiles whole training batches, once for each dtype of autocast; other batches use the plain model."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        super().__init__()
        self.model = model
        self.batch_size = batch_size
        self.compiled = torch.compile(self._run, dynamic=False)

    def _run(self, view: Tensor, dtype: torch.dtype | None) -> Output:
        if dtype is None:
            output: Output = self.model(view)
            return output
        # Autocast is entered again inside: torch 2.11 looks up earlier compilations, also of other processes, by the
        # code of this function, and would compute in bf16 when fp16 is asked for.
        with torch.autocast(view.device.type, dtype, cache_enabled=False):
            return self._run(view, None)

    run, take = Model.run, Model.take

    def forward(self, view: Tensor) -> Output:
        if len(view) % self.batch_size or not self.training or not torch.is_grad_enabled():
            return self._run(view, None)
        kind = view.device.type
        return self.compiled(view, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)


_LIMITED_MEMORY = ("cuda", "xpu")  # devices that run out of memory; on a CPU the snapshots would be wasted


@dataclass(eq=False)
class OptimizerStep:
    """Computes gradients and updates the weights.

    A batch that does not fit into the GPU's memory is split: `undo` restores the state before the step, and the step
    is repeated with half as many images at once.
    """

    device: torch.device
    method: Method
    model: Model
    table: Table
    config: Config

    def __post_init__(self) -> None:
        method, model, config = self.method, self.model, self.config
        self.parallel = WholeBatchParallel(model) if distributed.is_distributed() else None
        self.compiled = CompiledModel(model, config.batch_size) if config.compile == "inductor" else None
        # Typed as a model for the methods, which call it; the wrappers have the same interface.
        self.called: Any = self.parallel or self.compiled or model
        self.groups = parameter_groups(model, method, config)
        self.optimizer = make_optimizer(self.groups, config)
        self.ema = ModelEma(model, config.ema) if config.ema else None
        self.autocast, self.scaler = mixed_precision(config.precision, self.device)
        self.micro_batches = MicroBatcher()
        can_split = self.called is model and self.device.type in _LIMITED_MEMORY
        self.snapshot = Snapshot(model, method) if can_split else None

    def begin(self) -> None:
        """Remember the state before a step, for `undo`."""
        if self.snapshot is not None:
            self.snapshot.save()

    def undo(self) -> None:
        """Restore the state before a step that ran out of memory; from now on split batches into smaller parts."""
        if self.snapshot is None:
            size = self.config.batch_size
            raise out_of_gpu_memory(
                f"for batches of {size}; with several processes or ‹compile›, batches cannot be split"
            )
        self.optimizer.zero_grad(set_to_none=True)
        self.snapshot.restore()
        note = (
            ", added up before each step; batch norm, and methods that rank or count within a batch, see only the parts"
        )
        self.micro_batches.halve(self.config.batch_size, note)

    def backward(self, images: NDArray[np.int64], views: tuple[Tensor, ...], epoch: int) -> Tensor:
        """Add the gradient of a batch, in as many parts as memory needs; returns the loss of the batch."""
        parts = self.micro_batches.pieces(len(images))
        if parts == 1:
            return self._backward_part(images, views, epoch, 1)
        loss = torch.zeros((), device=self.device)
        for part in np.array_split(np.arange(len(images)), parts):
            rows = slice(int(part[0]), int(part[-1]) + 1)
            part_views = tuple(view[rows] for view in views)
            part_share = len(part) / len(images)
            loss += part_share * self._backward_part(images[rows], part_views, epoch, part_share)
        return loss

    def _backward_part(self, images: NDArray[np.int64], views: tuple[Tensor, ...], epoch: int, share: float) -> Tensor:
        device = self.device
        layout = [torch.channels_last if view.ndim == 4 else torch.preserve_format for view in views]
        pairs = zip(views, layout, strict=True)
        moved = tuple(view.to(device, non_blocking=True, memory_format=each) for view, each in pairs)
        index = torch.from_numpy(images).to(device, non_blocking=True)
        labels = torch.from_numpy(self.table.rows(images)).to(device, non_blocking=True)
        soft = self.table.soft_targets(images)
        batch = Batch(index, moved, labels, None if soft is None else torch.from_numpy(soft).to(device))
        with self.autocast():
            loss = self.method.step(self.called, batch, epoch)
        check_loss(loss, f"the step of {type(self.method).__name__}")
        torch.autograd.backward(self.scaler.scale(loss if share == 1 else loss * share))
        return loss.detach()

    def update(self) -> None:
        if self.parallel is not None:
            self.parallel.average_gradients()
        if self.config.clip:
            self.scaler.unscale_(self.optimizer)
            parameters = [parameter for group in self.groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.config.clip)
        try:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        except torch.OutOfMemoryError:  # some weights may be updated already, and fewer images would not help
            raise out_of_gpu_memory(f"for the state of {self.config.optimizer}") from None
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.model)
        self.method.after_step(self.model)
