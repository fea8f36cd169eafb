"""Fewer launches per step: a small network on a large GPU waits for the CPU to start its kernels, not for the kernels.

`graph` records the model's forward and backward pass once as CUDA graphs and replays them; `inductor` compiles the
model (torch.compile); `full` does both. Recording takes about a second, compiling a minute.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.types import Output

__all__ = ["How", "quicken"]

How = Literal["no", "graph", "inductor", "full"]


def quicken(model: nn.Module, how: How, batch_size: int, device: torch.device) -> nn.Module:
    """The model, made quicker for training batches of `batch_size` images (or a whole number of times as many)."""
    if how == "no":
        return model
    if how not in ("graph", "inductor", "full"):
        raise UserError(f"there is no way to compile called {how!r}", "use no, graph, inductor or full")
    if how != "inductor" and device.type != "cuda":
        raise UserError(f"--compile {how} needs a CUDA device", "use --compile inductor, or no")
    if how == "graph":
        return _Graphed(model, batch_size)
    return _Compiled(model, batch_size, "reduce-overhead" if how == "full" else "default")


class _Quick(nn.Module):
    """Takes the quick way for whole training batches; the last, smaller one of an epoch goes through the model."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        super().__init__()
        self.model = model
        self.batch_size = batch_size

    def quick(self, view: Tensor) -> Output:
        raise TypeError(f"{type(self).__name__} has no quick way")

    def forward(self, view: Tensor) -> Output:
        whole = len(view) % self.batch_size == 0 and self.training and torch.is_grad_enabled()
        output: Output = self.quick(view) if whole else self.model(view)
        return output


class _Compiled(_Quick):
    def __init__(self, model: nn.Module, batch_size: int, mode: str) -> None:
        super().__init__(model, batch_size)
        self.compiled = torch.compile(model, mode=mode, dynamic=False)
        self.graphs = mode == "reduce-overhead"

    def quick(self, view: Tensor) -> Output:
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        output: Output = self.compiled(view)
        return output


class _Graphed(_Quick):
    """One pair of graphs per shape of the batch, recorded when it first comes."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        super().__init__(model, batch_size)
        self.recorded: dict[torch.Size, _Recorded] = {}

    def quick(self, view: Tensor) -> Output:
        if view.shape not in self.recorded:
            self.recorded[view.shape] = _Recorded(self.model, view)
        return self.recorded[view.shape](view)


class _Recorded:
    """The model's graphs for one shape. Under autocast, none of its cast weights may be kept between calls."""

    def __init__(self, model: nn.Module, view: Tensor) -> None:
        tensors = _Tensors(model)
        # Recording happens on a stream of its own, which the optimizer's side of the graph is warned about.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        # Recording runs the model several times: running means must not see that.
        before = {name: value.clone() for name, value in model.named_buffers()}
        self.run: Any = _record(tensors, view.clone())
        with torch.no_grad():
            for name, value in model.named_buffers():
                value.copy_(before[name])
        self.names = tensors.names

    def __call__(self, view: Tensor) -> Output:
        return Output(**dict(zip(self.names, self.run(view), strict=True)))


def _record(module: nn.Module, view: Tensor) -> Any:
    """make_graphed_callables, with recording disturbed by what this thread does alone: loaders pin memory in theirs."""
    make: Any = torch.cuda.make_graphed_callables
    alone: dict[str, Any] = {"capture_error_mode": "thread_local"}
    if "capture_error_mode" in inspect.signature(make).parameters:
        return make(module, (view,), **alone)
    with patch.object(torch.cuda, "graph", partial(torch.cuda.graph, **alone)):  # older torch has no word for it
        return make(module, (view,))


class _Tensors(nn.Module):
    """The model with the tensors of its output alone; a module of its own, for recording replaces its `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names: list[str] = []

    def forward(self, view: Tensor) -> tuple[Tensor, ...]:
        output: Output = self.model(view)
        found = {name: value for name, value in output._asdict().items() if value is not None}
        self.names = list(found)
        return tuple(found.values())
