"""Checks of what the parts of a method return: a user's method may return something wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from halflabel.errors import UserError
from halflabel.methods.parts.relabel import Relabeler
from halflabel.types import Sweep, Targets


def check_shape(value: Any, shape: tuple[int, ...], part: str, must: str, fix: str) -> None:
    """Raise if a part of a method gave something else than a tensor of this shape; `must` says what it is."""
    if isinstance(value, Tensor) and tuple(value.shape) == tuple(shape):
        return
    description = "None" if value is None else f"a value of the type {type(value).__name__}"
    if isinstance(value, Tensor):
        description = f"a tensor of the shape {tuple(value.shape)}"
    raise UserError(f"{part} gives {description}, and must give {must}", fix)


def check_targets(targets: Any, shape: tuple[int, ...], relabel: nn.Module) -> None:
    """Raise if a relabeler gave something else than Targets of this shape."""
    part = f"the relabeler {type(relabel).__name__}"
    if not isinstance(targets, Targets):
        check_shape(targets, (), part, "Targets", "return halflabel.types.Targets(pos, neg)")
        raise UserError(f"{part} gives a scalar, and must give Targets", "return halflabel.types.Targets(pos, neg)")
    for side, weights in zip(Targets._fields, targets, strict=True):
        must = f"{side} of the shape {tuple(shape)}, images × classes"
        check_shape(weights, shape, part, must, "correct its `forward`")


def check_loss(loss: Any, part: str) -> None:
    """Raise if a loss is no scalar, or does not depend on anything that is trained."""
    check_shape(loss, (), part, "a scalar", "take the mean or the sum of it")
    if not loss.requires_grad:
        raise UserError(
            f"{part} gives a loss that does not depend on anything that is trained",
            "compute it from the output of the model, without detach() or no_grad()",
        )


def absorbed(relabel: Relabeler, sweep: Sweep, epoch: int) -> dict[str, float]:
    """Return the numbers for the log of `relabel.absorb`, checked."""
    log: Any = relabel.absorb(sweep, epoch)
    try:
        if not isinstance(log, Mapping):
            raise TypeError
        return {str(name): value if isinstance(value, int | float) else float(value) for name, value in log.items()}
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"absorb of {type(relabel).__name__} gives {log!r:.60}, and must give numbers for the log by name",
            "return one number for each name, {} if there are none",
        ) from None
