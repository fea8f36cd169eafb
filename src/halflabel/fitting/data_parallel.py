"""Data parallelism in which the method still sees whole batches.

Every process runs the model on its slice of a batch and receives the outputs of all slices, so that all compute the
same loss. In the backward pass each one computes the gradient of its own rows, times the number of processes: the mean
over processes is the gradient of the whole batch, and terms that depend on the weights directly count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from halflabel.images.sources import FetchedBatch, Plan, Source
from halflabel.system import distributed
from halflabel.system.rng import bits
from halflabel.types import Output, at_least_float32

_sum_over_processes: Callable[[Tensor], Tensor] = all_reduce  # with a gradient


class WholeBatchParallel(nn.Module):
    """The model that a method calls in one of several processes.

    `fetch` yields this process's views and the numbers of all images of a batch. Called with these views (or with k
    views one after the other), the model returns the outputs of all images, in the order of these numbers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.counts: list[int] = []  # images of the current batch in each process
        self.calls = 0  # calls of the model in the current batch

    def fetch(
        self, source: Source, plan: Plan, views: Sequence[str], *, seed: int, epoch: int
    ) -> Iterator[FetchedBatch]:
        """For each batch, the numbers of all images that could be read, and the views of this process's slice."""
        slices = [np.array_split(batch, distributed.world_size())[distributed.rank()] for batch in plan]
        fetched = iter(source.fetch([images for images in slices if len(images)], views, seed=seed, epoch=epoch))
        for batch, images in zip(plan, slices, strict=True):
            local = next(fetched) if len(images) else FetchedBatch(images, ())
            yield self._exchange_numbers(local, -(-len(batch) // distributed.world_size()))

    def _exchange_numbers(self, local: FetchedBatch, max_images: int) -> FetchedBatch:
        """Gather from all processes which images could be read, at most `max_images` each."""
        sent = torch.full((max_images,), -1)
        sent[: len(local.images)] = torch.from_numpy(local.images)
        received = [torch.empty_like(sent) for _ in range(distributed.world_size())]
        dist.all_gather(received, sent)
        images = [numbers[numbers >= 0] for numbers in received]
        self.counts, self.calls = [len(numbers) for numbers in images], 0
        views = local.views
        if min(self.counts) == 0 < max(self.counts):
            # A process without images must run the model too, or the others would wait for it. It runs on a blank
            # row, which is not sent, counted or learned from.
            shapes = distributed.all_gather([(view.shape[1:], view.dtype) for view in views])
            if not len(local.images):
                like = next(shape for shape, count in zip(shapes, self.counts, strict=True) if count)
                views = tuple(torch.zeros((1, *shape), dtype=dtype) for shape, dtype in like)
        return FetchedBatch(torch.cat(images).numpy(), views)

    def forward(self, view: Tensor) -> Output:
        return self.run(self.model, view)

    def run(self, other: nn.Module, view: Tensor) -> Output:
        with ExitStack() as contexts:
            if self.training:
                self.calls += 1
                contexts.enter_context(_process_seed(view.device, self.calls))
                contexts.enter_context(_SyncBatchNorm(self.counts))
            output: Output = other(view)
        return Output(
            **{
                name: self._gather(value, 1 if name == "members" else 0)
                for name, value in output._asdict().items()
                if value is not None
            }
        )

    def take(self, view: Tensor, order: Tensor) -> Tensor:
        """Row i of this process's slice of the batch becomes the view of image order[i], of any process."""
        first, count = sum(self.counts[: distributed.rank()]), self.counts[distributed.rank()]
        whole = self._gather(view, 0)
        return whole[order[first : first + count]] if count else view  # without images: the blank row

    def _gather(self, value: Tensor, axis: int) -> Tensor:
        whole: Tensor = _Gather.apply(value.movedim(axis, 0), self.counts)
        return whole.movedim(0, axis)

    def average_gradients(self) -> None:
        """Replace all gradients by their mean over processes: the gradient of the whole batch."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                flat = parameter.grad.reshape(-1)  # of any memory layout
                dist.all_reduce(flat)
                parameter.grad.copy_((flat / distributed.world_size()).view_as(parameter.grad))


class _Gather(torch.autograd.Function):
    """k blocks of n local rows -> k blocks of N rows of all processes; gradient: that of the local rows, scaled."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: list[int]) -> Tensor:
        rows = counts[distributed.rank()]
        blocks = local.reshape(-1, max(rows, 1), *local.shape[1:])
        padded = local.new_zeros(len(blocks), max(counts), *local.shape[1:])
        padded[:, :rows] = blocks[:, :rows]
        # As bytes: not every communication library supports every dtype.
        sent = padded.view(-1).view(torch.uint8)
        received = [torch.empty_like(sent) for _ in counts]
        dist.all_gather(received, sent)
        whole = torch.cat(
            [part.view(local.dtype).view_as(padded)[:, :count] for part, count in zip(received, counts, strict=True)], 1
        )
        ctx.counts, ctx.shape, ctx.local_shape = counts, whole.shape, local.shape
        return whole.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count, first = ctx.counts[distributed.rank()], sum(ctx.counts[: distributed.rank()])
        if not count:
            return gradients[0].new_zeros(ctx.local_shape), None
        rows = gradients[0].reshape(ctx.shape)[:, first : first + count].flatten(0, 1)
        return rows * distributed.world_size(), None


@contextmanager
def _process_seed(device: torch.device, call: int) -> Iterator[None]:
    """Another seed in each process, for dropout; random numbers drawn after the context are equal in all processes."""
    seed = int(bits(torch.default_generator.initial_seed(), distributed.rank(), call)[0] >> np.uint64(1))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


class _SyncBatchNorm(TorchFunctionMode):
    """Batch norm in training takes its statistics from the slices of all processes.

    All batch norm layers call `F.batch_norm`, which this replaces, so no layer has to be exchanged; unlike
    nn.SyncBatchNorm it also works on CPUs. `counts`: the images of each process; a process without images runs on a
    blank row, which does not count.
    """

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        count, axes = self.counts[distributed.rank()], [axis for axis in range(x.ndim) if axis != 1]
        size = x.numel() // x.shape[1] // max(count, 1) * sum(self.counts)  # numbers per channel, of all processes
        if size < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
        is_counted = float(count > 0)
        values = at_least_float32(x)
        mean = _sum_over_processes(is_counted * values.sum(axes)) / size
        shape = (1, -1, *[1] * (x.ndim - 2))
        centred = values - mean.view(shape)
        # From the deviations: the mean of squares would lose precision.
        var = _sum_over_processes(is_counted * centred.square().sum(axes)) / size
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                running_var.lerp_((var * (size / (size - 1))).to(running_var.dtype), momentum)
        normed = centred * torch.rsqrt(var + eps).view(shape)
        if weight is not None:
            normed = normed * weight.view(shape)
        if bias is not None:
            normed = normed + bias.view(shape)
        return normed.to(x.dtype)
