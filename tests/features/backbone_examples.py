"""Inputs for the tests of backbones."""

from __future__ import annotations

import torch
from torch import Tensor


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
