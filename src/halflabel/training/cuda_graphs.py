"""Fewer launches per step: a small network on a large GPU waits for the CPU to start its kernels, not for the kernels.

`graph` records the model's forward and backward pass once as CUDA graphs and replays them; `inductor` compiles the
model (torch.compile); `full` does both. Recording takes about a second, compiling a minute.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from halflabel.errors import UserError
from halflabel.types import Output

__all__ = ["How", "quicken"]

How = Literal["no", "graph", "inductor", "full"]

_TRIALS = 3  # passes before recording: libraries choose their ways and take their memory in these


def quicken(
    model: nn.Module, how: How, batch_size: int, device: torch.device, deterministic: bool = False
) -> nn.Module:
    """The model, made quicker for training batches of `batch_size` images (or a whole number of times as many)."""
    if how == "no":
        return model
    if how not in ("graph", "inductor", "full"):
        raise UserError(f"there is no way to compile called {how!r}", "use no, graph, inductor or full")
    if how != "inductor" and device.type != "cuda":
        raise UserError(f"--compile {how} needs a CUDA device", "use --compile inductor, or no")
    if how == "graph":
        return _Graphed(model, model, batch_size)
    if how == "inductor":
        return _Quick(model, _compiled(model), batch_size)
    # Hundreds of kernels of a microsecond or two, such as casts of weights, are worth joining.
    joined: dict[str, Any] = {"combo_kernels": True, "benchmark_combo_kernel": True}  # where trials show a gain
    return _Graphed(model, _compiled(model, None if deterministic else joined), batch_size)  # trials differ


def _compiled(model: nn.Module, options: dict[str, Any] | None = None) -> Callable[[Tensor], Output]:
    """The model compiled, for each type that autocast computes in."""

    def run(view: Tensor, dtype: torch.dtype | None) -> Output:
        if dtype is None:
            output: Output = model(view)
            return output
        # Said again inside: torch 2.11 finds what it has compiled before, in other processes too, by what is in here,
        # and would compute in bf16 when fp16 is asked for.
        with torch.autocast(view.device.type, dtype, cache_enabled=False):
            return run(view, None)

    way = torch.compile(run, dynamic=False, options=options)

    def quick(view: Tensor) -> Output:
        kind = view.device.type
        output: Output = way(view, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
        return output

    return quick


class _Quick(nn.Module):
    """Takes the quick way for whole training batches; the last, smaller one of an epoch goes through the model."""

    def __init__(self, model: nn.Module, way: Callable[[Tensor], Output], batch_size: int) -> None:
        super().__init__()
        self.model = model
        self.way = way
        self.batch_size = batch_size

    def quick(self, view: Tensor) -> Output:
        return self.way(view)

    def forward(self, view: Tensor) -> Output:
        whole = len(view) % self.batch_size == 0 and self.training and torch.is_grad_enabled()
        output: Output = self.quick(view) if whole else self.model(view)
        return output


class _Graphed(_Quick):
    """One pair of graphs per shape of the batch, recorded when it first comes."""

    def __init__(self, model: nn.Module, way: Callable[[Tensor], Output], batch_size: int) -> None:
        super().__init__(model, way, batch_size)
        self.recorded: dict[torch.Size, _Recorded] = {}

    def quick(self, view: Tensor) -> Output:
        if view.shape not in self.recorded:
            self.recorded[view.shape] = _recorded(self.model, self.way, view)
        recorded = self.recorded[view.shape]
        if recorded.waits():  # the pass before would lose what its gradient needs
            return super().quick(view)
        return recorded(view)


def _recorded(model: nn.Module, run: Callable[[Tensor], Output], view: Tensor) -> _Recorded:
    """Record, and leave running means and random numbers as if nothing had run."""
    before = [(value, value.clone()) for value in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[view.device]):
            return _Recorded(run, [p for p in model.parameters() if p.requires_grad], view)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"the model cannot be recorded ({reason})", "use --compile inductor, or no") from error
    finally:
        with torch.no_grad():
            for value, then in before:
                value.copy_(then)


class _Recorded:
    """The model's graphs for one shape. Under autocast, none of its cast weights may be kept between calls.

    Autograd sees one node instead of one for each weight: the gradients lie where the recording has put them, and the
    weights' `grad` point there, so that a step costs the CPU two launches however many weights there are.

    Memory: that of one step of the model, for as long as this lives.
    """

    def __init__(self, run: Callable[[Tensor], Output], weights: Sequence[nn.Parameter], view: Tensor) -> None:
        self.view = view.clone()
        self.anchor = torch.zeros((), device=view.device, requires_grad=True)  # without it autograd sees no gradient
        self.waiting: weakref.ref[_Call] | None = None
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_TRIALS):
                outputs = list(_tensors(run(self.view)).values())
                _gradients(outputs, [torch.zeros_like(each) for each in outputs], weights)
            del outputs
        torch.cuda.current_stream().wait_stream(aside)
        # What other threads do meanwhile is no matter: loaders pin memory in theirs.
        pool, alone = torch.cuda.graph_pool_handle(), "thread_local"
        self.onwards, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.onwards, pool=pool, capture_error_mode=alone):
            found = _tensors(run(self.view))
        self.names, outputs = list(found), list(found.values())
        self.given = [torch.zeros_like(each) for each in outputs]  # gradients of the outputs
        self.blank = [True] * len(self.given)
        with torch.cuda.graph(self.back, pool=pool, capture_error_mode=alone):
            made = _gradients(outputs, self.given, weights)
        # Without their graph, which holds nodes of the recording's stream.
        self.outputs = [(each.detach(), each.requires_grad) for each in outputs]
        self.pairs = [(weight, each) for weight, each in zip(weights, made, strict=True) if each is not None]

    def __call__(self, view: Tensor) -> Output:
        return Output(**dict(zip(self.names, _Replay.apply(self.anchor, view, self), strict=True)))

    def waits(self) -> bool:
        """Whether the gradient of the newest pass is still to come."""
        return self.waiting is not None and self.waiting() is not None

    def forward(self, view: Tensor, call: _Call) -> tuple[Tensor, ...]:
        self.waiting = weakref.ref(call)
        for weight, own in self.pairs:
            if weight.grad is own:  # of an earlier batch of the same step: both passes write over it
                weight.grad = own.clone()
        self.view.copy_(view)
        self.onwards.replay()
        return tuple(each.clone() for each, _ in self.outputs)  # the next pass writes into its own again

    def backward(self, given: Sequence[Tensor | None]) -> None:
        """Add the gradients of the weights, as autograd would."""
        for place, each in enumerate(given):
            if each is not None:
                self.given[place].copy_(each)
            elif not self.blank[place]:
                self.given[place].zero_()
            self.blank[place] = each is None
        self.back.replay()
        self.waiting = None
        if earlier := [(weight.grad, own) for weight, own in self.pairs if weight.grad is not None]:
            torch._foreach_add_([grad for grad, _ in earlier], [own for _, own in earlier])
        for weight, own in self.pairs:
            if weight.grad is None:
                weight.grad = own


class _Call:
    """Lives as long as a gradient may still be asked of one forward pass."""


class _Replay(torch.autograd.Function):
    """The recorded passes as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, view: Tensor, recorded: _Recorded) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.recorded, ctx.call = recorded, _Call()
        outputs = recorded.forward(view, ctx.call)
        learns = [wanted for _, wanted in recorded.outputs]
        ctx.mark_non_differentiable(*(each for each, wanted in zip(outputs, learns, strict=True) if not wanted))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[None, None, None]:
        ctx.recorded.backward(given)
        return None, None, None


def _tensors(output: Output) -> dict[str, Tensor]:
    return {name: value for name, value in output._asdict().items() if value is not None}


def _gradients(
    outputs: Sequence[Tensor], given: Sequence[Tensor], weights: Sequence[nn.Parameter]
) -> list[Tensor | None]:
    """The gradient of each weight, laid out as the weight is: fused optimizers ask for that."""
    pairs = [(output, grad) for output, grad in zip(outputs, given, strict=True) if output.requires_grad]
    with torch.autocast(outputs[0].device.type, enabled=False):  # a backward pass has its types from the forward one
        found = torch.autograd.grad(
            [output for output, _ in pairs], list(weights), [grad for _, grad in pairs], allow_unused=True
        )
    taken = {grad.untyped_storage().data_ptr() for grad in given}
    made: list[Tensor | None] = []
    for weight, each in zip(weights, found, strict=True):
        # Autograd may hand the same tensor to two weights, or one that it was given; clipping would meet it twice.
        if each is not None and (each.stride() != weight.stride() or each.untyped_storage().data_ptr() in taken):
            each = torch.empty_like(weight).copy_(each)
        if each is not None:
            taken.add(each.untyped_storage().data_ptr())
        made.append(each)
    return made
