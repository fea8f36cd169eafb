"""Calibration: from logits to probabilities that mean what they say, fitted on known labels."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["Platt", "fit_platt"]


class Platt(NamedTuple):
    """p = σ(slope · x + offset), one pair for all classes (Platt 1999)."""

    slope: float = 1.0
    offset: float = 0.0
    known: int = 0

    def scores(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(self.slope * logits + self.offset)


def fit_platt(logits: Tensor, labels: Tensor, *, steps: int = 50) -> Platt:
    """The pair that makes the known labels most likely, by Newton's method; (1, 0) where one sign is missing, or where
    the scores rank the known labels backwards: probabilities keep the order of the logits.

    Targets are (n⁺ + 1)/(n⁺ + 2) and 1/(n⁻ + 2) instead of 1 and 0, as Platt proposes, so that labels that the scores
    separate perfectly do not drive the slope to infinity.
    """
    known = (labels != 0) & ~torch.isnan(logits)
    x, present = logits[known].double(), labels[known] > 0
    positives = int(present.sum())
    negatives = len(x) - positives
    if not positives or not negatives:
        return Platt()
    target = torch.where(present, (positives + 1) / (positives + 2), 1 / (negatives + 2)).double()
    design = torch.stack([x, torch.ones_like(x)], dim=1)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def loss(w: Tensor) -> float:
        z = design @ w
        return float((softplus(z) - target * z).mean())

    for _ in range(steps):
        p = torch.sigmoid(design @ weights)
        gradient = design.T @ (p - target) / len(x)
        curvature = (design * (p * (1 - p))[:, None]).T @ design / len(x) + 1e-9 * torch.eye(2, dtype=torch.float64)
        move = torch.linalg.solve(curvature, gradient)
        size = 1.0
        while size > 1e-6 and loss(weights - size * move) > loss(weights):
            size /= 2
        weights = weights - size * move
        if float(gradient.abs().max()) < 1e-9:
            break
    slope, offset = weights.tolist()
    return Platt(slope, offset, len(x)) if slope > 0 and math.isfinite(slope) and math.isfinite(offset) else Platt()
