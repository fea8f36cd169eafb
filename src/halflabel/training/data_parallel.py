"""A model whose batches are sliced over processes, while the method sees whole ones.

Every process runs the model on its slice of a batch and gets the outputs of all. So each computes the same loss from
the same numbers: no method needs to know of the others, sums and ranks over the batch are exact, and what a method
learns or remembers is the same everywhere. Backwards, each process has the gradient of its own rows, times the number
of processes: the mean over processes is then the gradient of the whole batch, and what a method does with weights
directly, which it does alike in all, counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from halflabel.data.sources import Fetched, Plan, Source
from halflabel.system import distributed as processes
from halflabel.system.rng import bits
from halflabel.types import Output, at_least_float32

__all__ = ["Sliced"]

_BUCKET = 1 << 24  # numbers sent together


class Sliced(nn.Module):
    """The model as a method sees it in one of several processes.

    `fetch` gives this process's views and the numbers of all images of a batch; the model, called with views (or k of
    them one after the other), then gives the outputs of all images, in the order of these numbers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.counts: list[int] = []  # images of the batch that each process has
        self.calls = 0  # of the model in this batch

    def fetch(self, source: Source, plan: Plan, views: Sequence[str], *, seed: int, epoch: int) -> Iterator[Fetched]:
        """The batches of the plan in turn: the numbers of all images that could be read, and the views of one's own."""
        slices = [np.array_split(batch, processes.count())[processes.rank()] for batch in plan]
        fetched = iter(source.fetch([own for own in slices if len(own)], views, seed=seed, epoch=epoch))
        for batch, own in zip(plan, slices, strict=True):
            found = next(fetched) if len(own) else Fetched(own, ())
            yield self._meet(found, -(-len(batch) // processes.count()))

    def _meet(self, own: Fetched, most: int) -> Fetched:
        """Tell the others which images could be read here, at most so many; hear it from them."""
        mine = torch.full((most,), -1)
        mine[: len(own.images)] = torch.from_numpy(own.images)
        numbers = [torch.empty_like(mine) for _ in range(processes.count())]
        dist.all_gather(numbers, mine)
        read = [part[part >= 0] for part in numbers]
        self.counts, self.calls = [len(part) for part in read], 0
        views = own.views
        if min(self.counts) == 0 < max(self.counts):
            # Who has no image runs the model too, or the others would wait for it: on a blank row, of which nothing
            # is sent, counted or learned.
            shapes = processes.gather([(view.shape[1:], view.dtype) for view in views])
            if not len(own.images):
                like = next(shape for shape, images in zip(shapes, self.counts, strict=True) if images)
                views = tuple(torch.zeros((1, *shape), dtype=dtype) for shape, dtype in like)
        return Fetched(torch.cat(read).numpy(), views)

    def forward(self, view: Tensor) -> Output:
        with ExitStack() as inside:
            if self.training:
                self.calls += 1
                inside.enter_context(_noise_of_this_process(view.device, self.calls))
                inside.enter_context(_WholeBatch(self.counts))
            output: Output = self.model(view)
        return Output(
            **{
                name: self._gather(value, 1 if name == "members" else 0)
                for name, value in output._asdict().items()
                if value is not None
            }
        )

    def _gather(self, value: Tensor, axis: int) -> Tensor:
        whole: Tensor = _Gather.apply(value.movedim(axis, 0), self.counts)
        return whole.movedim(0, axis)

    def average_gradients(self) -> None:
        """Give each process the gradient of the whole batch."""
        pending: list[Tensor] = []
        for parameter in self.model.parameters():
            if parameter.grad is None:
                continue
            if pending and (parameter.grad.dtype != pending[0].dtype or sum(map(Tensor.numel, pending)) >= _BUCKET):
                _average(pending)
                pending = []
            pending.append(parameter.grad)
        if pending:
            _average(pending)


def _average(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= processes.count()
    for gradient, part in zip(gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


class _Gather(torch.autograd.Function):
    """k · n own rows, one block of n after the other -> k · N rows of all processes; backwards one's own, scaled."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: list[int]) -> Tensor:
        here, most = counts[processes.rank()], max(counts)
        blocks = own.reshape(-1, max(here, 1), *own.shape[1:])
        padded = own.new_zeros(len(blocks), most, *own.shape[1:])
        padded[:, :here] = blocks[:, :here]
        # As bytes: not every library that sends knows every type of number.
        sent = padded.view(-1).view(torch.uint8)
        heard = [torch.empty_like(sent) for _ in counts]
        dist.all_gather(heard, sent)
        whole = torch.cat(
            [part.view(own.dtype).view_as(padded)[:, :rows] for part, rows in zip(heard, counts, strict=True)], 1
        )
        ctx.counts, ctx.shape, ctx.own_shape = counts, whole.shape, own.shape
        return whole.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        here, first = ctx.counts[processes.rank()], sum(ctx.counts[: processes.rank()])
        if not here:
            return gradients[0].new_zeros(ctx.own_shape), None
        rows = gradients[0].reshape(ctx.shape)[:, first : first + here].flatten(0, 1)
        return rows * processes.count(), None


@contextmanager
def _noise_of_this_process(device: torch.device, call: int) -> Iterator[None]:
    """Dropout differs from slice to slice; what the method draws afterwards is the same in all processes."""
    seed = int(bits(torch.default_generator.initial_seed(), processes.rank(), call)[0] >> np.uint64(1))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


class _WholeBatch(TorchFunctionMode):
    """Batch norm in training takes its statistics from the slices of all processes.

    Every kind of it ends in one function, which this replaces: no layer has to be exchanged. `counts`: the images that
    each process has; a process without any runs on a blank row, which does not count.
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
        here = self.counts[processes.rank()]
        each = x.numel() // x.shape[1] // max(here, 1)  # numbers per channel of one image
        size = each * sum(self.counts)
        if size < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
        mean, var = _statistics(x.detach(), [each * images for images in self.counts])
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                running_var.lerp_((var * (size / (size - 1))).to(running_var.dtype), momentum)
        weight = torch.ones_like(mean) if weight is None else weight
        bias = torch.zeros_like(mean) if bias is None else bias
        normed: Tensor = _Normalise.apply(x, weight, bias, mean, torch.rsqrt(var + eps), size, here > 0)
        return normed


def _statistics(x: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and variance (C,) of (B, C, …) over the slices of all processes, which have `sizes` numbers per channel.

    From the mean m_r and the squared distances from it q_r of each slice of n_r numbers:
    mean = Σ n_r m_r / n,  var = Σ (q_r + n_r (m_r − mean)²) / n. The plain mean of squares would lose digits.
    """
    own = at_least_float32(x).transpose(0, 1).flatten(1)
    m = own.mean(1)
    sent = torch.stack([m, (own - m[:, None]).square().sum(1)])
    heard = [torch.empty_like(sent) for _ in sizes]
    dist.all_gather(heard, sent)
    # Of slices without an image nothing counts, whatever a blank row made of it.
    full = [number for number, size in enumerate(sizes) if size]
    n = torch.tensor([[sizes[number]] for number in full], dtype=m.dtype).to(m.device, non_blocking=True)
    means, squares = torch.stack([heard[number] for number in full], 1)
    mean = (n * means).sum(0) / sum(sizes)
    return mean, (squares + n * (means - mean).square()).sum(0) / sum(sizes)


class _Normalise(torch.autograd.Function):
    """z = w y + b, y = (x − mean) s, with mean and s of the whole batch of n numbers per channel.

    With g the gradient of z: that of x is w s (g − Σ g / n − y Σ g y / n), Σ over all processes; those of w and b are
    Σ g y and Σ g over the own slice, for gradients of weights are put together later.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, s: Tensor, size: int, counts: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, s)
        ctx.size, ctx.counts, ctx.shape = size, counts, (1, -1, *[1] * (x.ndim - 2))
        y = _centred(x, mean, s, ctx.shape)
        return (y * weight.view(ctx.shape) + bias.view(ctx.shape)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, s = ctx.saved_tensors
        g, y = at_least_float32(gradients[0]), _centred(x, mean, s, ctx.shape)
        places = [axis for axis in range(x.ndim) if axis != 1]
        own = torch.stack([g.sum(places), (g * y).sum(places)])
        if not ctx.counts:
            own.zero_()
        summed = own.clone()
        dist.all_reduce(summed)
        plain, along = (part.view(ctx.shape) / ctx.size for part in summed)
        of_x = (g - plain - y * along) * (s * weight).view(ctx.shape)
        if not ctx.counts:  # a blank row has no part in the mean
            of_x.zero_()
        return of_x.to(x.dtype), own[1].to(weight.dtype), own[0].to(weight.dtype), None, None, None, None


def _centred(x: Tensor, mean: Tensor, s: Tensor, shape: tuple[int, ...]) -> Tensor:
    return (at_least_float32(x) - mean.view(shape)) * s.view(shape)
