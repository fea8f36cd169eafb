"""`--compile`: fewer kernel launches per step. A small network on a large GPU waits for the CPU to launch its kernels.

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

__all__ = ["CompileMode", "compile_model"]

CompileMode = Literal["no", "graph", "inductor", "full"]

_WARM_UP_PASSES = 3  # before recording: libraries choose algorithms and allocate memory in them


def compile_model(
    model: nn.Module, mode: CompileMode, batch_size: int, device: torch.device, deterministic: bool = False
) -> nn.Module:
    """A faster model for training batches of `batch_size` images (or a multiple of that)."""
    if mode == "no":
        return model
    if mode != "inductor" and device.type != "cuda":
        raise UserError(f"--compile {mode} needs a CUDA device", "use --compile inductor, or no")
    if mode == "graph":
        return _GraphedModel(model, model, batch_size)
    if mode == "inductor":
        return _CompiledModel(model, _compiled(model), batch_size)
    # Joins hundreds of very short kernels, such as casts of weights, where a benchmark shows a gain. The benchmark
    # may choose differently in each run, so not when results must be deterministic.
    combined: dict[str, Any] = {"combo_kernels": True, "benchmark_combo_kernel": True}
    return _GraphedModel(model, _compiled(model, None if deterministic else combined), batch_size)


def _compiled(model: nn.Module, options: dict[str, Any] | None = None) -> Callable[[Tensor], Output]:
    """The model compiled by torch.compile, once for each dtype of autocast."""

    def run(view: Tensor, dtype: torch.dtype | None) -> Output:
        if dtype is None:
            output: Output = model(view)
            return output
        # Autocast is entered again inside: torch 2.11 looks up earlier compilations, also of other processes, by the
        # code of this function, and would compute in bf16 when fp16 is asked for.
        with torch.autocast(view.device.type, dtype, cache_enabled=False):
            return run(view, None)

    compiled = torch.compile(run, dynamic=False, options=options)

    def run_compiled(view: Tensor) -> Output:
        kind = view.device.type
        output: Output = compiled(view, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
        return output

    return run_compiled


class _CompiledModel(nn.Module):
    """Uses the compiled function for whole training batches, the plain model for others, such as an epoch's last."""

    def __init__(self, model: nn.Module, compiled: Callable[[Tensor], Output], batch_size: int) -> None:
        super().__init__()
        self.model = model
        self.compiled = compiled
        self.batch_size = batch_size

    def run_compiled(self, view: Tensor) -> Output:
        return self.compiled(view)

    def forward(self, view: Tensor) -> Output:
        is_whole = len(view) % self.batch_size == 0 and self.training and torch.is_grad_enabled()
        output: Output = self.run_compiled(view) if is_whole else self.model(view)
        return output


class _GraphedModel(_CompiledModel):
    """One pair of CUDA graphs per batch shape, recorded when the shape first occurs."""

    def __init__(self, model: nn.Module, compiled: Callable[[Tensor], Output], batch_size: int) -> None:
        super().__init__(model, compiled, batch_size)
        self.graphs: dict[torch.Size, _CudaGraphs] = {}

    def run_compiled(self, view: Tensor) -> Output:
        if view.shape not in self.graphs:
            self.graphs[view.shape] = _record(self.model, self.compiled, view)
        graphs = self.graphs[view.shape]
        if graphs.awaits_backward():  # replaying would overwrite what the previous pass needs for its gradient
            return super().run_compiled(view)
        return graphs(view)


def _record(model: nn.Module, run: Callable[[Tensor], Output], view: Tensor) -> _CudaGraphs:
    """Record the graphs; running statistics and random generators are restored afterwards."""
    before = [(value, value.clone()) for value in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[view.device]):
            return _CudaGraphs(run, [p for p in model.parameters() if p.requires_grad], view)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the model cannot be recorded as a CUDA graph ({reason})", "use --compile inductor, or no"
        ) from error
    finally:
        with torch.no_grad():
            for value, saved in before:
                value.copy_(saved)


