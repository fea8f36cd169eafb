"""Parameter groups, the optimizer and the schedule of the learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch

from halflabel.features.heads import Model
from halflabel.fitting.config import Settings
from halflabel.fitting.registry import OPTIMIZERS, SCHEDULES, check_name
from halflabel.methods.base import Method


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
    check_name("optimizer", OPTIMIZERS, settings.optimizer)
    if (make := OPTIMIZERS[settings.optimizer]) is not None:
        return make(groups, settings)
    decay = settings.weight_decay
    match settings.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, weight_decay=decay, fused=True)
        case "adam":
            return torch.optim.Adam(groups, weight_decay=decay, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, momentum=settings.momentum, weight_decay=decay, lr=settings.lr, fused=True)
        case _:
            return torch.optim.RMSprop(groups, momentum=0.0, weight_decay=decay)


def learning_rate_factor(progress: float, settings: Settings) -> float:
    """The factor of the learning rate after `progress` epochs, which may be a fraction."""
    if progress < settings.warmup:
        return min((progress + 1e-3) / settings.warmup, 1.0)
    if settings.schedule == "cosine":
        span = max(settings.epochs - settings.warmup, 1e-9)
        return 0.5 * (1 + math.cos(math.pi * min((progress - settings.warmup) / span, 1)))
    if settings.schedule == "step":
        return settings.step_factor ** int(progress // settings.step_epochs)
    schedule = SCHEDULES[settings.schedule]
    return 1.0 if schedule is None else schedule(progress, settings)
