"""How to train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Settings", "rate_after"]


@dataclass(frozen=True)
class Settings:
    """How to train; what to train is the method's. Rates are used as given: nothing is scaled in silence."""

    epochs: int = 10
    batch_size: int = 32
    lr: float = 1e-3
    backbone_lr: float = 0.1  # the backbone's rate, as a fraction of lr
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    weight_decay: float = 1e-4
    momentum: float = 0.9
    schedule: Literal["cosine", "step", "plateau", "constant"] = "cosine"
    step_epochs: int = 10  # "step": lr · step_factor after every so many epochs
    step_factor: float = 0.1  # also "plateau": lr · step_factor when the validation metric falls
    warmup: float = 0.0  # epochs of linear warm-up
    ema: float = 0.0  # decay of the weight average that is evaluated and kept; 0 = off
    precision: Literal["no", "bf16", "fp16"] = "no"
    clip: float = 0.0  # largest gradient norm; 0 = off
    accumulate: int = 1  # batches per optimizer step
    channels_last: bool = True  # memory layout of convolutions: faster on CPUs and GPUs
    compile: Literal["no", "graph", "inductor", "full"] = "no"  # how launches are saved: see quick.py
    shard: bool = False  # weights in parts, one in each of several processes: for backbones too large for one GPU
    deterministic: bool = False  # on a GPU too, sums in the same order each time, where torch has a way: slower
    patience: int = 0  # stop after so many epochs without a better validation metric; 0 = never
    save_every: int = 0  # optimizer steps between checkpoints within an epoch; 0 = at the end of epochs only
    seed: int = 0
    device: str = "auto"


def rate_after(progress: float, settings: Settings) -> float:
    """The learning rate's factor after `progress` epochs (a fraction of one counts)."""
    if progress < settings.warmup:
        return min((progress + 1e-3) / settings.warmup, 1.0)
    if settings.schedule == "cosine":
        span = max(settings.epochs - settings.warmup, 1e-9)
        return 0.5 * (1 + math.cos(math.pi * min((progress - settings.warmup) / span, 1)))
    if settings.schedule == "step":
        return settings.step_factor ** int(progress // settings.step_epochs)
    return 1.0
