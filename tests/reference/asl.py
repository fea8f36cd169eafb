"""Asymmetric loss (Ridnik 2021), entry by entry, summed over the batch."""

import torch
from torch import Tensor


def asl(
    x: Tensor,
    labels: list[list[int]],
    gamma_neg: float,
    gamma_pos: float,
    margin: float,
    *,
    ignore: bool = False,
    detach: bool = False,
) -> Tensor:
    loss = 0 * x.sum()
    for i in range(len(labels)):
        for c in range(len(labels[0])):
            p = torch.sigmoid(x[i, c])
            if labels[i][c] == 1:
                weight, cost = (1 - p) ** gamma_pos, -torch.log(p)
            elif labels[i][c] == -1 or not ignore:
                if p <= margin:
                    continue
                weight, cost = (p - margin) ** gamma_neg, -torch.log(1 - (p - margin))
            else:
                continue
            loss = loss + (weight.detach() if detach else weight) * cost
    return loss