class _CudaGraphs:
    """The forward and backward graphs for one batch shape. Autocast must not cache cast weights between calls.

    Autograd sees one node instead of one per weight. The gradients stay in the memory of the recording, and each
    weight's `grad` points there, so that a step costs the CPU two launches, whatever the number of weights.

    Memory: that of one training step of the model, as long as this object lives.
    """

    def __init__(self, run: Callable[[Tensor], Output], weights: Sequence[nn.Parameter], view: Tensor) -> None:
        self.view = view.clone()
        self.anchor = torch.zeros(
            (), device=view.device, requires_grad=True
        )  # without it, autograd would need no gradient
        self.pending: weakref.ref[_Call] | None = None
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_PASSES):
                outputs = list(_tensors(run(self.view)).values())
                _gradients(outputs, [torch.zeros_like(output) for output in outputs], weights)
            del outputs
        torch.cuda.current_stream().wait_stream(stream)
        # "thread_local" ignores the CUDA calls of other threads: data loaders pin memory in theirs.
        pool, mode = torch.cuda.graph_pool_handle(), "thread_local"
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward_graph, pool=pool, capture_error_mode=mode):
            named_outputs = _tensors(run(self.view))
        self.names, outputs = list(named_outputs), list(named_outputs.values())
        self.output_grads = [torch.zeros_like(output) for output in outputs]
        self.is_zero = [True] * len(self.output_grads)
        with torch.cuda.graph(self.backward_graph, pool=pool, capture_error_mode=mode):
            gradients = _gradients(outputs, self.output_grads, weights)
        # Detached from the autograd graph, whose nodes belong to the recording stream.
        self.outputs = [(output.detach(), output.requires_grad) for output in outputs]
        self.pairs = [(weight, grad) for weight, grad in zip(weights, gradients, strict=True) if grad is not None]

    def __call__(self, view: Tensor) -> Output:
        return Output(**dict(zip(self.names, _Replay.apply(self.anchor, view, self), strict=True)))

    def awaits_backward(self) -> bool:
        """Whether the backward pass of the newest forward pass may still come."""
        return self.pending is not None and self.pending() is not None

    def forward(self, view: Tensor, call: _Call) -> tuple[Tensor, ...]:
        self.pending = weakref.ref(call)
        for weight, grad in self.pairs:
            if weight.grad is grad:  # from an earlier batch of the same step; the replay would overwrite it
                weight.grad = grad.clone()
        self.view.copy_(view)
        self.forward_graph.replay()
        return tuple(output.clone() for output, _ in self.outputs)  # the next replay overwrites the recorded ones

    def backward(self, output_grads: Sequence[Tensor | None]) -> None:
        """Add the gradients of the weights, as autograd would."""
        for place, output_grad in enumerate(output_grads):
            if output_grad is not None:
                self.output_grads[place].copy_(output_grad)
            elif not self.is_zero[place]:
                self.output_grads[place].zero_()
            self.is_zero[place] = output_grad is None
        self.backward_graph.replay()
        self.pending = None
        if earlier := [(weight.grad, grad) for weight, grad in self.pairs if weight.grad is not None]:
            torch._foreach_add_([total for total, _ in earlier], [grad for _, grad in earlier])
        for weight, grad in self.pairs:
            if weight.grad is None:
                weight.grad = grad


class _Call:
    """Lives as long as the backward pass of one forward pass may still come."""


class _Replay(torch.autograd.Function):
    """The recorded passes as one autograd node."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, view: Tensor, graphs: _CudaGraphs) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.graphs, ctx.call = graphs, _Call()
        outputs = graphs.forward(view, ctx.call)
        has_grad = [requires_grad for _, requires_grad in graphs.outputs]
        ctx.mark_non_differentiable(*(output for output, has in zip(outputs, has_grad, strict=True) if not has))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[None, None, None]:
        ctx.graphs.backward(output_grads)
        return None, None, None


def _tensors(output: Output) -> dict[str, Tensor]:
    return {name: value for name, value in output._asdict().items() if value is not None}


def _gradients(
    outputs: Sequence[Tensor], output_grads: Sequence[Tensor], weights: Sequence[nn.Parameter]
) -> list[Tensor | None]:
    """The gradient of each weight, in the memory layout of the weight, which fused optimizers need."""
    pairs = [(output, grad) for output, grad in zip(outputs, output_grads, strict=True) if output.requires_grad]
    with torch.autocast(outputs[0].device.type, enabled=False):  # the forward pass has chosen the dtypes
        computed = torch.autograd.grad(
            [output for output, _ in pairs], list(weights), [grad for _, grad in pairs], allow_unused=True
        )
    used = {grad.untyped_storage().data_ptr() for grad in output_grads}
    gradients: list[Tensor | None] = []
    for weight, grad in zip(weights, computed, strict=True):
        # Autograd may return the same tensor for two weights, or one of its inputs; clipping would scale it twice.
        if grad is not None and (grad.stride() != weight.stride() or grad.untyped_storage().data_ptr() in used):
            grad = torch.empty_like(weight).copy_(grad)
        if grad is not None:
            used.add(grad.untyped_storage().data_ptr())
        gradients.append(grad)
    return gradients
