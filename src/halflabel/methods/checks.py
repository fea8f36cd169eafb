"""Checks of what the parts of a method return, on single batches: a user's method may return something wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.features.heads import Model
from halflabel.methods.base import Method
from halflabel.methods.parts.relabel import Relabeler
from halflabel.system import distributed
from halflabel.types import Batch, Output, Sweep, Targets


def checked_step(method: Method, model: Model, batch: Batch, epoch: int) -> Tensor:
    """Return `method.step(...)` and check what its parts return; slow, because it waits for the device."""
    with _watched(method, model, batch):
        loss = method.step(model, batch, epoch)
    if not isinstance(loss, Tensor) or loss.ndim:
        part = f"the step of {type(method).__name__}"
        if type(method).step is Method.step:  # then everything but the reduction has been checked
            part = f"reduce= ({getattr(method.reduce, '__name__', type(method.reduce).__name__)})"
        raise _wrong_return(part, loss, "a scalar", "take the mean or the sum of it")
    if not loss.requires_grad:
        raise UserError(
            f"the loss of {type(method).__name__} does not depend on anything that is trained",
            "compute it from the output of the model, without detach() or no_grad()",
        )
    return loss


def absorbed(relabel: Relabeler, sweep: Sweep, epoch: int) -> dict[str, float]:
    """Return the numbers for the log of `relabel.absorb`, checked."""
    log: Any = relabel.absorb(sweep, epoch)
    part, must = f"absorb of {type(relabel).__name__}", "numbers for the log by name"
    if not isinstance(log, Mapping):
        raise _wrong_return(part, log, must, "return {} if there are none")
    try:
        return {str(name): value if isinstance(value, int | float) else float(value) for name, value in log.items()}
    except (TypeError, ValueError, RuntimeError):
        raise _wrong_return(part, log, must, "return one number for each name") from None


@contextmanager
def _watched(method: Method, model: nn.Module, batch: Batch) -> Iterator[None]:
    """Check what the model, the relabeler, the loss and the terms return inside the context."""
    classes = batch.labels.shape[1]

    def output(_: nn.Module, inputs: tuple[Any, ...], result: Output) -> None:
        # Each of several processes passes some of the images and gets the outputs of all.
        rows = len(batch.labels) if distributed.is_distributed() else len(inputs[0])
        if tuple(result.logits.shape) != (rows, classes):
            inner = next((part for part in model.modules() if isinstance(part, Model)), None)
            part = f"the head {type(inner.head).__name__}" if inner else "the model"
            must = f"logits of the shape ({rows}, {classes}), images × classes"
            raise _wrong_return(part, result.logits, must, "correct its `forward`")

    def targets(part: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
        name = f"the relabeler {type(part).__name__}"
        if not isinstance(result, Targets):
            raise _wrong_return(name, result, "Targets", "return halflabel.types.Targets(pos, neg)")
        labels = inputs[0].labels if inputs and isinstance(inputs[0], Batch) else batch.labels
        for side, weights in zip(Targets._fields, result, strict=True):
            if not isinstance(weights, Tensor) or weights.shape != labels.shape:
                shape = tuple(labels.shape)
                raise _wrong_return(
                    name, weights, f"{side} of the shape {shape}, images × classes", "correct its `forward`"
                )
            if not bool((weights >= 0).all()):
                raise UserError(
                    f"{name} gives a {side} of {float(weights.detach().min()):g}, and must be 0 or more",
                    f"use {side} = 0 for entries without loss",
                )

    def charges(part: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
        like = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
        if not isinstance(result, Tensor) or (like is not None and result.shape != like.shape):
            shape = f" {tuple(like.shape)}" if like is not None else ""
            must = f"the loss of each entry{shape}, never reduced"
            raise _wrong_return(f"the loss {type(part).__name__}", result, must, "leave sums and means to reduce=")

    def added(part: nn.Module, _: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, Tensor) and result.ndim:
            raise _wrong_return(f"the term {type(part).__name__}", result, "a scalar", "take the mean or the sum of it")

    hooks = [
        model.register_forward_hook(output),
        method.relabel.register_forward_hook(targets),
        method.loss.register_forward_hook(charges),
        *(term.register_forward_hook(added) for term in method.terms),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _wrong_return(part: str, result: Any, must: str, fix: str) -> UserError:
    description = "None" if result is None else f"a value of the type {type(result).__name__}"
    if isinstance(result, Tensor):
        description = f"a tensor of the shape {tuple(result.shape)}"
    return UserError(f"{part} gives {description}, and must give {must}", fix)
