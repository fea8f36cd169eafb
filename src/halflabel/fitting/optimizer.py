"""Optimizers and schedules of the learning rate, by name; `@optimizer` and `@schedule` register those of your own.

Importing this module does not import torch, because the options of commands are checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from halflabel.errors import UserError

if TYPE_CHECKING:
    import torch

    from halflabel.features.heads import Model
    from halflabel.fitting.config import Config
    from halflabel.methods.base import Method

F = TypeVar("F", bound=Callable[..., Any])
MakeOptimizer = Callable[[list[dict[str, Any]], "Config"], "torch.optim.Optimizer"]
Schedule = Callable[[float, "Config"], float]


def parameter_groups(model: Model, method: Method, config: Config) -> list[dict[str, Any]]:
    """The trained parameters in groups, each with its learning rate "base_lr": head, backbone, then the method's."""
    groups = []
    for part, rate in ((model.head, config.lr), (model.backbone, config.lr * config.backbone_lr)):
        if part is not None:
            trained = [parameter for parameter in part.parameters() if parameter.requires_grad]
            groups.append({"params": trained, "base_lr": rate})
    groups += method.parameter_groups(config.lr)
    return [{**group, "lr": group["base_lr"]} for group in groups if group["params"]]


def make_optimizer(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    config.check_names()
    return OPTIMIZERS[config.optimizer](groups, config)


def learning_rate_factor(progress: float, config: Config) -> float:
    """The factor of the learning rate after `progress` epochs, which may be a fraction."""
    if progress < config.warmup:
        return min((progress + 1e-3) / config.warmup, 1.0)
    return SCHEDULES[config.schedule](progress, config)


def _torch_optimizer(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    from torch import optim

    decay = config.weight_decay
    match config.optimizer:
        case "adamw":
            return optim.AdamW(groups, weight_decay=decay, fused=True)
        case "adam":
            return optim.Adam(groups, weight_decay=decay, fused=True)
        case "sgd":
            return optim.SGD(groups, momentum=config.momentum, weight_decay=decay, lr=config.lr, fused=True)
        case _:
            return optim.RMSprop(groups, momentum=0.0, weight_decay=decay)


def _cosine(progress: float, config: Config) -> float:
    span = max(config.epochs - config.warmup, 1e-9)
    return 0.5 * (1 + math.cos(math.pi * min((progress - config.warmup) / span, 1)))


def _step(progress: float, config: Config) -> float:
    return config.step_factor ** int(progress // config.step_epochs)


def _constant(progress: float, config: Config) -> float:
    return 1.0


OPTIMIZERS: dict[str, MakeOptimizer] = dict.fromkeys(("adamw", "adam", "sgd", "rmsprop"), _torch_optimizer)
SCHEDULES: dict[str, Schedule] = {"cosine": _cosine, "step": _step, "plateau": _constant, "constant": _constant}


def optimizer(make: F) -> F:
    """Register a function of (parameter groups, config) that makes an optimizer, under its own name."""
    return _register(OPTIMIZERS, make, "optimizers")


def schedule(factor: F) -> F:
    """Register a function of (progress in epochs, config) that returns the factor of the learning rate."""
    return _register(SCHEDULES, factor, "schedules")


def check_name(kind: str, table: dict[str, Any], name: str) -> None:
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
    table[name] = function
    return function
