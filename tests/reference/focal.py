"""Focal loss (Lin 2017) with unknown entries taken as absent, entry by entry."""

import torch
from torch import Tensor


def focal(x: Tensor, labels: list[list[int]], gamma: float, alpha: float | None = None) -> Tensor:
    loss = 0 * x.sum()
    for i in range(len(labels)):
        for c in range(len(labels[0])):
            p = torch.sigmoid(x[i, c])
            if labels[i][c] == 1:
                loss = loss - (1 if alpha is None else alpha) * (1 - p) ** gamma * torch.log(p)
            else:
                loss = loss - (1 if alpha is None else 1 - alpha) * p**gamma * torch.log(1 - p)
    return loss / (len(labels) * len(labels[0]))


CASES = [
    ("focal", {"gamma": g, "alpha": a}, lambda x, labels, epoch, g=g, a=a: focal(x, labels, g, a or None))
    for g in (0.0, 0.5, 2.0)
    for a in (0.0, 0.25)
]
