"""Optimizers and schedules of the learning rate, by name; `@optimizer` and `@schedule` register those of your own.

Importing this module does not import torch, because the options of commands are checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from halflabel.errors import UserError
from halflabel.system.plugin_sources import remember

if TYPE_CHECKING:
    import torch

    from halflabel.features.heads import Model
    from halflabel.fitting.config import Settings
    from halflabel.methods.base import Method

F = TypeVar("F", bound=Callable[..., Any])
MakeOptimizer = Callable[[list[dict[str, Any]], "Settings"], "torch.optim.Optimizer"]
Schedule = Callable[[float, "Settings"], float]


def parameter_groups(model: Model, method: Method, settings: Settings) -> list[dict[str, Any]]:
    """The trained parameters in groups, each with its learning rate "base_lr": head, backbone, then the method's."""
    groups: list[dict[str, Any]] = [{"params": list(model.head.parameters()), "base_lr": settings.lr}]
    if model.backbone is not None:
        backbone = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
        groups.append({"params": backbone, "base_lr": settings.lr * settings.backbone_lr})
    groups += method.parameter_groups(settings.lr)
    return [{**group, "lr": group["base_lr"]} for group in groups if group["params"]]


def make_optimizer(groups: list[dict[str, Any]], settings: Settings) -> torch.optim.Optimizer:
    """The optimizer that the settings name."""
    settings.check_names()
    return OPTIMIZERS[settings.optimizer](groups, settings)


def learning_rate_factor(progress: float, settings: Settings) -> float:
    """The factor of the learning rate after `progress` epochs, which may be a fraction."""
    if progress < settings.warmup:
        return min((progress + 1e-3) / settings.warmup, 1.0)
    return SCHEDULES[settings.schedule](progress, settings)


def _torch_optimizer(groups: list[dict[str, Any]], settings: Settings) -> torch.optim.Optimizer:
    from torch import optim

    decay = settings.weight_decay
    match settings.optimizer:
        case "adamw":
            return optim.AdamW(groups, weight_decay=decay, fused=True)
        case "adam":
            return optim.Adam(groups, weight_decay=decay, fused=True)
        case "sgd":
            return optim.SGD(groups, momentum=settings.momentum, weight_decay=decay, lr=settings.lr, fused=True)
        case _:
            return optim.RMSprop(groups, momentum=0.0, weight_decay=decay)


def _cosine(progress: float, settings: Settings) -> float:
    span = max(settings.epochs - settings.warmup, 1e-9)
    return 0.5 * (1 + math.cos(math.pi * min((progress - settings.warmup) / span, 1)))


def _step(progress: float, settings: Settings) -> float:
    return settings.step_factor ** int(progress // settings.step_epochs)


def _constant(progress: float, settings: Settings) -> float:
    return 1.0


OPTIMIZERS: dict[str, MakeOptimizer] = dict.fromkeys(("adamw", "adam", "sgd", "rmsprop"), _torch_optimizer)
SCHEDULES: dict[str, Schedule] = {"cosine": _cosine, "step": _step, "plateau": _constant, "constant": _constant}


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
    if name in table and table[name].__module__ != function.__module__:
        raise ValueError(f"two {kind} are called {name!r}")
    remember(function)
    table[name] = function
    return function
