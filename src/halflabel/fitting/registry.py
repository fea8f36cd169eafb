"""Optimizers and schedules of the learning rate, by name; those of your own are in files that HALFLABEL_PLUGINS lists.

    import torch
    from halflabel.fitting.registry import optimizer, schedule

    @optimizer
    def nadam(groups, settings):
        return torch.optim.NAdam(groups, weight_decay=settings.weight_decay)

    @schedule
    def linear(progress, settings):
        return max(1 - progress / settings.epochs, 0.0)

Imports no torch, because the options of commands are checked against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from halflabel.errors import UserError
from halflabel.system.plugin_sources import remember

if TYPE_CHECKING:
    import torch

    from halflabel.fitting.config import Settings

F = TypeVar("F", bound=Callable[..., Any])
MakeOptimizer = Callable[[list[dict[str, Any]], "Settings"], "torch.optim.Optimizer"]
Schedule = Callable[[float, "Settings"], float]

# Name -> function; None for those that fitting/optimizer.py defines itself.
OPTIMIZERS: dict[str, MakeOptimizer | None] = dict.fromkeys(("adamw", "adam", "sgd", "rmsprop"))
SCHEDULES: dict[str, Schedule | None] = dict.fromkeys(("cosine", "step", "plateau", "constant"))


def optimizer(make: F) -> F:
    """Register a function of (parameter groups, settings) that makes an optimizer, under its own name."""
    return _register(OPTIMIZERS, make, "optimizers")


def schedule(factor: F) -> F:
    """Register a function of (progress in epochs, settings) that returns the factor of the learning rate."""
    return _register(SCHEDULES, factor, "schedules")


def check_name(kind: str, table: dict[str, Any], name: str) -> None:
    """Raise if no optimizer or schedule has this name."""
    if name not in table:
        from halflabel.system import plugins

        plugins.load()
    if name not in table:
        raise UserError(
            f"{kind} cannot be {name!r}",
            f"use one of: {', '.join(table)}; for one of your own: export HALFLABEL_PLUGINS=mine.py",
        )


def _register(table: dict[str, Any], function: F, kind: str) -> F:
    name = function.__name__.replace("_", "-")
    if name in table and getattr(table[name], "__module__", None) != function.__module__:
        raise ValueError(f"two {kind} are called {name!r}")
    remember(function)
    table[name] = function
    return function
